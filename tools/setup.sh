# Installs what building and testing need; sourced by ./dev. There are three levels: `build` (Debian packages and the
# smallest set of wheels), `cuda` (adds the wheels of the GPU support) and `full` (adds what tests and benchmarks need;
# includes `cuda`). Each level has a stamp file with the hash of the lists that were installed. If the hash matches the
# lists, only dpkg-query is called, to notice packages that were removed since. Everything except Debian packages is in
# .deps/, which git ignores. Every failure ends with a sentence that says what to do.

DEPS="$ROOT/.deps"
PYTHON="$DEPS/python/bin/python"
SETUP_LOG="$DEPS/setup.log"

# Messages of apt-get and pip when there is no network.
NO_NETWORK='resolv|could not connect|unable to connect|connection (timed out|refused|broken)|network is unreachable'
NO_NETWORK+='|NewConnectionError|failed to fetch|read timed out|No matching distribution'

# Disk space in MiB, measured on Debian 12, including pip's downloads in addition to the unpacked files.
BUILD_MIB=3072
CUDA_MIB=8192
FULL_MIB=9216

packages_listed() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$ROOT/requirements/apt.txt"; }

packages_missing() {
  comm -23 <(packages_listed | sort -u) \
    <(dpkg-query --show --showformat '${db:Status-Abbrev}\t${Package}\n' 2>/dev/null | sed -n 's/^ii *\t//p' | sort -u)
}

# Argument: a level. Prints the hash of all lists that it installs.
setup_digest() {
  local files=("$ROOT/requirements/apt.txt" "$ROOT/requirements/build.txt")
  [[ $1 == build ]] || files+=("$ROOT/requirements/full.txt")
  [[ $1 == full ]] && files+=("$ROOT/requirements/unpacked.txt")
  cat "${files[@]}" | sha256sum | cut -d' ' -f1
}

setup_is_complete() {
  local level=$1
  [[ -x $PYTHON && -f $DEPS/stamp-$level && $(<"$DEPS/stamp-$level") == "$(setup_digest "$level")" ]] &&
    [[ -z $(packages_missing) ]]
}

# Runs a command with its output in the log, and shows progress. On a terminal it updates one line. Otherwise it prints
# a line every 20 s, and after two minutes a line every minute with the last line of the log.
run_logged() {
  local label=$1 start=$SECONDS shown=$SECONDS pid last
  shift
  printf '\n--- %s: %s\n' "$label" "$*" >>"$SETUP_LOG"
  set -m  # gives the command a process group
  "$@" >>"$SETUP_LOG" 2>&1 </dev/null &
  pid=$!
  set +m
  # Ctrl-C does not reach another process group, so the command and all processes that it started are ended here.
  trap 'kill -- "-$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    if [[ -t 1 ]]; then
      last=$(tail -n 1 "$SETUP_LOG" | tr -d '\r' | cut -c 1-70)
      printf '\r\033[K%s: %d s  %s' "$label" $((SECONDS - start)) "$last"
    elif ((SECONDS - shown >= (shown - start < 120 ? 20 : 60))); then
      shown=$SECONDS
      last=''
      ((shown - start < 120)) || last=": $(tail -n 1 "$SETUP_LOG" | tr -d '\r' | cut -c 1-70)"
      echo "$label: $((SECONDS - start)) s so far$last"
    fi
    sleep 0.3
  done
  trap - INT TERM
  [[ -t 1 ]] && printf '\r\033[K'
  wait "$pid" || return $?
  echo "$label: done in $((SECONDS - start)) s"
}

# Exits with a message that explains the end of the log. Arguments: the action that failed, and the server that it used.
die_from_log() {
  local action=$1 server=$2 tail_text
  tail_text=$(tail -n 40 "$SETUP_LOG")
  if grep -qiE 'No space left|not enough free space' <<<"$tail_text"; then
    die "$action failed: the disk is full. Free some space (see 'df -h'), then run ./dev setup again."
  elif grep -qiE "$NO_NETWORK" <<<"$tail_text"; then
    die "$action failed: $server did not answer. Check the network and proxy settings, then run ./dev setup again." \
      "(The full output is in .deps/setup.log.)"
  fi
  tail -n 15 "$SETUP_LOG" >&2
  die "$action failed; the lines above are the end of .deps/setup.log. Fix the problem, then run ./dev setup again."
}

require_disk() {
  local need_mib=$1 what=$2 free_mib
  free_mib=$(($(df --output=avail -k "$ROOT" | tail -n 1) / 1024))
  ((free_mib >= need_mib)) ||
    die "$what needs about $((need_mib / 1024)) GB on the disk of $ROOT, but only $((free_mib / 1024)) GB are free." \
      "Free some space or move the checkout to a larger disk, then run ./dev setup again."
}

install_packages() {
  command -v dpkg-query >/dev/null ||
    die "dpkg-query is missing: Trainyard is built on Debian 12. Use a Debian 12 machine or container, or see deploy/."
  local missing
  mapfile -t missing < <(packages_missing)
  ((${#missing[@]})) || return 0
  local install=(apt-get install --yes --no-install-recommends "${missing[@]}")
  if ((EUID != 0)); then
    die "${#missing[@]} Debian packages are missing, and only root can install them. Run this, then setup again:" \
      $'\n'"  sudo apt-get update && sudo ${install[*]}"
  fi
  require_disk 1024 "Installing Debian packages"
  echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  run_logged "setup: package lists" apt-get -o APT::Update::Error-Mode=any -o DPkg::Lock::Timeout=120 update ||
    die_from_log "Reading Debian's package lists" "the Debian mirror"
  run_logged "setup: Debian packages" apt-get -o DPkg::Lock::Timeout=120 "${install[@]:1}" ||
    die_from_log "Installing Debian packages" "the Debian mirror"
}

# Uses Debian's Python, because another one in PATH may have another version than CMakePresets.json names.
make_venv() {
  [[ -x $PYTHON ]] && "$PYTHON" -c 'import pip' 2>/dev/null && return
  local version
  version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [[ $version == 3.11 ]] ||
    die "/usr/bin/python3 is Python $version, but the pinned wheels are for 3.11, that of Debian 12. Use Debian 12."
  rm -rf "$DEPS/python"
  run_logged "setup: Python environment in .deps/python" /usr/bin/python3 -m venv "$DEPS/python" ||
    die_from_log "Making .deps/python" "the Python package index"
}

# Unpacks in .deps and not in /tmp, which is often small and in memory. Arguments: label, list in requirements/, and a
# regular expression of the lines to install (default: all).
install_wheels() {
  local label=$1 list=$2 lines=${3:-}
  mkdir -p "$DEPS/tmp"
  grep -E "$lines" "$ROOT/requirements/$list" >"$DEPS/tmp/$list"
  TMPDIR="$DEPS/tmp" run_logged "$label" "$PYTHON" -m pip install --disable-pip-version-check --progress-bar off \
    --no-deps --requirement "$DEPS/tmp/$list" ||
    die_from_log "Installing requirements/$list" "the Python package index"
  rm -rf "$DEPS/tmp"
}

# Unpacks programs that only tests use. Needs the package lists of apt-get update, but not root.
unpack_programs() {
  local packages folder="$DEPS/programs"
  mapfile -t packages < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$ROOT/requirements/unpacked.txt")
  rm -rf "$folder" "$DEPS/tmp"
  mkdir -p "$DEPS/tmp"
  (
    cd "$DEPS/tmp" || exit
    # In an image without package lists, apt-get download would find nothing.
    if ((EUID == 0)) && [[ -z $(find /var/lib/apt/lists -name '*_Packages*' -print -quit 2>/dev/null) ]]; then
      run_logged "setup: package lists" apt-get -o APT::Update::Error-Mode=any update
    fi
    run_logged "setup: programs of the tests" apt-get download "${packages[@]}"
  ) || die_from_log "Downloading the packages of requirements/unpacked.txt" "the Debian mirror"
  local package
  for package in "$DEPS"/tmp/*.deb; do
    dpkg-deb --extract "$package" "$folder" || die "$package could not be unpacked; run ./dev setup again."
  done
  rm -rf "$DEPS/tmp"
}

wheel_is_installed() { [[ -n $(find "$DEPS/python/lib" -maxdepth 3 -name "$1" -print -quit 2>/dev/null) ]]; }

# level: build, cuda or full. Prints nothing and returns quickly if everything is installed.
setup() {
  local level=$1
  setup_is_complete "$level" && return
  [[ $level == cuda ]] && setup_is_complete full && return
  mkdir -p "$DEPS" 2>/dev/null && [[ -w $DEPS ]] ||
    die "$DEPS cannot be written by $(id -un). Make the checkout your own (chown), then run ./dev setup again."
  exec 9>"$DEPS/lock"
  flock --nonblock 9 || { echo "setup: waiting for another ./dev setup in this checkout"; flock 9; }
  : >"$SETUP_LOG"
  install_packages
  if ! wheel_is_installed 'torch-2.11.0.dist-info'; then require_disk $BUILD_MIB "Setting up the build"; fi
  make_venv
  echo "setup: Python packages for the build: $(sed -e 's/#.*//' -e '/^$/d' "$ROOT/requirements/build.txt" | xargs)"
  install_wheels "setup: LibTorch (0.5 GB to download once)" build.txt
  setup_digest build >"$DEPS/stamp-build"
  if [[ $level == cuda ]]; then
    wheel_is_installed 'nvidia_cudnn_cu13-*.dist-info' || require_disk $CUDA_MIB "Setting up the GPU support"
    install_wheels "setup: CUDA libraries (2 GB to download once)" full.txt '^nvidia-'
    setup_digest cuda >"$DEPS/stamp-cuda"
  fi
  if [[ $level == full ]]; then
    if ! wheel_is_installed 'nvidia_cudnn_cu13-*.dist-info'; then
      require_disk $FULL_MIB "Setting up tests and benchmarks"
    fi
    echo "setup: Python packages for tests and benchmarks: the whole torch wheel and requirements/full.txt"
    install_wheels "setup: whole wheel (3 GB to download once)" full.txt
    run_logged "setup: check" "$PYTHON" -m pip check ||
      die_from_log "Checking requirements/full.txt (pip check)" "the Python package index"
    unpack_programs
    setup_digest full >"$DEPS/stamp-full"
  fi
  flock --unlock 9
  exec 9>&-
}

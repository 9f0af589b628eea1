# Compiles; sourced by ./dev.

# Prints the number of parallel compilations that cores and memory allow: a file with torch headers needs up to 1.5 GB.
default_jobs() {
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024 / 1024))
  local by_memory=$((memory_gib * 2 / 3))
  ((by_memory < 1)) && by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Argument: a preset. Prints its build folder, as CMakePresets.json defines it.
build_folder() {
  case $1 in
    release) echo build ;;
    dev | asan | tsan) echo "build/$1" ;;
    *) die_usage "there is no preset '$1'; the presets are release, dev, asan and tsan." ;;
  esac
}

# Arguments: a preset, and targets. Configures first if the folder is not configured, or is configured for another path.
build() {
  local preset=$1 folder targets=()
  folder=$(build_folder "$preset")
  shift
  (($#)) && targets=(--target "$@")
  local configured=
  if [[ -f $folder/CMakeCache.txt ]]; then
    configured=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
  fi
  if [[ $configured != "$ROOT" || ! -f $folder/build.ninja ]]; then
    echo "build: configuring preset '$preset' in $folder/"
    mkdir -p "$folder"
    cmake --fresh --preset "$preset" >"$folder/configure.log" 2>&1 || {
      tail -n 30 "$folder/configure.log" >&2
      die "configuring failed; the whole output is in $folder/configure.log."
    }
  fi
  local jobs=${JOBS:-$(default_jobs)}
  if [[ -t 1 ]]; then
    /usr/bin/python3 tools/build_progress.py "$folder" "$jobs" "$@"
  else
    cmake --build "$folder" --parallel "$jobs" "${targets[@]}"
  fi
}

verb_build() {
  local preset=release targets=()
  while (($#)); do
    case $1 in
      -h | --help)
        cat <<'TEXT'
./dev build [--preset release|dev|asan|tsan] [-j N] [TARGET...]

Compiles the targets (default: all) in N parallel processes (default: as many as cores and memory allow). The preset
release (the default) writes to build/, the others to build/<preset>/; programs are in bin/, tests in bin/tests/.
dev checks invariants after every event; asan adds address and undefined-behaviour checks, tsan thread checks.
TEXT
        return ;;
      --preset) preset=${2:-}; shift 2 || die_usage "--preset needs a name." ;;
      --preset=*) preset=${1#*=}; shift ;;
      -j) JOBS=${2:-}; shift 2 || die_usage "-j needs a number." ;;
      -j*) JOBS=${1#-j}; shift ;;
      -*) die_usage "build has no option '$1'; see ./dev build --help." ;;
      *) targets+=("$1"); shift ;;
    esac
  done
  build_folder "$preset" >/dev/null
  setup build
  build "$preset" "${targets[@]}"
}

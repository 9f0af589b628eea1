# Makes images and Debian packages of the programs in build/, and the Helm chart; sourced by ./dev.

# Disk space in MiB that ./dev image needs. CUDA: with worker-cuda. BUILD: if it compiles the programs.
IMAGE_MIB=3072
IMAGE_BUILD_MIB=12288
IMAGE_CUDA_MIB=22528
IMAGE_BUILD_CUDA_MIB=30720

PROGRAMS=(trainctl trainyard-coordinator trainyard-worker trainyard-shim trainyard-trainer)
IMAGES=(coordinator trainctl worker)

project_version() { sed -n 's/^project(trainyard VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt"; }

# If a program is missing, ends ./dev with a message that says how to install it. Arguments: a verb, PROGRAM:PACKAGE...
require_programs() {
  local verb=$1 pair missing=()
  shift
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || [[ -x /usr/sbin/${pair%%:*} ]] || missing+=("${pair#*:}")
  done
  ((${#missing[@]} == 0)) || die "$verb needs ${missing[*]}. Run this, then ./dev $verb again:" \
    $'\n'"  sudo apt-get install --no-install-recommends ${missing[*]}"
}

# Runs a command as run_logged of tools/setup.sh does, with a log of its own. Arguments: log, label, command...
run_step() {
  local SETUP_LOG=$1
  shift
  run_logged "$@" || {
    tail -n 20 "$SETUP_LOG" >&2
    die "$1 failed; the lines above are the end of $SETUP_LOG."
  }
}

# Builds the programs, unless --no-build was given. Arguments: that flag or nothing.
build_programs() {
  setup build
  if [[ ! ${1:-} ]]; then
    build release "${PROGRAMS[@]}"
  else
    local program
    for program in "${PROGRAMS[@]}"; do
      [[ -x build/bin/$program ]] || die "build/bin/$program is missing; leave out --no-build."
    done
  fi
}

# Fills a folder with what the Dockerfile reads when PROGRAMS=prebuilt.
make_image_context() {
  local context=$1 part
  rm -rf "$context"
  mkdir -p "$context/deploy"
  cp -r deploy/image "$context/deploy/"
  cp -r requirements configs LICENSE "$context/"
  for part in coordinator trainctl worker libtorch; do
    cmake --install build --strip --component "$part" --prefix "$context/programs/$part" >>"$IMAGE_LOG" ||
      die "cmake --install --component $part failed; see $IMAGE_LOG."
  done
}

image_buildah() { "${BUILDAH[@]}" "$@"; }

# Ends ./dev if the disk of the storage is too small. Arguments: PROGRAMS, targets...
require_image_disk() {
  local need=$IMAGE_MIB used free
  if [[ $1 == build ]]; then need=$IMAGE_BUILD_MIB; fi
  if [[ " ${*:2} " == *" worker-cuda "* ]]; then
    need=$IMAGE_CUDA_MIB
    if [[ $1 == build ]]; then need=$IMAGE_BUILD_CUDA_MIB; fi
  fi
  # The files that an earlier call has left there are used again, so their space counts as free.
  used=$(($(du --summarize --one-file-system -k "$STORAGE" | cut -f1) / 1024))
  free=$(($(df --output=avail -k "$STORAGE" | tail -n 1) / 1024))
  ((used + free >= need)) ||
    die "image needs up to $((need / 1024)) GB in $STORAGE, but only $((free / 1024)) GB are free there. Free some" \
      "space, or name a folder on a larger disk with --storage."
}

# Removes the containers that a failed or interrupted build has left, which may be several GB. Argument: containers to
# keep.
remove_image_containers() {
  local container
  for container in $(image_buildah containers --quiet); do
    [[ " $1 " == *"$container"* ]] || image_buildah rm "$container" >/dev/null || true
  done
}

# Makes localhost/trainyard-debian with debootstrap, unless an earlier call made it.
make_image_base() {
  local mirror=$1 root="$STORAGE/debian" container
  image_buildah inspect --type image localhost/trainyard-debian >/dev/null 2>&1 && return
  rm -rf "$root"
  run_step "$IMAGE_LOG" "image: Debian 12 from $mirror" \
    /usr/sbin/debootstrap --variant=minbase bookworm "$root" "$mirror"
  if [[ $mirror == http://deb.debian.org/debian ]]; then
    printf 'deb %s main\n' "$mirror bookworm" "$mirror bookworm-updates" \
      "http://deb.debian.org/debian-security bookworm-security" >"$root/etc/apt/sources.list"
  fi
  container=$(image_buildah from scratch)
  run_step "$IMAGE_LOG" "image: base" image_buildah add --quiet "$container" "$root" /
  run_step "$IMAGE_LOG" "image: base" image_buildah commit --quiet --rm "$container" localhost/trainyard-debian
  rm -rf "$root"
}

image_help() {
  cat <<'TEXT'
./dev image [TARGET...] [--base IMAGE|--mirror URL] [--from-source [--ca FILE] [--ccache FOLDER]|--no-build]
            [--export FOLDER] [--storage FOLDER] [--check]
./dev image --clean

Builds the images of deploy/Dockerfile with buildah, which needs root but no daemon, and prints their sizes. Without
TARGET: coordinator, trainctl and worker; worker-cuda is the fourth. The images have a storage of their own (--storage).

  --base IMAGE      the Debian 12 image to build on; by default debootstrap makes one
  --mirror URL      what debootstrap reads (http://deb.debian.org/debian)
  --from-source     compile inside of the image, as `docker build` does; by default the programs in build/ are used
  --ca FILE         trust these certificates (PEM) while compiling, for a proxy or package index of your own; images do
                    not contain them
  --ccache FOLDER   with --from-source, use this compiler cache, and compile under the path of this checkout: files that
                    ./dev build has compiled with the same compiler are then not compiled again; by default the storage
                    has a cache of its own
  --no-build        use the programs in build/ as they are
  --check           after the build, start the images in namespaces as root, and run jobs in them
                    (tests/deploy/image_test.py)
  --export FOLDER   write FOLDER/trainyard-TARGET.tar for `docker load` or `podman load`, and the bill of materials
  --storage FOLDER  where images and temporary files are (build/image). Needs 3 GB, with worker-cuda 22 GB; with
                    --from-source 12 GB, with worker-cuda 30 GB
  --clean           remove the storage
TEXT
}

# Builds one image and prints its size. Arguments: target, context, base, PROGRAMS.
build_image() {
  local target=$1 context=$2 base=$3 programs=$4 revision mounted container
  revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
  run_step "$IMAGE_LOG" "image: trainyard-$target" "${BUILDAH[@]}" bud \
    --isolation chroot --format docker --layers --file deploy/Dockerfile --target "$target" \
    --build-arg "DEBIAN=$base" --build-arg "PROGRAMS=$programs" --build-arg "VERSION=$(project_version)" \
    --build-arg "REVISION=$revision" "${COMPILING[@]}" --tag "trainyard-$target" "$context"
  container=$(image_buildah from "trainyard-$target")
  mounted=$(image_buildah mount "$container")
  printf 'image: trainyard-%s: %d MB unpacked\n' "$target" \
    $(($(du --summarize --apparent-size --bytes "$mounted" | cut -f1) / 1000000))
  if [[ $EXPORT ]]; then
    cp "$mounted/usr/share/doc/trainyard/sbom.cdx.json" "$EXPORT/trainyard-$target.cdx.json"
    rm -f "$EXPORT/trainyard-$target.tar"
    run_step "$IMAGE_LOG" "image: export" "${BUILDAH[@]}" push --quiet "trainyard-$target" \
      "docker-archive:$EXPORT/trainyard-$target.tar:trainyard-$target:latest"
  fi
  image_buildah rm "$container" >/dev/null
}

# Runs the long tests of the images in the storage. Arguments: targets.
check_images() {
  setup full
  TRAINYARD_IMAGE_STORAGE="$STORAGE" TRAINYARD_IMAGES="$*" TRAINYARD_BIN="$ROOT/build/bin" \
    "$PYTHON" -m pytest -m long -s tests/deploy/image_test.py ||
    die "the images do not behave as expected; they are still in $STORAGE."
}

verb_image() {
  local targets=() base='' mirror=http://deb.debian.org/debian programs=prebuilt no_build='' clean='' check='' target
  EXPORT='' STORAGE="$ROOT/build/image" COMPILING=()
  while (($#)); do
    case $1 in
      -h | --help) image_help; return ;;
      --base) base=${2:-}; shift 2 || die_usage "--base needs the name of an image." ;;
      --mirror) mirror=${2:-}; shift 2 || die_usage "--mirror needs a URL." ;;
      --export) EXPORT=${2:-}; shift 2 || die_usage "--export needs a folder." ;;
      --storage) STORAGE=$(realpath -m "${2:-}"); shift 2 || die_usage "--storage needs a folder." ;;
      --from-source) programs=build; shift ;;
      --ca)
        [[ -r ${2:-} ]] || die_usage "--ca needs a readable file of certificates."
        # In the stage that compiles, update-ca-certificates reads the certificates in this folder.
        COMPILING+=(--volume "$(realpath "$2"):/usr/local/share/ca-certificates/image.crt:ro")
        shift 2 ;;
      --ccache)
        [[ -d ${2:-} ]] || die_usage "--ccache needs a folder, for example that of 'ccache --get-config cache_dir'."
        COMPILING+=(--volume "$(realpath "$2"):/ccache" --build-arg CCACHE_DIR=/ccache --build-arg "SOURCE=$ROOT" \
          --build-arg "LANG=${LANG:-C.UTF-8}")
        shift 2 ;;
      --check) check=--check; shift ;;
      --no-build) no_build=--no-build; shift ;;
      --clean) clean=--clean; shift ;;
      coordinator | trainctl | worker | worker-cuda) targets+=("$1"); shift ;;
      *) die_usage "image has no target or option '$1'; see ./dev image --help." ;;
    esac
  done
  if [[ $check && " ${targets[*]} " == *" worker-cuda "* ]]; then
    targets=("${IMAGES[@]}" worker-cuda)  # a job needs coordinator and trainctl
  elif ((${#targets[@]} == 0)) || [[ $check ]]; then
    targets=("${IMAGES[@]}")
  fi
  require_programs image buildah:buildah
  ((EUID == 0)) || die "image must run as root, because buildah mounts file systems. Run it with sudo, or use" \
    "docker build --file deploy/Dockerfile --target worker --tag trainyard-worker ."
  # Temporary files and cache mounts are in the storage, too.
  BUILDAH=(env TMPDIR="$STORAGE/tmp" buildah --root "$STORAGE/images" --runroot "$STORAGE/run")
  if [[ $clean ]]; then
    if [[ -d $STORAGE/images ]]; then
      mkdir -p "$STORAGE/tmp"
      # An interrupted call may leave containers, some of them mounted, and layers that are incomplete.
      remove_image_containers ''
      image_buildah rmi --all --force >/dev/null || true
      findmnt --raw --noheadings --output TARGET | { grep -F "$STORAGE/" || true; } | sort -r |
        xargs --no-run-if-empty umount
    fi
    rm -rf "$STORAGE"
    return
  fi
  [[ $base ]] || require_programs image debootstrap:debootstrap
  mkdir -p "$STORAGE/tmp"
  require_image_disk "$programs" "${targets[@]}"
  IMAGE_LOG="$STORAGE/log"
  : >"$IMAGE_LOG"
  IMAGE_CONTAINERS=$(image_buildah containers --quiet)
  trap 'remove_image_containers "$IMAGE_CONTAINERS"' EXIT
  local context=$ROOT
  if [[ $programs == prebuilt ]]; then
    [[ " ${targets[*]} " != *" worker-cuda "* ]] ||
      [[ -e build/bin/libtrainyard_cuda.so ]] ||
      die "worker-cuda needs build/bin/libtrainyard_cuda.so: ./dev setup cuda, then ./dev build; or give --from-source."
    build_programs $no_build
    context="$STORAGE/context"
    make_image_context "$context"
    [[ " ${targets[*]} " != *" worker-cuda "* ]] ||
      cmake --install build --strip --component cuda --prefix "$context/programs-cuda" >>"$IMAGE_LOG" ||
      die "cmake --install --component cuda failed; see $IMAGE_LOG."
  fi
  if [[ ! $base ]]; then
    make_image_base "$mirror"
    base=localhost/trainyard-debian
  fi
  [[ ! $EXPORT ]] || mkdir -p "$EXPORT"
  for target in "${targets[@]}"; do build_image "$target" "$context" "$base" "$programs"; done
  rm -rf "$STORAGE/context"
  [[ ! $check ]] || check_images "${targets[@]}"
}

verb_package() {
  local no_build='' output="$ROOT/build/packages"
  while (($#)); do
    case $1 in
      -h | --help)
        cat <<'TEXT'
./dev package [--no-build] [--output FOLDER]

Builds the programs and makes Debian 12 packages of them in build/packages: trainyard-coordinator, trainyard-worker,
trainctl, and trainyard-libtorch-VERSION, which trainyard-worker needs. docs/operators.md explains their installation.

  --no-build       use the programs in build/ as they are
  --output FOLDER  where to write the packages
TEXT
        return ;;
      --no-build) no_build=--no-build; shift ;;
      --output) output=$(realpath -m "${2:-}"); shift 2 || die_usage "--output needs a folder." ;;
      *) die_usage "package has no option '$1'; see ./dev package --help." ;;
    esac
  done
  require_programs package dpkg-shlibdeps:dpkg-dev
  build_programs $no_build
  mkdir -p "$output"
  run_step "$output/log" "package" cpack --config build/CPackConfig.cmake -G DEB -B "$output"
  rm -rf "$output/_CPack_Packages"
  find "$output" -name '*.deb' -newer "$output/log" -prune -o -name '*.deb' -printf '%f  %k KiB\n' | sort
}

verb_chart() {
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    cat <<'TEXT'
./dev chart [--check] [--output FOLDER]

Renders the Kustomize base in deploy/kubernetes from the Helm chart in deploy/helm/trainyard, which is the source of the
objects for Kubernetes, with Helm's own library. Then runs Helm's checks of the chart with every file of values.

  --check          write nothing; fail if the base differs from what the chart renders
  --output FOLDER  also package the chart: FOLDER/trainyard-VERSION.tgz for `helm install`
TEXT
    return
  fi
  setup full
  "$PYTHON" tools/chart.py "$@"
}

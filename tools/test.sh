# Runs the tests; sourced by ./dev. The C++ tests go through ctest, the rest through pytest; both write JUnit files to
# <build>/test-results, which tools/summary.py adds up for the last line of the output.

# Runs the C++ tests. Arguments: results folder, build folder, filter, then arguments of ctest.
run_ctest() {
  local results=$1 folder=$2 filter=$3
  shift 3
  local args=(--test-dir "$folder" --output-on-failure --output-junit "$results/ctest.xml" "$@")
  args+=(--parallel "${JOBS:-$(default_jobs)}")
  if [[ $filter ]]; then
    # If the filter matches no test program, it selects single tests inside the programs.
    if ctest --test-dir "$folder" --show-only -R "$filter" | grep -q '^  Test'; then
      args+=(-R "$filter")
    else
      export GTEST_FILTER="*$filter*"
    fi
  fi
  ctest "${args[@]}"
}

# PASSED is the file in which `./dev test --all` records the tests that have passed; see tools/passed.py.
passed() { /usr/bin/python3 tools/passed.py "$1" "$PASSED" "${@:2}"; }

# Runs every cell of a test program and prints a line for each. Cells that passed before an interruption are left out.
# Arguments: results folder, build folder, filter, program.
run_cells() {
  local results=$1 folder=$2 filter=$3 program=$4 cells code=0
  cells=$(passed cells "$program")  # a filter of GoogleTest that only excludes: empty, or "-CELL:CELL..."
  [[ $filter && $program != *"$filter"* ]] && cells="*$filter*$cells"
  GTEST_FILTER=${cells:-*} TRAINYARD_ALL_CELLS=1 ctest --test-dir "$folder" --verbose -R "^$program\$" \
    --output-junit "$results/ctest-$program.xml" | passed note "$program" || code=1
  return $code
}

# Runs every cell of the matrices of strategies and of resumes. Arguments: results folder, build folder, filter.
run_matrix() {
  local results=$1 folder=$2 filter=$3 code=0
  local table="${PASSED%/*}/matrix.md"
  [[ -f $table ]] || printf '%s\n' '# Every strategy compared with one process' '' \
    'The largest relative differences of losses, gradient norms and final parameters over 100 steps in fp64.' \
    'Written by `./dev test --all`. The name of a cell consists of the strategy, the family of the model, the' \
    'number of ranks, the micro-batches per rank in a step, and other options. Cells of divided models are' \
    'named by stages, data ranks, tensor ranks, schedule and strategy, and have 20 steps in fp32.' \
    '' '| Cell | Losses | Norms | Parameters |' '|---|---|---|---|' >"$table"
  TRAINYARD_PARITY_TABLE="$table" run_cells "$results" "$folder" "$filter" matrix_test || code=1
  if [[ $filter && matrix_test != *"$filter"* ]]; then
    echo "The table of these cells: $table"
  elif ((code == 0)); then
    cp "$table" "$ROOT/bench/results/matrix.md"
  fi
  run_cells "$results" "$folder" "$filter" resume_test || code=1
  return $code
}

# Runs the Python tests. Arguments: results folder, build folder, then arguments of pytest.
run_pytest() {
  local results=$1 folder=$2 code=0
  shift 2
  TRAINYARD_BIN="$ROOT/$folder/bin" "$PYTHON" -m pytest --junitxml="$results/pytest.xml" "$@" || code=$?
  ((code == 5)) && code=0  # no Python test matches the filter; summary.py fails if no test ran at all
  return $code
}

verb_test() {
  local preset=release filter='' kind=default fresh='' code=0
  while (($#)); do
    case $1 in
      -h | --help)
        cat <<'TEXT'
./dev test [FILTER] [--unit|--fast|--python|--all [--fresh]] [--preset P] [-j N]

Builds, then runs the C++ tests (ctest) and the Python tests (pytest: real processes, comparison with PyTorch, README).
The last line is 'N passed, N failed'. FILTER is part of a test's name.

  --unit     C++ tests only
  --fast     skip the tests that are marked slow or long; without --fast, long tests need --all or a FILTER
  --python   Python tests only
  --all      everything, which takes hours:
             - every cell of the matrix of strategies (3,024) and of resumes (210), and a pairwise cover of the matrix
               of divided models, instead of selections; prints the expected duration and writes
               bench/results/matrix.md. With a FILTER that is part of a cell's name, such as fsdp_gpt2_world4, only
               those cells
             - every C++ program with vector code again as on a CPU with AVX2 but without AVX-512 (NAME.avx2), and as on
               one with neither (NAME.none); without --all, only a few of them
             - the whole fault matrix instead of 4 cells, more seeds of simulated clusters, and the tests that are
               marked long: series of kills, the README's commands with all steps, and further cases of other tests
             After an interruption, the next run of the same source and programs skips the tests that have passed
  --fresh    with --all: starts over
TEXT
        return ;;
      --unit | --fast | --python | --all) kind=${1#--}; shift ;;
      --fresh) fresh=fresh; shift ;;
      --preset) preset=${2:-}; shift 2 || die_usage "--preset needs a name." ;;
      --preset=*) preset=${1#*=}; shift ;;
      -j) JOBS=${2:-}; shift 2 || die_usage "-j needs a number." ;;
      -*) die_usage "test has no option '$1'; see ./dev test --help." ;;
      *) [[ -z $filter ]] || die_usage "test takes one filter; got '$filter' and '$1'."; filter=$1; shift ;;
    esac
  done
  local folder results
  folder=$(build_folder "$preset")
  results="$ROOT/$folder/test-results"
  setup full
  build "$preset"
  if [[ $kind == all ]]; then
    rm -rf "$results"
    # The record is not in $results, which every other run removes. A filtered run is short, and a program that passes
    # under a filter may fail without it, so a filtered run neither resumes nor is resumed.
    local record="$ROOT/$folder/test-all"
    [[ $filter ]] && record="$results/filtered"
    mkdir -p "$results" "$record"
    PASSED="$record/passed"
    passed open "$folder" $fresh
    [[ $(wc -l <"$PASSED") -gt 1 ]] || rm -f "$record/matrix.md"
    export TRAINYARD_FAULTS=${TRAINYARD_FAULTS:-full}
    cp "$PASSED" "$results/passed-before"  # for the summary
    local done_before
    done_before=$(passed programs)
    TRAINYARD_ALL_CELLS=1 run_ctest "$results" "$folder" "$filter" \
      -E "^(matrix_test|resume_test${done_before:+|$done_before})\$" | passed note || code=1
    run_matrix "$results" "$folder" "$filter" || code=1
  else
    rm -rf "$results"
    mkdir -p "$results"
  fi
  if [[ $kind != python && $kind != all ]]; then
    # Leaves out most of the tests that run as on CPUs with fewer features (tests/CMakeLists.txt). Only --all and
    # filters that name these tests include them.
    local rest=(-LE '^fewer_cpu_features$')
    [[ $filter == *.avx2* || $filter == *.none* ]] && rest=()
    run_ctest "$results" "$folder" "$filter" "${rest[@]}" || code=1
  fi
  if [[ $kind != unit ]]; then
    local args=()
    if [[ $kind == fast ]]; then
      args+=(-m "not slow and not long")
    elif [[ $kind != all && ! $filter ]]; then
      args+=(-m "not long")
      export TRAINYARD_FAULTS_CELLS=${TRAINYARD_FAULTS_CELLS:-4}
    fi
    if [[ $filter ]]; then
      args+=(-k "$filter")
    elif [[ $kind != all ]]; then
      # Most tests wait for processes, so one more than there are cores keeps the cores busy.
      args+=(--numprocesses "$(($(nproc) + 1))" --dist worksteal)
    fi
    TRAINYARD_TESTS_PASSED=${PASSED:-} run_pytest "$results" "$folder" "${args[@]}" || code=1
  fi
  /usr/bin/python3 tools/summary.py "$results" || code=1
  # A run that has passed is not resumed.
  [[ $kind == all ]] && ((code == 0)) && rm -f "$PASSED"
  exit $code
}

# sim [SEED] [--first S] [--seeds N] [--trace] [--no-shrink] [--shrink SEED] [--replay FILE] [--lossy-minutes N]
sim() {
  local seed='' count=1 more=()
  while (($#)); do
    case $1 in
      --seeds) count=${2:-}; shift 2 || die_usage "--seeds needs a number." ;;
      --seeds=*) count=${1#*=}; shift ;;
      --first) seed=${2:-}; shift 2 || die_usage "--first needs a number." ;;
      --first=*) seed=${1#*=}; shift ;;
      --trace | --no-shrink) more+=("$1"); shift ;;
      --shrink)
        seed=${2:-}
        more+=(--shrink-to "tests/sim/regressions/seed-$seed.txt")
        shift 2 || die_usage "--shrink needs a seed that fails." ;;
      --replay | --lossy-minutes) more+=("$1" "${2:-}"); shift 2 || die_usage "$1 needs a value." ;;
      *) seed=$1; shift ;;
    esac
  done
  seed=${seed:-$((RANDOM * 32768 + RANDOM + 1))}
  [[ $seed =~ ^[0-9]+$ && $count =~ ^[1-9][0-9]*$ ]] ||
    die_usage "sim takes whole numbers, e.g. ./dev sim 42 --seeds 10."
  setup build
  build release trainyard-sim
  build/bin/tests/trainyard-sim --first "$seed" --seeds "$count" "${more[@]}" ||
    die "a simulated cluster broke an invariant; the lines above name the seed and the command that repeats it."
}

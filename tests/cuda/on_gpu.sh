#!/usr/bin/env bash
# What only a GPU can show: the tests of kernels and of whole calls on CuPy's arrays, ranks that share a GPU under
# mpirun, PyTorch's tensors there, and a part of it under compute-sanitizer. Each step has its own time limit, and the
# next follows whatever it ends with; the end says how each did.
#   [PYTHON=python3] [OUT=folder] tests/cuda/on_gpu.sh [kernels|calls|mpi|torch|sanitize]...
# PYTHON has the package's test dependencies and CuPy; the extension is built in place. OUT receives `log` and reports.
set -uo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-.venv/bin/python}
OUT=$(mkdir -p "${OUT:-build/gpu}" && cd "${OUT:-build/gpu}" && pwd)
PATH=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Warnings of CuPy's are no failures here.
PYTEST=("$PYTHON" -m pytest -q -p no:cacheprovider -W default)
results=()

# step NAME SECONDS COMMAND...
step() {
  local name=$1 seconds=$2 start=$SECONDS
  shift 2
  echo "+ $name: $*"
  timeout --kill-after=10 "$seconds" "$@" </dev/null 2>&1 | tee -a "$OUT/log" | tail -n 25
  local status=${PIPESTATUS[0]} counted
  counted=$(report "$OUT/$name.xml")
  [ "$status" -ne 124 ] || counted="out of time: more than $seconds s $counted"
  results+=("$([ "$status" -eq 0 ] && echo good || echo BAD) $name: $((SECONDS - start)) s, status $status, $counted")
}

report() {
  [ -e "$1" ] || { echo "no report"; return; }
  "$PYTHON" -c '
import sys, xml.etree.ElementTree
(suite,) = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
print(", ".join(f"{suite.get(name)} {name}" for name in ("tests", "failures", "errors", "skipped")))' "$1"
}

kernels() {
  step kernels 420 env GQALLREDUCE_TEST_DEVICE=cuda "${PYTEST[@]}" -n "${JOBS:-8}" --junitxml="$OUT/kernels.xml" \
    tests/cuda --ignore=tests/cuda/test_device.py
}

calls() {
  step calls 300 env GQALLREDUCE_TEST_DEVICE=cuda "${PYTEST[@]}" -n "${JOBS:-8}" --junitxml="$OUT/calls.xml" \
    tests/cuda/test_device.py
}

# Only one rank writes the report.
RANK='[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" -ne 0 ] || set -- "$@" --junitxml="$REPORT"; exec "$@"'

# under_mpi NAME RANKS SECONDS TESTS...
under_mpi() {
  local name=$1 ranks=$2 seconds=$3
  shift 3
  eval "$("$PYTHON" -c '
import sys
sys.path.insert(0, "tests")
from conftest import LAUNCH
print(*(f"export {name}={value}" for name, value in LAUNCH.items()), sep="\n")')"
  REPORT=$OUT/$name-$ranks.xml GQALLREDUCE_TEST_DEVICE=cuda step "$name-$ranks" "$seconds" \
    mpirun -n "$ranks" bash -c "$RANK" rank "${PYTEST[@]}" --with-mpi "$@"
}

mpi() {
  local ranks
  for ranks in 1 2 4; do
    under_mpi mpi "$ranks" 150 tests/mpi/test_{devices,reducer_on_devices,bench_on_gpu}.py
  done
}

torch() {
  local ranks
  for ranks in 1 2; do
    under_mpi torch "$ranks" 120 tests/mpi/test_torch.py tests/mpi/test_torch_{optimizers,local,local_ends,ddp}.py
  done
}

# sanitized TOOL SECONDS TESTS...
sanitized() {
  local tool=$1 seconds=$2
  shift 2
  GQALLREDUCE_TEST_DEVICE=sanitized step "$tool" "$seconds" \
    compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no --print-limit 20 \
    "${PYTEST[@]}" -x --junitxml="$OUT/$tool.xml" "$@"
}

# Arbitrary bytes and whole calls under memcheck alone.
sanitize() {
  sanitized memcheck 400 tests/cuda -k "races or few_values or any_bytes or faults or small_sizes or leading_dimension"
  sanitized racecheck 150 tests/cuda -m races
  sanitized synccheck 60 tests/cuda -m races
  sanitized initcheck 90 tests/cuda/test_device.py -k "small_sizes or other_dtypes"
}

: >"$OUT/log"
if ! "$PYTHON" - <<'END' 2>&1 | tee -a "$OUT/log"; then
import sys
from gqallreduce.backends.cuda import runtime, sources
from gqallreduce.errors import Error
try:
    device = runtime.CupyRuntime(0)
except Error as problem:
    sys.exit(f"skipped: {problem}")
print(f"{device.name}, {device.architecture}, {device.memory >> 20} MiB; CuPy {device._cupy.__version__}")
with device.active():
    for family in sources.FAMILIES:  # to where CuPy keeps what it compiles, once for all processes
        sources.machine_code(family)
END
  grep -q '^skipped: ' "$OUT/log"
  exit
fi

for part in "${@:-kernels}"; do "$part"; done
printf '%s\n' "${results[@]}" | tee -a "$OUT/log"
[[ "${results[*]}" != *BAD* ]]

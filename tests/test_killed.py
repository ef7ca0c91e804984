"""A rank that is killed at an instruction of a call: the others raise TimeoutError in time, and go on without it.

Open MPI leaves the other processes alone if it is asked to; MPICH ends them too.
"""

import json

import pytest
import scripts

SECONDS = 1.0
SCRIPT = """
import json, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce import _kernels

comm, scheme, number, dies = MPI.COMM_WORLD, {scheme!r}, {number}, MPI.COMM_WORLD.size - 1
allreduce = gq.Allreduce(scheme, comm=comm, timeout=60)
values = np.random.default_rng(comm.rank).standard_normal(4000).astype(np.float32)
allreduce(values.copy(), key="w")
allreduce.timeout = {seconds}
before = allreduce.residual("w").tobytes()
comm.Barrier()
if comm.rank == dies:
    _kernels.stop_at_instruction(number, signal.SIGKILL)
began, said = time.perf_counter(), None
try:
    allreduce(values.copy(), key="w")
except gq.TimeoutError as error:
    said = error.ranks
seconds = time.perf_counter() - began
kept = allreduce.residual("w").tobytes() == before
# MPI_Comm_create_group needs those alone that are in the new communicator.
alive = comm.Create_group(comm.group.Excl([dies]))
ones = np.ones(4000, np.float32)
others = gq.Allreduce(scheme, comm=alive, timeout=60, verify=1)
others(values, key="w")  # compares replicas
gq.Allreduce("raw", comm=alive, timeout=60)(ones)
report = [sorted(said or []), seconds, kept, bool((ones == alive.size).all())]
"""
END = """
os._exit(0)  # MPI_Finalize waits for all ranks
"""


@pytest.mark.parametrize(
    ("scheme", "number"),
    [
        ("direct/onebit/ef", 1),
        ("direct/onebit/ef", 8),
        pytest.param("direct/onebit/ef", 5, marks=pytest.mark.slow),
        pytest.param("ring/qsgd(bits=4)/ef", 3, marks=pytest.mark.slow),
        pytest.param("allgather/adaptive/ef", 2, marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on_without_a_rank_that_was_killed(tmp_path, scheme, number):
    if not scripts.is_open_mpi():
        pytest.skip("MPICH ends the whole job when one of its processes is killed")
    script = SCRIPT.format(scheme=scheme, number=number, seconds=SECONDS)
    # PRRTE of Open MPI 5 and the older ORTE both know the option.
    done = scripts.launch(tmp_path, script, 3, 60, ["--enable-recovery"], END)
    assert not (tmp_path / "2.json").exists(), "the third rank went on"
    named = set()
    for rank in range(2):
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        ranks, seconds, kept, right = json.loads((tmp_path / f"{rank}.json").read_text())
        assert ranks, "no timeout"
        named.update(ranks)
        assert seconds < SECONDS + 2
        assert kept, "the residual changed in a call that failed"
        assert right
    assert 2 in named  # by a rank that waited for it; another may have waited for that one

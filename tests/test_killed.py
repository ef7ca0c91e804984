"""A rank that is killed at an instruction of a call: the others raise TimeoutError in time, and go on without it.

The launchers of Open MPI and MPICH end the others too, unless they are asked not to; now and then
MPICH's does it even so.
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

signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPICH's launcher sends it to the ranks that are left
os.environ["GQALLREDUCE_EXPOSE"] = "1"
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


@pytest.mark.parametrize(
    ("scheme", "number"),
    [
        ("direct/onebit/ef", 1),
        ("direct/onebit/ef", 8),
        ("direct/raw/ef", 8),
        pytest.param("direct/onebit/ef", 5, marks=pytest.mark.slow),
        pytest.param("ring/qsgd(bits=4)/ef", 3, marks=pytest.mark.slow),
        pytest.param("allgather/adaptive/ef", 2, marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on_without_a_rank_that_was_killed(tmp_path, scheme, number):
    script = SCRIPT.format(scheme=scheme, number=number, seconds=SECONDS)
    # PRRTE of Open MPI 5 and the older ORTE both know the first option, MPICH's Hydra the other.
    option = "--enable-recovery" if scripts.is_open_mpi() else "-disable-auto-cleanup"
    for _ in range(8):
        done = scripts.launch(tmp_path, script, 3, 60, [option], scripts.WITHOUT_FINALIZE)
        if (tmp_path / "0.json").exists() or scripts.is_open_mpi():
            break
    else:
        pytest.skip("MPICH's launcher ended the other ranks each time, though it was asked not to")
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

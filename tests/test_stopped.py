"""A rank whose process stops at an instruction is to the others as one that has died: they raise TimeoutError in time.
When it goes on, its own call ends too, and then a new object works. One mpirun tries all instructions of a program.
"""

import pytest
import scripts

SECONDS = 0.4
SCRIPT = """
import json, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce import _kernels

os.environ["GQALLREDUCE_EXPOSE"] = "1"
comm, timeout, scheme, every = MPI.COMM_WORLD, {seconds}, {scheme!r}, {every}
stopping, pids = comm.size - 1, comm.allgather(os.getpid())
report = []

def attempt(allreduce):
    began, array = time.perf_counter(), np.ones(4000, np.float32)
    try:
        allreduce(array, key="w")
        said = None
        assert (array == comm.size).all()
    except gq.Error as error:
        array.fill(7)  # a rank that reads it now does not return a sum
        said = type(error).__name__, list(getattr(error, "ranks", ()))
    return said, time.perf_counter() - began

def meet():
    "All ranks; one that has stopped, or does so now, goes on."
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.005)
        if comm.rank == 0:
            os.kill(pids[stopping], signal.SIGCONT)

def make():
    "An object that has made a call; from now on it does not wait long."
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=60)
    assert attempt(allreduce)[0] is None
    allreduce.timeout = timeout
    return allreduce

plan = next(iter(make().plans._plans.values()))
for number in range(1, comm.bcast(plan.lanes * len(plan.program), stopping) + 1, every):
    allreduce = make()
    meet()
    if comm.rank == stopping:
        _kernels.stop_at_instruction(number)
    report.append((number, *attempt(allreduce)))
    _kernels.stop_at_instruction(0)
    meet()
make()
"""


@pytest.mark.parametrize(
    ("scheme", "every", "least"),
    [
        ("direct/onebit/ef", 1, 1 / 3),
        ("direct/raw", 1, 1 / 3),
        pytest.param("ring/qsgd(bits=4)", 3, 1 / 3, marks=pytest.mark.slow),
        pytest.param("recursive_doubling/terngrad", 1, 1 / 9, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_stops_at_any_instruction(tmp_path, scheme, every, least):
    """least: share of the instructions at which the others must time out. In recursive doubling the third of 3 ranks
    sends once, at its start; after that the others do not need it.
    """
    reports = scripts.run(tmp_path, SCRIPT.format(seconds=SECONDS, scheme=scheme, every=every), 3, 90)
    stopped, timed_out = len(reports) - 1, 0
    for found in zip(*reports, strict=True):
        others = [(said, seconds) for number, said, seconds in found[:stopped]]
        assert all(said is None or said[0] == "TimeoutError" for said, _ in others), found
        assert all(seconds < SECONDS + 2 for _, seconds in others), found
        named = {rank for said, _ in others if said for rank in said[1]}
        assert not any(said for said, _ in others) or stopped in named, found
        timed_out += any(said for said, _ in others)
        assert found[stopped][1] is None or found[stopped][1][0] in ("TimeoutError", "Error"), found
    assert timed_out >= least * len(reports[0])

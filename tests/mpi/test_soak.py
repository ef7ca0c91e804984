"""Some seconds of random calls under MPI, and what the benchmark does where something differs."""

import argparse

import numpy as np
import pytest

from gqallreduce.cli import report, soak

pytestmark = pytest.mark.mpi


def test_a_short_soak_finds_nothing(comm, folder):
    arguments = argparse.Namespace(minutes=0.03, seed=7, output=str(folder / "soak"))
    assert soak.run_on(comm, arguments) == 0
    if comm.rank == 0:
        (row,) = report.read(folder / "soak.jsonl")[1]
        assert row["calls"] > 10
        assert row["values"] > 0


@pytest.mark.parametrize("what", ["sum", "residual"])
def test_a_difference_is_an_error(comm, what):
    """Of one bit, on one rank."""
    own = comm.Dup()
    pair = soak.Pair(own, "direct/onebit/ef", False, 0)
    arrays = [np.ones(100, np.float32) * (rank + 1) for rank in range(comm.size)]
    made = soak.Soak.__new__(soak.Soak)
    made.comm, made.calls, made.values = comm, 0, 0
    pair.forms["w"] = (100,), "float32", "C"
    mine = arrays[comm.rank].copy()

    def call():
        result = pair.real(mine, key="w")
        if what == "sum":
            result.view(np.uint32)[17] ^= 1
        else:
            pair.oracle.memory[comm.rank].residual("w").view(np.uint32)[17] ^= 1
        return result

    with pytest.raises(AssertionError, match="another sum of 'w'" if what == "sum" else "another residual of 'w'"):
        made._compare(pair, call, arrays, "w")
    pair.real.close()
    own.Free()

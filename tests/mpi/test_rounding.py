"""Under MPI one rank's floating-point environment changes no bit on any rank, and NumPy's error state no error."""

import numpy as np
import pytest
from float_control import WORDS, set_in_this_thread
from ranks import TIMEOUT, Oracle, carrying, everywhere, inputs, pairs, seen

import gqallreduce as gq
from gqallreduce import _kernels

pytestmark = pytest.mark.mpi
SHAPE = (6, 35)


def tiny(size, dtype, step):
    """Numbers about the end of the normal ones of float32, and for float64 of its own as well."""
    arrays = inputs(size, SHAPE, dtype, step=step)
    for array in arrays:
        array *= array.dtype.type(2.0**-127)
        if dtype == "float64":
            array[::2] *= 2.0**-896
    return arrays


@carrying(pairs(True))
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", WORDS)
def test_one_rank_that_computes_otherwise_gets_the_same_bits(comm, scheme, dtype, name):
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, average=True)
    oracle = Oracle(comm, scheme, average=True)
    found, expected = [], []
    for step in range(2):
        arrays = tiny(comm.size, dtype, step)
        expected.append(oracle(arrays))
        with set_in_this_thread(WORDS[name] if comm.rank == 0 else _kernels.USUAL_FLOAT_CONTROL):
            found.append(seen(allreduce, arrays[comm.rank].copy()))
    everyone = comm.allgather([result for result, *_ in found])
    assert found == expected
    assert all(each == everyone[0] for each in everyone)


@pytest.mark.mpi(min_size=2)
@carrying([scheme for scheme in pairs(True) if "/threshold" not in scheme])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_overflow_is_named_although_numpy_is_to_raise(comm, scheme, dtype):
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    too_large = [np.full(SHAPE, 0.9 * np.finfo(dtype).max, dtype) for _ in range(comm.size)]
    expected = oracle.error(too_large)
    with np.errstate(all="raise"):
        kind, said = everywhere(comm, allreduce, too_large[comm.rank].copy(), key="w")
        assert (kind, tuple(said.values())) == (gq.NonFiniteError, expected)
        good = inputs(comm.size, SHAPE)
        assert seen(allreduce, good[comm.rank].copy()) == oracle(good)

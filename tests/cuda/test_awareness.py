"""The MPI is asked whether it takes GPU memory, in the way its version can answer."""

import ctypes
from types import SimpleNamespace

import pytest

from gqallreduce.backends.cuda import awareness


def mpich(supported: bool, error: int = 0):
    """A library with MPICH's question; the one that it shares with Open MPI aborts in older versions."""
    asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int))

    def answer(kind, flag):
        assert kind == 0  # MPIX_GPU_SUPPORT_CUDA
        flag[0] = supported
        return error

    def abort():
        raise AssertionError("asked what MPICH 4.0 aborts in")

    return SimpleNamespace(MPIX_GPU_query_support=asked(answer), MPIX_Query_cuda_support=abort)


def open_mpi(answer: int):
    return SimpleNamespace(MPIX_Query_cuda_support=ctypes.CFUNCTYPE(ctypes.c_int)(lambda: answer))


@pytest.mark.parametrize(
    ("library", "aware"),
    [
        (open_mpi(1), True),
        (open_mpi(0), False),
        (mpich(True), True),
        (mpich(False), False),
        (mpich(True, error=1), False),
        (SimpleNamespace(), False),
    ],
    ids=["openmpi with", "openmpi without", "mpich with", "mpich without", "mpich fails", "another MPI"],
)
def test_each_mpi_is_asked_in_its_way(library, aware):
    assert awareness._says_so(library) is aware

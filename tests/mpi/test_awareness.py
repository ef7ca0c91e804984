"""The MPI that runs the tests can be asked whether it takes GPU memory."""

import ctypes

import pytest
from mpi4py import MPI

from gqallreduce.backends.cuda import awareness


@pytest.mark.mpi(min_size=1)
def test_the_library_that_mpi4py_loaded_answers_alike_on_all_ranks(comm):
    library = ctypes.CDLL(MPI.__file__)
    assert any(hasattr(library, name) for name in ("MPIX_Query_cuda_support", "MPIX_GPU_query_support"))
    answers = comm.allgather(awareness.mpi_is_cuda_aware())
    assert answers in ([True] * comm.size, [False] * comm.size)

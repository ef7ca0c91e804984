"""Does the MPI take pointers to GPU memory? Asked of the library that mpi4py loaded.

Source: MPICH 4, mpi.h and gpu query (`MPIX_GPU_SUPPORT_CUDA` is 0; Cray's MPICH has the same); Open MPI 5, mpi-ext.h.
"""

from __future__ import annotations

import ctypes

_MPIX_GPU_SUPPORT_CUDA = 0


def mpi_is_cuda_aware() -> bool:
    """What the MPI says once it is initialised; False where it cannot be asked."""
    from mpi4py import MPI

    if not MPI.Is_initialized() or MPI.Is_finalized():
        return False
    try:
        return _says_so(ctypes.CDLL(MPI.__file__))  # finds what that file is linked with
    except OSError:
        return False


def _says_so(library) -> bool:
    """MPICH's question first: its older versions abort in the one they share with Open MPI."""
    ask = getattr(library, "MPIX_GPU_query_support", None)
    if ask is not None:
        answer = ctypes.c_int(0)
        ask.restype, ask.argtypes = ctypes.c_int, (ctypes.c_int, ctypes.POINTER(ctypes.c_int))
        return ask(_MPIX_GPU_SUPPORT_CUDA, ctypes.byref(answer)) == 0 and answer.value != 0
    ask = getattr(library, "MPIX_Query_cuda_support", None)
    return ask is not None and ask() == 1

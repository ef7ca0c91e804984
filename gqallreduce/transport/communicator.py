"""What `comm` may be: an intracommunicator of mpi4py, or None for COMM_WORLD."""

from __future__ import annotations

from mpi4py import MPI

from gqallreduce.errors import Error

FINALIZED = "MPI_Finalize was called: no call can be made, or waited for, any more; wait for all requests before it"


def require_intracommunicator(comm) -> MPI.Intracomm:
    """`comm`, or COMM_WORLD for None; local. TypeError for no intracommunicator, ValueError for COMM_NULL.

    Error after MPI_Finalize.
    """
    if MPI.Is_finalized():
        raise Error(FINALIZED)
    if comm is None:
        return MPI.COMM_WORLD
    expected = "expected an mpi4py communicator (mpi4py.MPI.Intracomm), or None for COMM_WORLD"
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"got comm of type {type(comm).__name__}, {expected}")
    if comm == MPI.COMM_NULL:
        raise ValueError(f"got comm COMM_NULL, which no rank belongs to, or one that was freed; {expected}")
    if comm.is_inter:
        raise TypeError(f"got comm an intercommunicator, {expected}: comm.Merge() makes one of both groups")
    return comm

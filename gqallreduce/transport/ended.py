"""Processes of which the MPI says that they have ended: User-Level Failure Mitigation (ULFM), where it is switched on.

Open MPI 5 has it with `mpirun --with-ft ulfm`. Without it an MPI waits for a process that has ended, or ends the job.
"""

from __future__ import annotations

import time

from mpi4py import MPI

LEARNS = 0.5  # seconds in which an MPI that has told of an error learns which process has ended


def ended_ranks(comm) -> frozenset[int]:
    """The ranks of a communicator that are known to have ended; none where the MPI does not tell."""
    try:
        failed = comm.Get_failed()
    except (AttributeError, NotImplementedError, MPI.Exception):  # mpi4py 4.0, an older MPI
        return frozenset()
    everyone = comm.Get_group()
    try:
        return frozenset(MPI.Group.Translate_ranks(failed, list(range(failed.size)), everyone))
    finally:
        failed.Free()
        everyone.Free()


def ended_after(comm, codes: list[int]) -> frozenset[int]:
    """`ended_ranks` after errors of MPI's: if one may come from a process that has ended, once it is known which."""
    classes, until = {MPI.Get_error_class(code) for code in codes}, time.perf_counter() + LEARNS
    suspected = not classes.isdisjoint({MPI.ERR_PROC_FAILED, MPI.ERR_IN_STATUS})
    while not (ended := ended_ranks(comm)) and suspected and time.perf_counter() < until:
        MPI.COMM_SELF.Iprobe()  # MPI learns of it in its own calls
    return ended

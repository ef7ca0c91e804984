"""Processes of which the MPI says that they have ended: User-Level Failure Mitigation (ULFM), where it is switched on.

Open MPI 5 has it with `mpirun --with-ft ulfm`. Without it an MPI waits for a process that has ended, or ends the job.
"""

from __future__ import annotations

from mpi4py import MPI


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


def acknowledge(comm) -> frozenset[int]:
    """`ended_ranks`; from now on MPI looks for messages of any rank as if these had never been."""
    ended = ended_ranks(comm)
    if ended:
        comm.Ack_failed(len(ended))
    return ended

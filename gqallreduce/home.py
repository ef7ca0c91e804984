"""What belongs to a communicator: its Link, and the objects that `quantized_allreduce` has made for it.

Kept as an MPI attribute that a `Dup` by the user does not copy. Nothing is freed from a delete callback: MPI may be
half gone by then.
"""

from __future__ import annotations

from mpi4py import MPI

from gqallreduce.link import Link

_keyval = None


class Home:
    """One per communicator."""

    def __init__(self):
        self.link: Link | None = None
        self.cached: dict[tuple, object] = {}

    def connect(self, comm, timeout: float) -> Link:
        """The Link; a new one (collective) at first, and after the old one was broken by an aborted call."""
        if self.link is None or self.link.broken:
            self.link = Link(comm, timeout)
        return self.link


def home(comm, create: bool = True) -> Home | None:
    """The communicator's Home; local."""
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval()
    found = comm.Get_attr(_keyval)
    if found is None and create:
        found = Home()
        comm.Set_attr(_keyval, found)
    return found

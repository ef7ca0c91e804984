"""What belongs to a communicator: its control channel, its Link, the objects that `quantized_allreduce` has made.

Kept as an MPI attribute that a `Dup` by the user does not copy. Its delete callback may not call MPI: what is to be
freed then is put aside, and freed when the next object is made.
"""

from __future__ import annotations

import weakref

from mpi4py import MPI

from gqallreduce.control import Control, Offer, duplicate
from gqallreduce.errors import Error
from gqallreduce.failure import explain, named
from gqallreduce.hashing import hash64
from gqallreduce.link import Link
from gqallreduce.message import ForeignFrame
from gqallreduce.waiting import tidy

_keyval = None
_to_free: list[Control] = []


class Home:
    """One per communicator.

    group
        a hash of the communicator's ranks as ranks of COMM_WORLD: part of the random streams.
    cached
        (scheme, average) -> Allreduce.
    """

    def __init__(self, comm):
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self._duplicates: list[tuple] = []  # that of the control channel
        self.control: Control | None = None
        self.link: Link | None = None
        self._left: Link | None = None  # the one before, or the last one after all objects were closed
        self.cached: dict[tuple, object] = {}
        self.freed, self._open = False, {}  # id -> weak reference
        self.group = _group(comm)

    def enter(self, owner, timeout: float) -> None:
        """Make the Link ready for one more object; collective."""
        self._meet(timeout)
        self._open = {key: each for key, each in self._open.items() if each() is not None}
        self._open[id(owner)] = weakref.ref(owner)

    def leave(self, owner) -> None:
        """One object less; with the last one the Link goes."""
        self._open.pop(id(owner), None)
        if not any(each() is not None for each in self._open.values()):
            self._drop()

    def connect(self, timeout: float) -> Link:
        """The Link for a call, which is made anew, by all ranks, if it is broken."""
        if self.freed:
            raise Error("the communicator was freed; make a new object on another one")
        if self.link is None or self.link.broken:
            self._meet(timeout)
        return self.link

    def notice(self, timeout: float) -> None:
        """If another rank gave up the last call, which succeeded here, its object refuses further calls."""
        if self.freed or self.control is None:
            return
        self.control.read()
        for link in (self._left, self.link):
            ended = None if link is None else link.ended_elsewhere()
            if ended is not None and ended[0] is not None:
                owner, abort = ended
                foreign = ForeignFrame(abort.rank, abort)
                owner.fail(explain(foreign, self.rank, timeout, "the call before, which succeeded on this rank"))

    def _meet(self, timeout: float) -> None:
        collect()
        try:
            if self.size > 1:
                self._meet_others(timeout)
            else:
                self.link = Link(self._comm, 1, None, timeout)
        except ForeignFrame as foreign:
            raise explain(foreign, self.rank, timeout, "the making of an object") from None
        except MPI.Exception as error:
            raise named(error, "the making of an object") from error

    def _meet_others(self, timeout: float) -> None:
        if self.control is None:
            if not self._duplicates:
                duplicate(self._comm, self._duplicates)
            self.control = Control(self.rank, self.size, *self._duplicates[0])
        self.notice(timeout)
        known = self.link or self._left
        if known is not None and self.control.abort_of(known.generation):
            known.broken = True
        if known is None:
            offer = Offer(0, 0, False, False)
        else:
            sound = not known.broken
            offer = Offer(known.generation, known.calls, sound and known is self.link, sound)
        generation, comm = self.control.meet(offer, timeout)
        self.notice(timeout)  # of what came meanwhile
        if comm is None:
            return
        self._drop()
        try:
            self.link = Link(comm, generation, self.control, timeout)
        except BaseException:
            self.control.give_up(generation)
            raise

    def _drop(self) -> None:
        """Free the Link's communicator, unless it is broken.

        On a broken one there may be messages that nothing received. They would match receives on a new communicator to
        which the MPI gives the same internal number, as MPICH does.
        """
        if self.link is not None:
            self._left, self.link = self.link, None
        left = self._left
        if left is not None and self.control is not None and not left.broken and left.comm != MPI.COMM_NULL:
            left.comm.Free()

    def disown(self) -> None:
        """The user frees the communicator."""
        self.freed, self.link, self._left = True, None, None
        self.cached.clear()
        if self.control is not None:
            _to_free.append(self.control)


def home(comm, create: bool = True) -> Home | None:
    """The communicator's Home; local."""
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, found: found.disown())
    found = comm.Get_attr(_keyval)
    if found is None and create:
        found = Home(comm)
        comm.Set_attr(_keyval, found)
    return found


def collect() -> None:
    """Free the duplicates of communicators that the user has freed, and forget requests that are complete."""
    tidy()
    _to_free[:] = [control for control in _to_free if not control.release()]


def _group(comm) -> int:
    mine, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(mine, list(range(comm.size)), world)
    mine.Free()
    world.Free()
    return hash64(*ranks)

"""What belongs to a communicator: its control channel, its Link, the objects that `quantized_allreduce` has made.

Kept as an MPI attribute that a `Dup` by the user does not copy. Its delete callback may not call MPI: what is to be
freed then is put aside, and freed when the next object is made.
"""

from __future__ import annotations

from mpi4py import MPI

from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import Error
from gqallreduce.hashing import hash64
from gqallreduce.transport.control import Control, Offer, duplicate
from gqallreduce.transport.failure import explain, named
from gqallreduce.transport.link import Link
from gqallreduce.transport.waiting import tidy

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
        self.cached: dict[tuple, object] = {}
        self.freed = False
        self.group = _group(comm)

    def enter(self, owner, timeout: float) -> int:
        """Make the Link ready for one more object; collective. Returns the object's number, alike on all ranks.

        It counts as a call, so that the number of calls on this duplicate tells the objects apart.
        """
        self.meet(timeout)
        self.link.begin(owner)
        return hash64(self.link.generation, self.link.calls)

    def connect(self, timeout: float) -> Link:
        """The Link for a call, which is made anew, by all ranks, if it is broken."""
        if self.freed:
            raise Error("the communicator was freed; make a new object on another one")
        if self.link is None or self.link.broken:
            self.meet(timeout)
        return self.link

    def notice(self, timeout: float) -> None:
        """If another rank gave up the last call, which succeeded here, mark the object of that call as unusable."""
        if self.freed or self.control is None:
            return
        self.control.read()
        ended = None if self.link is None else self.link.ended_elsewhere()
        if ended is not None and ended[0] is not None:
            owner, abort = ended
            foreign = ForeignFrame(abort.rank, abort)
            owner.fail(explain(foreign, self.rank, timeout, "the call before, which succeeded on this rank"))

    def meet(self, timeout: float) -> None:
        """Find that the Link is sound on all ranks, or make another; collective."""
        collect()
        try:
            if self.size > 1:
                self._meet_others(timeout)
            elif self.link is None:
                self.link = Link(self._comm, 1, None, timeout)
        except ForeignFrame as foreign:
            if self.link is not None:
                self.link.broken = True  # told once; the next attempt waits for the others
            raise explain(foreign, self.rank, timeout, "the making of an object") from None
        except MPI.Exception as error:
            raise named(error, "the making of an object") from error

    def _meet_others(self, timeout: float) -> None:
        if self.control is None:
            if not self._duplicates:
                duplicate(self._comm, self._duplicates)
            self.control = Control(self.rank, self.size, *self._duplicates[0])
        self.notice(timeout)
        known, offer = self.link, Offer(0, 0, False)
        if known is not None:
            offer = Offer(known.generation, known.calls, not known.broken)
        generation, comm = self.control.meet(offer, timeout)
        self.notice(timeout)  # of what came meanwhile
        if comm is None:
            return
        if known is not None:
            known.broken = True
        try:
            self.link = Link(comm, generation, self.control, timeout)
        except BaseException:
            self.control.give_up(generation)
            raise

    def disown(self) -> None:
        """The user frees the communicator."""
        self.freed, self.link = True, None
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

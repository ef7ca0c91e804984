"""What belongs to a communicator: its control channel, its Link, the objects that `quantized_allreduce` has made.

Kept as an MPI attribute that a `Dup` by the user does not copy. While MPI deletes it, MPI may not be called: what is to
be freed then is put aside, and freed when the next object is made.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter

from mpi4py import MPI

from gqallreduce import _kernels
from gqallreduce._kernels import Claim
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import Error, MismatchError
from gqallreduce.hashing import hash64
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.transport.call import Call
from gqallreduce.transport.communicator import FINALIZED
from gqallreduce.transport.control import Control, Offer, duplicate
from gqallreduce.transport.failure import explain, give_up, named, raise_from
from gqallreduce.transport.link import Link
from gqallreduce.transport.waiting import tidy

_keyval = None
_homes: weakref.WeakSet = weakref.WeakSet()
_to_free: list[tuple[Control, Link | None]] = []
_refusal = ""  # why no calls can be made any more
_FORKED = (
    "this process is a fork of one that uses MPI, which belongs to that one: make calls there, and begin workers by "
    "multiprocessing's 'spawn' if they need MPI"
)


class Home(_kernels.Home):
    """One per communicator.

    group
        a hash of the communicator's ranks as ranks of COMM_WORLD: part of the random streams.
    cached
        (scheme, average) -> Allreduce.
    What every call asks for is in the class of C (kernels/claims.pxi).
    """

    def __init__(self, comm):
        super().__init__()
        self._comm, self.rank, self.size = comm, comm.rank, comm.size
        self._duplicates: list[tuple] = []  # that of the control channel
        self.cached: dict[tuple, object] = {}
        self._objects: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # by their numbers
        self.group = _group(comm)
        _homes.add(self)

    def enter(self, owner, timeout: float) -> int:
        """Make the Link ready for one more object; collective. Returns the object's number, alike on all ranks.

        It counts as a call, so that the number of calls on this duplicate tells the objects apart.
        """
        self.meet(timeout)
        self.link.requests.refresh()
        self.link.begin(Call("the making of an object", owner))
        number = hash64(self.link.generation, self.link.calls)
        self._objects[number] = owner
        return number

    # --- calls ---

    def run(self, call: Call, timeout: float) -> None:
        """Until the call is done. What ends it and all others under way is raised, and theirs."""
        try:
            self.link.progress.run(call, timeout)
        except BaseException as error:
            raise_from(give_up(self.link, error, call, timeout), error)

    @usual_arithmetic()
    def finish(self, timeout: float, owner=None) -> None:
        """Until no call is under way, or none of an object. What goes wrong is raised where those are waited for."""
        while self.link is not None:
            call = next((each for each in self.link.progress.calls if owner in (None, each.owner)), None)
            if call is None:
                return
            with contextlib.suppress(Exception):
                self.run(call, timeout)

    # --- one thread at a time, of one process ---

    def claim_after_others(self) -> Claim:
        """Error if a call is being made on this communicator."""
        if self.claims.closed:
            raise Error(_refusal)
        mine, other = self.claims.take()
        while mine is None:
            if other.thread != threading.get_ident() or other.released or _is_executing(other):
                raise Error(
                    "another thread, or a function that this one has interrupted, makes a call on this communicator; "
                    "ranks could not agree on an order: call from one thread, or give each thread its own comm.Dup()"
                )
            mine, other = self.claims.take(other)
        return mine

    def named(self, error: BaseException, call: str) -> BaseException:
        """The error itself, or for one of MPI's one of ours."""
        return named(error, call, self._comm)

    def connect(self, timeout: float, caller) -> Link:
        """The Link for a call of an object, which is made anew, by all ranks, if it is broken."""
        if self.freed:
            raise Error("the communicator was freed; make a new object on another one")
        if self.link is None or self.link.broken:
            self.meet(timeout, caller)
        return self.link

    def notice(self, timeout: float, within: float = 0.0, caller=None) -> None:
        """If another rank gave up calls which succeeded here, mark their objects as unusable.

        If calls are under way here, they are given up too: their error is raised. `within`: seconds in which looking
        once is enough: where nothing has come an MPI that yields lets another process have the core. `caller`: the
        object whose call is about to begin.
        """
        if self.freed or self.control is None:
            return
        now = perf_counter()
        if now - self.noticed < within:
            return
        self.noticed = now
        self.control.read()
        if caller is not None and self.link is not None:
            self.link.look_ahead(caller)
        ended, lost = [] if self.link is None else self.link.ended_elsewhere(), None
        if self.link is not None and self.link.broken and self.link.progress.calls:
            abort = self.control.abort_of(self.link.generation)
            lost = give_up(self.link, ForeignFrame(abort.rank, abort), self.link.progress.calls[0], timeout)
        self._end_objects(ended, timeout)
        if lost is not None:
            raise lost

    def _end_objects(self, ended: list[tuple], timeout: float) -> None:
        """Objects of which a rank gave up calls that succeeded here, or that have not begun here."""
        for owner, abort in ended:
            foreign = ForeignFrame(abort.rank, abort)
            owner.fail(explain(foreign, self._comm, timeout, "a call before, or had not begun the one given up"))

    def meet(self, timeout: float, caller=None) -> None:
        """Find that the Link is sound on all ranks, or make another; collective.

        caller
            the object whose call begins with it; None where an object is made.
        MismatchError on all ranks if some make an object and others a call.
        """
        collect()
        try:
            if self.size > 1:
                self._meet_others(timeout, caller)
            elif self.link is None or self.link.broken:
                generation = 0 if self.link is None else self.link.generation
                self.link = Link(self._comm, generation + 1, None, timeout)
        except ForeignFrame as foreign:
            if self.link is not None:
                self.link.broken = True  # told once; the next attempt waits for the others
            raise explain(foreign, self._comm, timeout, "the making of an object") from None
        except MPI.Exception as error:
            raise self.named(error, "the making of an object") from error

    def _meet_others(self, timeout: float, caller) -> None:
        if self.control is None:
            if not self._duplicates:
                duplicate(self._comm, self._duplicates)
            self.control = Control(self.rank, self.size, *self._duplicates[0])
        self.notice(timeout)
        known, offer = self.link, Offer(0, 0, False)
        if known is not None:
            offer = Offer(known.generation, known.calls, not known.broken)

        def look() -> None:
            """A rank whose object cannot be used any more does not come: then nor can that of this rank be."""
            self._end_objects([] if known is None else known.ended_elsewhere(), timeout)
            if caller is not None:
                caller.require_usable()

        generation, comm = self.control.meet(offer, timeout, look)
        self.notice(timeout)  # of what came meanwhile
        if comm is None:
            return
        if known is not None:
            known.broken = True
        making = caller is None
        try:
            self.link = Link(comm, generation, self.control, timeout, making, self._objects)
        except BaseException:
            self.control.give_up(generation)
            raise
        self.control.read()
        self._end_objects([] if known is None else known.ended_elsewhere(), timeout)  # all have told of it by now
        if len(self.link.making) > 1:
            others = {self.rank} if making else self.link.others
            raise MismatchError("frame", others, "some ranks make an object, others a call: recover on all alike")

    def disown(self) -> None:
        """The user frees the communicator."""
        if self.link is not None:
            self.link.progress.take_back(for_good=True)
        if self.control is not None:
            _to_free.append((self.control, self.link))
        self.freed, self.link = True, None
        self.cached.clear()


def _is_executing(claim: Claim) -> bool:
    """Is the function that made this claim, in this thread, not over yet?"""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_locals.get("claim") is claim and frame.f_code is not _is_executing.__code__:
            return True
        frame = frame.f_back
    return False


class _Attribute:
    """The value of an MPI attribute. MPI alone holds it, so it is dropped when MPI deletes the attribute.

    Instead of a delete callback: before it calls one, mpi4py asks MPI for the topology of the communicator. MPICH
    (5.0.2) looks for that among the attributes, of which it has freed those set later: at times a segmentation fault.
    """

    __slots__ = ("_deleted", "home")

    def __init__(self, deleted: Callable[[], None], home: Home | None = None):
        self._deleted, self.home = deleted, home

    def __del__(self):
        self._deleted()


def home(comm, create: bool = True) -> Home | None:
    """The communicator's Home; local."""
    global _keyval
    if _refusal:
        raise Error(_refusal)
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval()
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(), _Attribute(_before_finalize))
    attribute = comm.Get_attr(_keyval)
    if attribute is not None:
        return attribute.home
    if not create:
        return None
    found = Home(comm)
    comm.Set_attr(_keyval, _Attribute(found.disown, found))
    return found


def collect() -> None:
    """Free the duplicates of communicators that the user has freed, and on which no call is under way any more, and
    forget requests that are complete."""
    tidy()
    _to_free[:] = [
        (control, link) for control, link in _to_free if (link and link.progress.calls) or not control.release()
    ]


def _refuse(why: str) -> None:
    """All calls, from now on."""
    global _refusal
    _refusal = why
    for home in list(_homes):
        home.claims.closed = True


def _before_finalize() -> None:
    """MPI_Finalize begins by deleting the attributes of COMM_SELF: nothing of ours may call MPI any more."""
    for home in list(_homes):
        if home.link is not None:
            home.link.progress.take_back(for_good=True)
    _refuse(FINALIZED)


def _begin_as_child() -> None:
    """Calls under way, and their messages, are the parent's: nothing is waited for here, nor told to other ranks."""
    if MPI.Is_initialized():
        _refuse(_FORKED)
        _homes.clear()


os.register_at_fork(after_in_child=_begin_as_child)


@atexit.register
def _end_of_interpreter() -> None:
    """Calls that no one waited for cannot be finished: say so here, and tell the other ranks."""
    for home in [] if MPI.Is_finalized() else list(_homes):
        calls = [] if home.link is None else home.link.progress.calls
        if calls:
            names = ", ".join(call.name for call in calls)
            print(f"gqallreduce, rank {home.rank}: given up at exit, wait for their requests: {names}", file=sys.stderr)
            give_up(home.link, Error("the interpreter ends"), calls[0], 0)


def _group(comm) -> int:
    mine, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = MPI.Group.Translate_ranks(mine, list(range(comm.size)), world)
    mine.Free()
    world.Free()
    return hash64(*ranks)

"""A communicator of our own on which calls run: their numbers and tags, and how calls are given up.

A tag has the number of the call, the lane and, in the bits that are left, part of the call's signature.
So a message of another call never matches a receive: MPIs have been seen to write past a room that is too small for
what arrives. It is found by looking at what has come but was not asked for. The first exchange of a call (`FIRST`) is
of one size and has no signature in its tag, so that all calls that begin with one meet there.
"""

from __future__ import annotations

import os
import time

import numpy as np
from mpi4py import MPI

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import MismatchError, NonFiniteError, ReplicaError
from gqallreduce.hashing import hash64
from gqallreduce.scheduling.profile import Class, processor, usable_cores
from gqallreduce.scheduling.topology import Topology, apart
from gqallreduce.transport.call import Call
from gqallreduce.transport.control import Control
from gqallreduce.transport.exchange import FIRST, FIRST_WORDS, NAMES, PREPARE, Gather
from gqallreduce.transport.exposing import Introduction
from gqallreduce.transport.progress import Progress
from gqallreduce.transport.requests import Requests

# All ranks whose own calls are valid raise these together: the link stays usable.
ALIKE = (NonFiniteError, MismatchError, ReplicaError)
CALLS_MOST = 256  # under way at once
LOOKS = 32
_LANES = 16
_CALLS = 1024


class Link(_kernels.Link):
    """A duplicate of a communicator that only this package talks on. What every call asks for is in the class of C
    (kernels/link.pxi).

    generation
        which duplicate it is, counted from 1.
    objects
        number -> object, of all that are known on the communicator.
    topology, making
        where the ranks are; do they make an object, or a call, {True, False} if some do this and others that.
    requests
        MPI's of all calls under way.
    """

    def __init__(
        self, comm, generation: int, control: Control | None, timeout: float, making: bool = True, objects=None
    ):  # fmt: skip
        signatures = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // (_CALLS * _LANES)
        super().__init__(comm.rank, comm.size, _kernels.Numbers(_CALLS, _LANES, signatures))
        self.comm, self.generation, self.control = comm, generation, control
        self._told = False
        self.objects = {} if objects is None else objects
        self._probed = 0
        self._status = MPI.Status()
        self.requests = Requests(comm)
        self.progress = Progress(self.requests, self, threaded=not why_no_thread())
        self.topology, self.making = apart(1), frozenset([making])
        if control is not None:
            self.comm.Set_errhandler(MPI.ERRORS_RETURN)
            self.topology, self.making = self._meet(making, timeout)
            self.requests.set_topology(self.topology)

    def _meet(self, making: bool, timeout: float) -> tuple[Topology, frozenset[bool]]:
        """Which ranks share a host, by the names of their hosts, and what they came for: the same on all ranks.

        GQALLREDUCE_HOST is the name where that of the MPI is not to count. Ranks of a host also agree on whether they
        read each other's memory.
        """
        host = hash64(os.environ.get("GQALLREDUCE_HOST") or MPI.Get_processor_name())
        introduction = Introduction(self.requests.native, self.rank, self.size)
        words = np.array([host, making, *introduction.words], np.uint64)
        everyone = Gather(self.rank, self.size, NAMES, words)
        call = Call("the making of an object")
        call.number = 0
        self.progress.start(call, introduction.stages(everyone, lambda: everyone.found[:, 0].tolist()))
        try:
            self.progress.run(call, timeout)
        except BaseException:
            self.requests.give_up([call])
            raise
        names, came_for = everyone.found[:, :2].T.tolist()
        lowest: dict[int, int] = {}
        hosts = tuple(lowest.setdefault(name, rank) for rank, name in enumerate(names))
        return Topology(hosts), frozenset(map(bool, came_for))

    @property
    def jobs(self) -> Class:
        """Jobs like this one, of which there may be a profile."""
        ranks = tuple(sorted(map(len, self.topology.groups), reverse=True))
        return Class(mpi_text(), ranks, processor(), usable_cores())

    @property
    def others(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    # --- what the progress engine asks ---

    def alike(self, error: Exception) -> bool:
        """Do all ranks raise it together?"""
        return isinstance(error, ALIKE)

    def stage_ends(self, call: Call) -> None:
        """A late rank may have all its data although its peers gave up. MPI may deliver their aborts one at a time."""
        if call.owner is not None and self.size > 1 and time.perf_counter() - call.previous > call.owner.timeout:
            for _ in range(min(4 + 2 * self.size, LOOKS)):
                self.listen([])

    # --- calls ---

    def begin(self, call: Call) -> None:
        """The next call begins. No rank can have waited for it before the one before it began (`call.previous`)."""
        call.number = self.calls
        self.count(call.owner)
        call.previous, call.began = self.numbers.previous, self.numbers.began

    def ended_elsewhere(self) -> list[tuple]:
        """[(object, abort)] of calls that a peer gave up, the first of which has begun here: the link is broken. Once
        it is, also of those that will not begin here."""
        aborts = [abort for abort in self.control.aborts_of(self.generation) if self.broken or self._has_begun(abort)]
        self.broken |= bool(aborts)
        return [(owner, abort) for abort in aborts for owner in self.given_up_by(abort)]

    def given_up_by(self, abort: frame.Header) -> set:
        """The objects whose calls a peer gave up: as it names them, also where this rank has not begun these calls, and
        those whose calls have the same numbers here."""
        named = {self.objects.get(number) for number in self.control.named_by(abort)}
        return (named | self.owners_of(abort.step, frame.abort_of(abort)[2])) - {None}

    def disown(self, lost: set[int], abort: frame.Header) -> None:
        """Of calls that end by an abort here: where it names other objects, ranks have made different calls of that
        number, and this one has taken effect nowhere. Its object can go on."""
        named = self.control.named_by(abort)
        for number in lost:
            owner = self.numbers.owner(number)
            if named and owner is not None and owner.number not in named:
                self.numbers.forget_owner(number)

    def look_ahead(self, caller) -> None:
        """If a peer has given up the call that would be the next here, as one of other objects: the link is broken,
        since this rank does not make that call."""
        if self.progress.calls:
            return
        for abort in self.control.aborts_of(self.generation):
            named = self.control.named_by(abort)
            if abort.step == self.calls & frame.LARGEST_STEP and named and caller.number not in named:
                self.broken = True

    def _has_begun(self, abort: frame.Header) -> bool:
        return frame.is_before(abort.step, self.calls)

    def owners_of(self, first: int, more: int) -> set:
        """The objects of a call and of so many after it, as far as they have begun here."""
        first = self.calls - ((self.calls - first) & frame.LARGEST_STEP)  # an abort has it modulo 2^32
        numbers = range(max(first, self.calls - _CALLS, 0), min(first + more + 1, self.calls))
        return set(map(self.numbers.owner, numbers))

    def abort(self, reason: int, first: int, more: int, concerned: int | None = None) -> None:
        """Give a call up, and so many after it; tell all other ranks why, and which rank caused it (else this one).

        Once: what this rank gives up later it has not shared with any other.
        """
        if self._told:
            return
        self.broken = self._told = True
        if self.control is not None:
            concerned = self.rank if concerned is None else concerned
            numbers = {owner.number for owner in self.owners_of(first, more) - {None}} - {None}
            self.control.abort(self.generation, first, reason, concerned, more, sorted(numbers))

    def listen(self, calls: list[Call]) -> None:
        """ForeignFrame if a peer has given up a call that has begun here, or makes another one instead."""
        if self.control is None:
            return
        self.control.read()
        self.control.raise_refused()
        newest = self.calls - 1
        abort = self.control.abort_of(self.generation)
        if abort is not None and not frame.is_before(newest, abort.step):
            raise ForeignFrame(abort.rank, abort)
        for source, header in self.control.present.items():
            if header.signature == self.generation and not frame.is_before(newest, header.step):
                raise ForeignFrame(source)  # it waits to make an object, and has not made this call
        due = {call.number % _CALLS: call.data.signature for call in calls if call.data is not None}
        if due:
            carried = {call.number % _CALLS for call in calls if self.progress.carries_values(call)}
            self._look_for_other_calls(due, carried)

    def _look_for_other_calls(self, due: dict[int, int], carried: set[int]) -> None:
        """ForeignFrame if a peer begins another call with an exchange, or sent what is not of a call's signature, or
        asks for what must be known before the values of a call whose values are carried here.

        One unexpected message of a peer is enough to decide: all that it sends in one call has one signature.
        """
        status = self._status
        for number in due:
            if self.comm.Iprobe(MPI.ANY_SOURCE, self.tag(number, FIRST), status):
                words = np.zeros(FIRST_WORDS, np.uint64)
                self.comm.Recv([words, MPI.BYTE], status.Get_source(), self.tag(number, FIRST))
                raise ForeignFrame(status.Get_source(), invalid=bool(words[0]))
        for _ in range(min(LOOKS, self.size - 1)):
            self._probed += 1
            source = (self.rank + 1 + self._probed % (self.size - 1)) % self.size
            if self.comm.Iprobe(source, MPI.ANY_TAG, status):  # an exchange that has come just now is told next time
                rest, lane = divmod(status.Get_tag(), _LANES)
                signature, number = divmod(rest, _CALLS)
                if lane != FIRST and number in due and signature != due[number] % self.numbers.signatures:
                    raise ForeignFrame(source)
                if lane == PREPARE and number in carried:
                    raise ForeignFrame(source)


def mpi_text() -> str:
    """Name and version of the MPI library."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def why_no_thread() -> str:
    """Why no thread of ours calls MPI while the caller does; "" if one does."""
    progress = os.environ.get("GQALLREDUCE_PROGRESS", "thread")
    if progress not in ("thread", "calls"):
        raise ValueError(f"GQALLREDUCE_PROGRESS={progress!r}, expected thread or calls")
    if progress == "calls":
        return "GQALLREDUCE_PROGRESS=calls"
    multiple = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return "" if multiple else "this MPI may not be called by several threads (MPI.Query_thread())"

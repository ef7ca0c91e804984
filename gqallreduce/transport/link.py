"""A communicator of our own on which calls run: their count and tags, small exchanges, and how a call is given up.

A tag has the number of the call, the lane and, in the bits that are left, part of the call's signature.
So a message of another call never matches a receive: MPIs have been seen to write past a room that is too small for
what arrives. It is found by looking at what has come but was not asked for. The first exchange of a call (`FIRST`) is
of one size and has no signature in its tag, so that all calls that begin with one meet there.
"""

from __future__ import annotations

import time
import weakref

import numpy as np
from mpi4py import MPI

from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.hashing import hash64
from gqallreduce.transport.control import Control
from gqallreduce.transport.waiting import carry_out

REQUESTS = 64
FIRST, NAMES, MEASURE, NOT_FINITE, VERIFY = range(8, 13)  # lanes of exchanges; those of data are below
FIRST_WORDS = 20
_LANES = 16
_CALLS = 1024


class Link:
    """A duplicate of a communicator that only this package talks on.

    generation
        which duplicate it is, counted from 1.
    broken
        a call on it was given up half-way, here or elsewhere.
    near
        the ranks on this rank's host.
    began, previous
        when (by time.perf_counter) this call began, and the one before it: no rank can have waited for this call
        before that.
    """

    def __init__(self, comm, generation: int, control: Control | None, timeout: float):
        self.rank, self.size = comm.rank, comm.size
        self.comm, self.generation, self.control = comm, generation, control
        self.calls, self.began = 0, time.perf_counter()
        self.previous = self.began
        self.broken = False
        self._owners = _none, _none  # of the last two calls
        self._probed = 0
        self.statuses = [MPI.Status() for _ in range(REQUESTS)]
        self._signatures = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // (_CALLS * _LANES)
        self._slot = 0
        self.near = frozenset([0]) if control is None else self._same_host(timeout)

    def _same_host(self, timeout: float) -> frozenset[int]:
        """The ranks on this rank's host."""
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        host = np.array([hash64(MPI.Get_processor_name())], np.uint64)
        everyone = self.gather(self.tag(NAMES), host, timeout)[:, 0]
        return frozenset(np.flatnonzero(everyone == host).tolist())

    @property
    def others(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    # --- calls ---

    def begin(self, owner) -> None:
        """The next call begins, of the Allreduce `owner`."""
        self._slot = self.calls % _CALLS * _LANES
        self.calls, self.previous, self.began = self.calls + 1, self.began, time.perf_counter()
        self._owners = self._owners[1], weakref.ref(owner)

    def tag(self, lane: int, signature: int = 0) -> int:
        """The tag of a lane of this call: above the call, as much of its signature as fits."""
        return signature % self._signatures * _CALLS * _LANES + self._slot + lane

    def ended_elsewhere(self):
        """(object, abort) if a peer gave up a call that has ended here: then the link is broken. None otherwise."""
        abort = self.control.abort_of(self.generation)
        if abort is None or not frame.is_before(abort.step, self.calls):
            return None
        self.broken = True
        return self.owner_of(abort), abort

    def owner_of(self, abort: frame.Header):
        """The Allreduce whose call a peer gave up: that of this rank's last call, or of the one before it."""
        return self._owners[abort.step == (self.calls - 1) & frame.LARGEST_STEP]()

    def abort(self, reason: int, concerned: int | None = None) -> None:
        """Give this call up, and tell all other ranks why, and which rank caused it (by default this one)."""
        if not self.broken:
            try:
                if self.control is not None:
                    concerned = self.rank if concerned is None else concerned
                    self.control.abort(self.generation, self.calls - 1, reason, concerned)
            finally:
                self.broken = True

    def listen(self, tag: int | None = None) -> None:
        """ForeignFrame if a peer has given up this call or an earlier one, or makes another call instead.

        tag
            the tag of lane 0 of this call, once all that is to come for it has its signature.
        """
        self.control.read()
        call = self.calls - 1
        abort = self.control.abort_of(self.generation)
        if abort is not None and not frame.is_before(call, abort.step):
            raise ForeignFrame(abort.rank, abort)
        for source, header in list(self.control.present.items()):
            if header.signature == self.generation and not frame.is_before(call, header.step):
                del self.control.present[source]  # it will get this rank's abort, and send `present` again
                raise ForeignFrame(source)  # it waits to make an object, and has not made this call
        if tag is not None:
            self._look_for_other_calls(tag)

    def _look_for_other_calls(self, tag: int) -> None:
        """ForeignFrame if a peer begins another call with an exchange, or sent what is not of this call's signature.

        One unexpected message of a peer is enough to decide: all that it sends in one call has one signature.
        """
        status = self.statuses[0]
        if self.comm.Iprobe(MPI.ANY_SOURCE, self._slot + FIRST, status):
            words = np.zeros(FIRST_WORDS, np.uint64)
            self.comm.Recv([words, MPI.BYTE], status.Get_source(), self._slot + FIRST)
            raise ForeignFrame(status.Get_source(), invalid=bool(words[0]))
        for _ in range(min(REQUESTS, self.size - 1)):
            self._probed += 1
            source = (self.rank + 1 + self._probed % (self.size - 1)) % self.size
            if self.comm.Iprobe(source, MPI.ANY_TAG, status):  # an exchange that has come just now is told next time
                lane = status.Get_tag() % _LANES
                first = status.Get_tag() - lane
                if lane != FIRST and first != tag and first % (_CALLS * _LANES) == self._slot:
                    raise ForeignFrame(source)

    def sum(self, part: np.ndarray, datatype, timeout: float) -> None:
        """Sum an array in place over all ranks by MPI_Iallreduce."""
        operation = self.comm.Iallreduce, (MPI.IN_PLACE, [part, datatype])
        carry_out([operation], timeout, self.others, self.listen, part)

    # --- small exchanges ---

    def largest(self, tag: int, values: np.ndarray, timeout: float, call_tag: int | None = None) -> np.ndarray:
        """Element by element the largest value of all ranks, in ceil(log2 P) rounds."""
        found, step = values.copy(), 1
        while step < self.size:
            came = np.empty_like(found)
            self._swap(tag, step, found.copy(), came, timeout, call_tag)
            np.maximum(found, came, out=found)
            step *= 2
        return found

    def gather(self, tag: int, values: np.ndarray, timeout: float) -> np.ndarray:
        """The values of all ranks, a row each, in ceil(log2 P) rounds."""
        rows, known = np.zeros((self.size, len(values)), values.dtype), 1
        rows[0] = values  # row i is that of rank (this rank - i)
        while known < self.size:
            count = min(known, self.size - known)
            came = np.empty_like(rows[:count])
            self._swap(tag, known, rows[:count].copy(), came, timeout, None)
            rows[known : known + count] = came
            known += count
        return rows[(self.rank - np.arange(self.size)) % self.size]

    def _swap(self, tag: int, step: int, sent, came, timeout: float, call_tag: int | None) -> None:
        """Send to the rank `step` above and receive from the one `step` below."""
        source, to = (self.rank - step) % self.size, (self.rank + step) % self.size
        operations = [
            (self.comm.Irecv, ([came, MPI.BYTE], source, tag)),
            (self.comm.Isend, ([sent, MPI.BYTE], to, tag)),
        ]
        carry_out(operations, timeout, {source}, lambda: self.listen(call_tag), (sent, came), 1)


def _none() -> None:
    """A weak reference to nothing."""

"""The control channel of a communicator: short messages outside of any call, and the duplicates that calls run on.

It has a duplicate of the user's communicator to itself, made once and kept. On it travel frames of a header alone
(frame.py): abort, present, absent, meeting, go. They arrive in the order in which their sender sent them. The only
collective operation on it is MPI_Comm_idup. Each rank counts those that it has started, and finishes one that it left
before it starts the next, so that the n-th of one rank always meets the n-th of the others.

Ranks meet here to make an object and after an error. Rank 0 asks all to come, each rank says that it is present, and
when all are, rank 0 says which duplicate calls run on from now: the old one if it is sound on all ranks, else a new
one. A rank that gives up says that it is absent, and a later attempt begins anew. What an earlier attempt left behind
does no harm, whichever rank gave up, and where.
"""

from __future__ import annotations

from collections import deque

from mpi4py import MPI

from gqallreduce import frame
from gqallreduce.message import ForeignFrame
from gqallreduce.waiting import Deadline, abandon, finish

_TAG = 0


class Control:
    """A rank's end of the control channel.

    present
        at rank 0: source -> what the ranks that wait to meet said; elsewhere rank 0's, while it waits.
    """

    def __init__(self, comm):
        self.rank, self.size = comm.rank, comm.size
        self.present: dict[int, frame.Header] = {}
        self._aborts: dict[int, frame.Header] = {}
        self._go: frame.Header | None = None
        self._attempts, self._gave_up = 0, False
        self._buffer, self._outgoing = bytearray(frame.SIZE), deque()
        self._comm, self._request = _duplicate(comm)
        self._started, self._latest = 0, (MPI.COMM_NULL, MPI.REQUEST_NULL)  # duplicates: how many; the last one

    # --- messages ---

    def _send(self, peers, header: frame.Header) -> None:
        self._gave_up |= header.kind in (frame.ABORT, frame.ABSENT)
        self._outgoing.extend([(peer, header) for peer in peers])
        self._send_outgoing()

    def _send_outgoing(self) -> None:
        """What an exception keeps from being sent is sent when the channel is used again."""
        while self._outgoing:
            to, header = self._outgoing[0]
            buffer = bytearray(frame.SIZE)
            header.write(buffer)
            abandon([self._comm.Isend([buffer, frame.SIZE, MPI.BYTE], to, _TAG)], buffer)
            self._outgoing.popleft()

    def _header(self, kind: int, generation: int, call: int, word: int) -> frame.Header:
        return frame.Header(kind, call & frame.LARGEST_STEP, generation, word, self.rank)

    def read(self) -> None:
        """Take in all messages that have come.

        The buffer begins with a zero once its message is noted, so that an exception in between loses none.
        """
        if self._request != MPI.REQUEST_NULL:
            return
        if self._outgoing:
            self._send_outgoing()
        while self._buffer[0] or self._comm.Iprobe(MPI.ANY_SOURCE, _TAG):
            if not self._buffer[0]:
                self._comm.Recv([self._buffer, frame.SIZE, MPI.BYTE], MPI.ANY_SOURCE, _TAG)
            self._note(frame.read(self._buffer, any_version=True))  # the first call compares versions
            self._buffer[0] = 0

    def _note(self, header: frame.Header) -> None:
        if header.kind == frame.ABORT:
            self._aborts[header.rank] = header
        elif header.kind in (frame.PRESENT, frame.MEETING):
            self.present[header.rank] = header
        else:
            self.present.pop(header.rank, None)
            if header.kind == frame.GO:
                self._go = header

    def give_up(self, generation: int) -> None:
        """Tell all other ranks that this one cannot use a new duplicate."""
        self.abort(generation, -1, frame.REASON_FAILURE, self.rank)

    def abort(self, generation: int, call: int, reason: int, concerned: int) -> None:
        """Tell all other ranks that this one has given up a call, for which reason, and which rank caused it."""
        self._send(self._others(), self._header(frame.ABORT, generation, call, reason | concerned << 8))

    def abort_of(self, generation: int) -> frame.Header | None:
        """The earliest abort of a call on a duplicate, None if there is none."""
        found = [header for header in self._aborts.values() if header.signature == generation]
        return min(found, key=lambda header: (header.step + 1) & frame.LARGEST_STEP, default=None)

    # --- meeting ---

    def meet(self, generation: int, calls: int, timeout: float):
        """Wait until all ranks meet. Returns (generation that calls run on from now, its communicator or None).

        generation, calls
            of the duplicate that this rank could go on with, and how many calls there were on it; 0 if there is none.
            No communicator is returned if all go on with it.
        """
        deadline, target = Deadline(timeout), 0
        self._attempts += 1
        try:
            finish([self._request], deadline, self._others())
            target = self._agree(generation, calls, deadline)
            if target == generation:
                return generation, None
            return target, self._reach(target, deadline)
        except BaseException:
            if self._request == MPI.REQUEST_NULL:
                if target:
                    self.give_up(target)
                else:
                    self._withdraw()
            raise

    def _agree(self, generation: int, calls: int, deadline: Deadline) -> int:
        """What rank 0 decides: the generation that calls run on from now."""
        if self.rank:
            self._send([0], self._header(frame.PRESENT, generation, calls, self._attempts))
            while self._go is None or self._go.word != self._attempts:
                self._wait(generation, calls, {0}, deadline)
            return self._go.signature
        self._send(self._others(), self._header(frame.MEETING, generation, calls, self._attempts))
        missing = self._others()
        while missing:
            self._wait(generation, calls, missing, deadline)
            came = missing & self.present.keys()
            if came:
                deadline.restart()
            missing -= came
            missing |= self._others() - self.present.keys()
        said = list(self.present.values())
        mine = generation, calls & frame.LARGEST_STEP
        sound = generation and all((each.signature, each.step) == mine for each in said)
        target = generation if sound and self.abort_of(generation) is None else self._started + 1
        self._send_go(target)
        return target

    def _send_go(self, target: int) -> None:
        """Tell all that are present to go on."""
        while self.present:
            source, header = self.present.popitem()
            self._send([source], self._header(frame.GO, target, 0, header.word))

    def _wait(self, generation: int, calls: int, due, deadline: Deadline) -> None:
        self.read()
        aborted = self.abort_of(generation) if generation else None
        if aborted is not None and aborted.word == frame.REASON_MISMATCH | self.rank << 8:
            raise ForeignFrame(aborted.rank, aborted)  # it made a call while this rank came to meet
        deadline.pause(due)

    def _others(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    def _withdraw(self) -> None:
        self._send([0] if self.rank else self._others(), self._header(frame.ABSENT, 0, 0, self._attempts))

    # --- duplicates ---

    def _reach(self, target: int, deadline: Deadline):
        """The communicator of duplicate number `target`.

        One after the other: of two that were under way at once, Open MPI 5 was seen to complete neither.
        """
        while True:
            finish([self._latest[1]], deadline, self._others(), lambda: self._tell_again(target))
            if self._started == target:
                return self._latest[0]
            self._latest, self._started = _duplicate(self._comm), self._started + 1

    def _tell_again(self, target: int) -> None:
        """At rank 0: a rank that was told to go on, but had just given up, and is present again, may come after all."""
        self.read()
        if self.rank == 0:
            self._send_go(target)

    def release(self) -> bool:
        """Free what can be freed, once no call can come any more; False if MPI is still at one of them.

        A rank that ever gave up keeps all: what it sent may not have been received (home.py, `_drop`).
        """
        if self._gave_up:
            return True
        if not MPI.Request.Testall([self._request, self._latest[1]]):
            return False
        for comm in (self._comm, self._latest[0]):
            if comm != MPI.COMM_NULL:
                comm.Free()
        return True


def _duplicate(comm) -> tuple:
    """(duplicate, request): to be used once the request is complete; errors are exceptions, as mpi4py has it."""
    made, request = comm.Idup()
    return made, request

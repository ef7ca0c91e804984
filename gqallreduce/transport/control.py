"""The control channel of a communicator: short messages outside of any call, and the duplicates that calls run on.

It has a duplicate of the user's communicator to itself, made once and kept. On it travel frames of a header alone
(frame.py): abort, object, present, absent, meeting, go. They arrive in the order in which their sender sent them. The
only collective operation on it is MPI_Comm_idup. Each rank counts those that it has started, and finishes one that it
left before it starts the next, so that the n-th of one rank always meets the n-th of the others.

Ranks meet here to make an object and after an error. Rank 0 asks all to come, each rank says that it is present, and
when all are, rank 0 says which duplicate calls run on from now: the old one if it is sound on all ranks, else a new
one. A rank that gives up says that it is absent, and a later attempt begins anew. What an earlier attempt left behind
does no harm, whichever rank gave up, and where.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mpi4py import MPI

from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import TimeoutError, WireError
from gqallreduce.transport.ended import ended_after, ended_ranks
from gqallreduce.transport.waiting import Deadline, abandon, begin, wait

_TAG = 0
_LONGEST = 1 << 16  # bytes of a message that is received, to be refused
_OBJECTS_MOST = 1024  # that an abort names: as many as a duplicate's calls are remembered of
_AHEAD = 64  # how many duplicates more than this rank's another rank can have: beyond all that has been seen


class Offer(NamedTuple):
    """What a rank says of itself when it is present.

    generation, calls
        of the duplicate that it last had, and how many calls it made there; 0 if it had none.
    sound
        this rank has raised no error of a call on it: it can go on with that.
    """

    generation: int
    calls: int
    sound: bool


class Control:
    """A rank's end of the control channel.

    present
        at rank 0: source -> what the ranks that wait to meet said; elsewhere rank 0's, while it waits.
    """

    def __init__(self, rank: int, size: int, comm, request):
        self.rank, self.size = rank, size
        self._comm, self._request, self._open = comm, request, False
        self._error: MPI.Exception | None = None  # of the making of a duplicate, which must not be used then
        self.present: dict[int, frame.Header] = {}
        self._aborts: dict[tuple[int, int], frame.Header] = {}  # (rank, duplicate) -> the first one
        self._objects: dict[tuple[int, int], set[int]] = {}  # (rank, duplicate) -> numbers that the abort is to name
        self._go: frame.Header | None = None
        self._absent: set[int] = set()  # that have given up to meet
        self._ended: frozenset[int] = frozenset()  # whose processes have ended, as far as the MPI has told
        self._attempts, self._gave_up = 0, False
        self._buffer, self._source, self._outgoing = bytearray(frame.SIZE), 0, deque()
        self._refused: WireError | None = None
        self._status = MPI.Status()
        self._duplicates: list = []  # (communicator, request) of the last one that was started; None for older ones

    # --- messages ---

    def _send(self, peers, *headers: frame.Header) -> None:
        """In this order; what an exception keeps from being sent is sent later."""
        self._gave_up |= headers[-1].kind in (frame.ABORT, frame.ABSENT)
        self._outgoing.extend([(peer, header) for header in headers for peer in peers if peer not in self._ended])
        self._send_outgoing()

    def _send_outgoing(self) -> None:
        """What an exception keeps from being sent is sent when the channel is used again."""
        while self._outgoing:
            to, header = self._outgoing[0]
            buffer, requests = bytearray(frame.SIZE), []
            header.write(buffer)
            abandon(requests, buffer)
            try:
                begin(requests, self._comm.Isend, [buffer, frame.SIZE, MPI.BYTE], to, _TAG)
            except MPI.Exception:
                if to not in ended_ranks(self._comm):
                    raise
            self._outgoing.popleft()

    def _header(self, kind: int, generation: int, call: int, word: int) -> frame.Header:
        return frame.Header(kind, call & frame.LARGEST_STEP, generation, word, self.rank)

    def read(self) -> None:
        """Take in all messages that have come. One that is none of this channel is refused: `raise_refused` tells.

        The buffer begins with a zero once its message is noted, so that an exception in between loses none.
        """
        if not self._open:
            return
        if self._outgoing:
            self._send_outgoing()
        status = self._status
        while self._buffer[0] or self._has_come(status):
            try:
                if not self._buffer[0]:
                    source, nbytes = status.Get_source(), status.Get_count(MPI.BYTE)
                    if nbytes > _LONGEST:  # it stays where it is, and no other can be looked for
                        self._refuse(WireError(f"rank {source} sent {nbytes} bytes: too long to be received"))
                        break
                    self._receive(source, nbytes)
                header = frame.read(self._buffer, any_version=True)  # the first call compares versions
                self._require_lawful(header)
                self._note(header)
            except WireError as error:
                self._refuse(error)
            self._buffer[0] = 0

    def _has_come(self, status) -> bool:
        """Is there a message? Open MPI takes in what has arrived only after it has said that there is none."""
        try:
            return self._look_twice(status)
        except MPI.Exception:
            if not (ended := ended_ranks(self._comm)):
                raise
        self._ended = ended  # before MPI is told to speak of them no more
        self._comm.Ack_failed(len(ended))
        return self._look_twice(status)

    def _look_twice(self, status) -> bool:
        return any(self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, status) for _ in range(2))

    def _refuse(self, error: WireError) -> None:
        self._refused, self._gave_up = error, True  # what else may come is not known

    def raise_refused(self) -> None:
        """WireError if a message was refused since the last time. In a call, or a meeting: other ranks learn of it."""
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _receive(self, source: int, nbytes: int) -> None:
        """The next message of a rank; WireError if it has another length than all have."""
        if nbytes == frame.SIZE:
            self._source = source
            self._comm.Recv([self._buffer, frame.SIZE, MPI.BYTE], source, _TAG)
            return
        self._comm.Recv([bytearray(nbytes), nbytes, MPI.BYTE], source, _TAG)
        raise WireError(f"rank {source} sent {nbytes} bytes where {frame.SIZE} are sent")

    def _require_lawful(self, header: frame.Header) -> None:
        """WireError for what no rank says of itself."""
        kind, reason, concerned = header.kind, *frame.abort_of(header)[:2]
        other = header.rank != self._source or (kind in (frame.GO, frame.MEETING) and self._source != 0)
        other = other or (kind in (frame.PRESENT, frame.ABSENT) and (self._source == 0) == (self.rank == 0))
        ahead = kind in (frame.ABORT, frame.OBJECT, frame.GO) and header.signature > len(self._duplicates) + _AHEAD
        unknown = kind == frame.ABORT and (reason not in frame.REASONS or concerned >= self.size)
        unknown = unknown or (kind == frame.OBJECT and len(self.named_by(header)) >= _OBJECTS_MOST)
        if kind < frame.ABORT or other or ahead or unknown:
            raise WireError(f"rank {self._source} sent a message that it has no reason to send: {header}")

    def _note(self, header: frame.Header) -> None:
        self._gave_up |= header.kind in (frame.ABORT, frame.ABSENT)
        if header.kind == frame.ABORT:
            self._aborts.setdefault((header.rank, header.signature), header)
        elif header.kind == frame.OBJECT:
            self._objects.setdefault((header.rank, header.signature), set()).add(header.word)
        elif header.kind in (frame.PRESENT, frame.MEETING):
            self.present[header.rank] = header
        else:
            self.present.pop(header.rank, None)
            if header.kind == frame.GO:
                self._go = header
                self._absent.discard(header.rank)
            else:
                self._absent.add(header.rank)

    def give_up(self, generation: int) -> None:
        """Tell all other ranks that this one cannot use a new duplicate."""
        told = [frame.abort_of(abort) for abort in self.aborts_of(generation)]
        ended = self._ended | ended_ranks(self._comm)
        ended |= {concerned for why, concerned, _ in told if why == frame.REASON_ENDED}
        reason = frame.REASON_ENDED if ended else frame.REASON_FAILURE
        self.abort(generation, -1, reason, min(ended, default=self.rank))

    def abort(self, generation: int, call: int, reason: int, concerned: int, more: int = 0, objects=()) -> None:
        """Tell all others that this rank has given up a call and so many after it, why, and which rank caused it.

        objects
            numbers of those whose calls they are, for ranks that have not begun these.
        """
        named = [self._header(frame.OBJECT, generation, 0, number) for number in list(objects)[:_OBJECTS_MOST]]
        word = frame.abort_word(reason, concerned, more)
        self._send(self._others(), *named, self._header(frame.ABORT, generation, call, word))

    def named_by(self, abort: frame.Header) -> set[int]:
        """The numbers of the objects that an abort names, or is going to."""
        return self._objects.get((abort.rank, abort.signature), set())

    def aborts_of(self, generation: int) -> list[frame.Header]:
        """The aborts of calls on a duplicate, one of each rank that has given up."""
        return [header for header in self._aborts.values() if header.signature == generation] if self._aborts else []

    def abort_of(self, generation: int) -> frame.Header | None:
        """The one of the earliest call, None if there is none."""
        return min(self.aborts_of(generation), key=lambda header: (header.step + 1) & frame.LARGEST_STEP, default=None)

    # --- meeting ---

    def meet(self, offer: Offer, timeout: float, look):
        """Wait until all ranks meet. Returns (generation that calls run on from now, its communicator or None).

        No communicator is returned if all go on with the one that they have. `look()` is called for what comes while
        ranks are waited for; it may raise.
        """
        deadline, target = Deadline(timeout), 0
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._attempts += 1
        for found in (self._aborts, self._objects):
            for place in [place for place in found if place[1] < offer.generation]:
                del found[place]
        try:
            self._finish(self._request, deadline)
            self._open = True
            target = self._agree(offer, deadline, look)
            if offer.sound and target == offer.generation:
                return target, None
            return target, self._reach(target, deadline)
        except BaseException:
            if self._open:
                if target:
                    self.give_up(target)
                else:
                    self._withdraw()
            raise

    def _agree(self, offer: Offer, deadline: Deadline, look) -> int:
        """What rank 0 decides: the generation that calls run on from now."""
        self.raise_refused()  # before others count on this rank
        mine = self._header(frame.PRESENT, offer.generation, offer.calls, self._attempts | offer.sound << 32)
        if self.rank:
            self._send([0], mine)
            self.read()
            while self._go is None or self._go.word != mine.word:
                self._wait(offer, {0}, deadline, look)
            return self._go.signature
        self._send(self._others(), mine._replace(kind=frame.MEETING))
        self.read()
        missing = self._others() - self.present.keys()
        while missing:
            self._wait(offer, missing, deadline, look)
            if missing & self.present.keys():
                deadline.restart()
            missing = self._others() - self.present.keys()
        said = list(self.present.values())
        same = all((each.signature, each.step) == (mine.signature, mine.step) for each in said)
        sound = offer.sound and same and all(each.word >> 32 for each in said)
        if sound and self.abort_of(offer.generation) is None:
            target = offer.generation
        else:  # none that a rank has given up before it was made
            target = 1 + max([len(self._duplicates), *(abort.signature for abort in self._aborts.values())])
        self._send_go(target)
        return target

    def _send_go(self, target: int) -> None:
        """Tell all that are present to go on. After an exception those not told yet are still in `present`."""
        for source, header in list(self.present.items()):
            self._send([source], self._header(frame.GO, target, 0, header.word))
            del self.present[source]

    def _wait(self, offer: Offer, due, deadline: Deadline, look) -> None:
        """Until more has come; what has come already did not end the meeting, so an abort of a later call does."""
        abort = self.abort_of(offer.generation) if offer.sound else None
        mismatch = abort is not None and frame.abort_of(abort)[0] == frame.REASON_MISMATCH
        if mismatch and not frame.is_before(abort.step, offer.calls):
            raise ForeignFrame(abort.rank, abort)  # ranks made a call while this one came to meet
        deadline.pause(due)
        self.read()
        if self._ended:  # all ranks must come
            raise TimeoutError(None, self._ended)
        self.raise_refused()
        look()

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
            if self._duplicates:
                comm, request = self._duplicates[-1]
                self._finish(request, deadline, lambda: self._look(target))
                if len(self._duplicates) == target:
                    return comm
            duplicate(self._comm, self._duplicates)
            self._duplicates[:-1] = [None] * (len(self._duplicates) - 1)

    def _finish(self, request, deadline: Deadline, look=None) -> None:
        """Until a duplicate is made. After an error of MPI's no object can be made any more."""
        try:
            wait([request], deadline, self._others(), look)
        except MPI.Exception as error:
            self._error = error
            if self._open:
                self._ended |= ended_after(self._comm, [error.Get_error_code()])
            raise

    def _look(self, target: int) -> None:
        """While ranks make a duplicate: ForeignFrame if one has given up.

        At rank 0: a rank that had given up when it was told to go on, and is present again, may come after all.
        """
        self.read()
        self.raise_refused()
        abort = self.abort_of(target)
        if abort is not None:
            raise ForeignFrame(abort.rank, abort)
        if self.rank == 0:
            self._send_go(target)
        elif 0 in self._absent:
            raise ForeignFrame(0, self._header(frame.ABORT, target, -1, frame.REASON_FAILURE))

    def release(self) -> bool:
        """Free what can be freed, once no call can come any more; False if MPI is still at one of them.

        Where a rank ever gave up, all keep what they have: what it sent may not have been received. It would match
        receives on a new communicator to which the MPI gives the same internal number, as MPICH does; Open MPI ends
        the job if the new one has fewer ranks.
        """
        self.read()
        if self._gave_up or self._error is not None:
            return True
        left = [(self._comm, self._request), *self._duplicates[-1:]]
        if not MPI.Request.Testall([request for _, request in left]):
            return False
        for comm, _ in left:
            if comm != MPI.COMM_NULL:
                comm.Free()
        return True


def duplicate(comm, into: list) -> None:
    """Start to duplicate a communicator; (duplicate, request) is added to a list."""
    begin(into, comm.Idup)

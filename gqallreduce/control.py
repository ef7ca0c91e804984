"""The control channel of a communicator: short messages outside of any call, and the duplicates that calls run on.

It has a duplicate of the user's communicator to itself, made once and kept. On it travel frames of a header alone
(frame.py): abort, present, absent, meeting, go. They arrive in the order in which their sender sent them. The only
collective operation on it is MPI_Comm_idup. Each rank counts those that it has started, and one that it did not wait
for it waits for later, so that the n-th of one rank always meets the n-th of the others.

Ranks meet here to make an object and after an error. Rank 0 asks all to come, each rank says that it is present, and
when all are, rank 0 says which duplicate calls run on from now: the old one if it is sound on all ranks, else a new
one. A rank that gives up says that it is absent, and a later attempt begins anew. What an earlier attempt left behind
does no harm, whichever rank gave up, and where.
"""

from __future__ import annotations

from mpi4py import MPI

from gqallreduce import frame
from gqallreduce.message import ForeignFrame
from gqallreduce.waiting import Patience, abandon, finish

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
        self._attempts = 0
        self._status, self._buffer = MPI.Status(), bytearray(frame.SIZE)
        self._comm, self._request = _duplicate(comm)
        self._duplicates: list[tuple] = []  # all ever started: (communicator, request)

    # --- messages ---

    def _send(self, to: int, header: frame.Header) -> None:
        buffer = bytearray(frame.SIZE)
        header.write(buffer)
        abandon([self._comm.Isend([buffer, frame.SIZE, MPI.BYTE], to, _TAG)], buffer)

    def give_up(self, generation: int) -> None:
        """Tell all other ranks that this one cannot use a new duplicate."""
        self.abort(generation, -1, frame.REASON_FAILURE, self.rank)

    def _tell_others(self, kind: int, generation: int, call: int, word: int) -> None:
        for peer in range(self.size):
            if peer != self.rank:
                self._send(peer, frame.Header(kind, call & frame.LARGEST_STEP, generation, word, self.rank))

    def read(self) -> None:
        """Take in all messages that have come."""
        while self._comm.Iprobe(MPI.ANY_SOURCE, _TAG, self._status):
            source = self._status.Get_source()
            self._comm.Recv([self._buffer, frame.SIZE, MPI.BYTE], source, _TAG)
            header = frame.read(self._buffer)
            if header.kind == frame.ABORT:
                self._aborts[source] = header
            elif header.kind in (frame.PRESENT, frame.MEETING):
                self.present[source] = header
            else:
                self.present.pop(source, None)
                if header.kind == frame.GO:
                    self._go = header

    def abort(self, generation: int, call: int, reason: int, concerned: int) -> None:
        """Tell all other ranks that this one has given up a call, for which reason, and which rank caused it."""
        self._tell_others(frame.ABORT, generation, call, reason | concerned << 8)

    def abort_of(self, generation: int) -> frame.Header | None:
        """The earliest abort of a call on a duplicate, None if there is none."""
        found = [header for header in self._aborts.values() if header.signature == generation]
        return min(found, key=lambda header: header.step, default=None)

    # --- meeting ---

    def meet(self, generation: int, calls: int, timeout: float):
        """Wait until all ranks meet. Returns (generation that calls run on from now, its communicator or None).

        generation, calls
            of the duplicate that this rank could go on with, and how many calls there were on it; 0 if there is none.
            No communicator is returned if all go on with it.
        """
        patience, target = Patience(timeout), 0
        self._attempts += 1
        try:
            finish([self._request], patience, self._others())
            target = self._agree(generation, calls, patience)
            if target == generation:
                return generation, None
            return target, self._reach(target, patience)
        except BaseException:
            if self._request == MPI.REQUEST_NULL:
                if target:
                    self.give_up(target)
                else:
                    self._withdraw()
            raise

    def _agree(self, generation: int, calls: int, patience: Patience) -> int:
        """What rank 0 decides: the generation that calls run on from now."""
        word = self._attempts | len(self._duplicates) << 32
        if self.rank:
            self._send(0, frame.Header(frame.PRESENT, calls & frame.LARGEST_STEP, generation, word, self.rank))
            while self._go is None or self._go.word != self._attempts:
                self._wait(generation, calls, {0}, patience)
            return self._go.signature
        self._tell_others(frame.MEETING, generation, calls, word)
        missing = self._others()
        while missing:
            self._wait(generation, calls, missing, patience)
            came = missing & self.present.keys()
            if came:
                patience.hear()
            missing -= came
            missing |= self._others() - self.present.keys()
        said = list(self.present.values())
        mine = generation, calls & frame.LARGEST_STEP
        sound = generation and all((each.signature, each.step) == mine for each in said)
        started = max([len(self._duplicates), *(each.word >> 32 for each in said)])
        target = generation if sound and self.abort_of(generation) is None else started + 1
        for source, header in self.present.items():
            self._send(source, frame.Header(frame.GO, 0, target, header.word & 0xFFFFFFFF, 0))
        self.present.clear()
        return target

    def _wait(self, generation: int, calls: int, due, patience: Patience) -> None:
        self.read()
        aborted = self.abort_of(generation) if generation else None
        if aborted is not None and not frame.is_before(aborted.step, calls):
            raise ForeignFrame(aborted.rank, aborted)  # a call that this rank has not made
        patience.go_on(due)

    def _others(self) -> set[int]:
        return set(range(self.size)) - {self.rank}

    def _withdraw(self) -> None:
        if self.rank == 0:
            self._tell_others(frame.ABSENT, 0, 0, self._attempts)
        else:
            self._send(0, frame.Header(frame.ABSENT, 0, 0, self._attempts, self.rank))

    # --- duplicates ---

    def _reach(self, target: int, patience: Patience):
        """Start duplications until there are `target` of them; the last one's communicator."""
        while len(self._duplicates) < target:
            self._duplicates.append(_duplicate(self._comm))
        comm, request = self._duplicates[target - 1]
        finish([request], patience, self._others())
        return comm

    def release(self) -> bool:
        """Free what can be freed, once no call can come any more; False if MPI is still at one of them."""
        left = [(comm, request) for comm, request in [(self._comm, self._request), *self._duplicates]]
        if not all(request == MPI.REQUEST_NULL or request.Test() for _, request in left):
            return False
        for comm, _ in left:
            if comm != MPI.COMM_NULL:
                comm.Free()
        return True


def _duplicate(comm) -> tuple:
    """(duplicate, request): to be used once the request is complete; errors are exceptions, as mpi4py has it."""
    made, request = comm.Idup()
    return made, request

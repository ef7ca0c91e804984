"""Carries the bytes of all Workers in one process: for tests, teaching, and as the oracle of the engine."""

from __future__ import annotations

from collections import deque

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.processor import Host
from gqallreduce.coding import frame
from gqallreduce.coding.message import Expected, Parcel, Receipt
from gqallreduce.errors import NonFiniteError
from gqallreduce.hashing import hash64
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime.memory import Memory
from gqallreduce.runtime.worker import Worker
from gqallreduce.scheduling.model import fixed_schedule
from gqallreduce.scheme import Scheme
from gqallreduce.stats import Spent


class LocalAllreduce:
    """P ranks in one process: the same Workers, schedules and bytes as under MPI.

    allreduce(arrays, key="w") reduces one array per rank in place and returns them; `memory[rank]` holds residuals,
    `spent[rank]` what the last call cost. `processors` has one per rank, for arrays in their memory.
    """

    def __init__(self, scheme, size: int, *, average: bool = False, seed: int = 0, processors=None):
        self.scheme, self.size, self.average, self.seed = Scheme.parse(scheme), size, average, seed
        self.group = hash64(*range(size))  # like COMM_WORLD's
        self.processors = processors or [Host() for _ in range(size)]
        self.memory = [Memory() for _ in range(size)]
        self.spent = [Spent() for _ in range(size)]
        self.steps: dict[str | None, int] = {}
        self.order = lambda waiting: waiting  # tests shuffle the lanes that may go on

    @usual_arithmetic()
    def __call__(self, arrays, *, key: str | None = None, out=None):
        """Reduce; NonFiniteError as on every rank under MPI."""
        sources = [Buffer(array) for array in arrays]
        targets = sources if out is None else [Buffer(array) for array in out]
        for rank, processor in enumerate(self.processors):
            sources[rank].arithmetic = targets[rank].arithmetic = processor.arithmetic
        workers = [self._worker(rank, sources[rank]) for rank in range(self.size)]
        step, states = self.steps.get(key, 0), [{}] * self.size
        for rank, worker in enumerate(workers):
            owed = owing = None
            if self.scheme.feedback:
                form = sources[rank].shape, sources[rank].order, sources[rank].dtype
                owed, after = self.memory[rank].next(key, form, sources[rank].size, self.processors[rank])
                owing, states[rank] = after.residual, {key: after}
            stream = hash64(self.seed, key, self.group)
            worker.begin(sources[rank], targets[rank], owed, owing, stream, step, hash64(key))
        _agree(workers)
        _carry(workers, self.order)
        flaws = {worker.flaw for worker in workers}
        for worker in workers:
            worker.end()
        assert len(flaws) == 1, f"ranks disagree on what was not finite: {flaws}"
        flaw = flaws.pop()
        if flaw:
            raise NonFiniteError(None if flaw[0] == frame.NO_RANK else flaw[0], key, flaw[1])
        for memory, after in zip(self.memory, states, strict=True):
            memory.commit(after)
        self.steps[key] = step + 1
        return arrays if out is None else out

    def _worker(self, rank: int, source: Buffer) -> Worker:
        spent = self.spent[rank] = Spent()
        schedule = self.scheme.schedule or fixed_schedule(self.size, self.scheme.codec, source.size)
        return Worker(
            schedule, self.scheme.codec, rank, self.size, source.shape, source.order, source.dtype, self.average,
            self.processors[rank], spent,
        )  # fmt: skip


def _agree(workers: list[Worker]) -> None:
    """Tell all the largest of what they measured, if their codec asks for it."""
    numbers = [worker.measure() for worker in workers]
    for worker in workers:
        if None not in numbers:
            worker.agreed(max(numbers))


def _carry(workers: list[Worker], order) -> None:
    """Run every lane of every rank as far as it goes, in turn, until all are done."""
    mail: dict[tuple, deque] = {}
    lanes = [_Lane(worker, lane, mail) for worker in workers for lane in range(worker.lanes)]
    while lanes:
        before = len(lanes), sum(lane.moves for lane in lanes)
        for lane in order(list(lanes)):
            lane.advance()
        lanes = [lane for lane in lanes if not lane.done]
        assert before != (len(lanes), sum(lane.moves for lane in lanes)), "all lanes wait for each other"
    assert not any(mail.values()), "messages that were never received"


class _Lane:
    """One lane of one rank: runs until it must wait."""

    def __init__(self, worker: Worker, lane: int, mail):
        self.worker, self.steps, self.mail = worker, worker.lane(lane), mail
        self.waiting: list[Expected | Receipt] = []
        self.done, self.moves = False, 0

    def advance(self) -> None:
        for item in self.waiting:
            if isinstance(item, Expected):
                self._receive(item)
            else:
                self.moves += 1  # what is under way arrives
        if self.waiting and not any(item.ready for item in self.waiting):
            return
        for event in self.steps:
            self.moves += 1
            self.waiting = []
            if isinstance(event, Parcel):
                self._send(event)
            elif isinstance(event, list):
                self.waiting = event
                return
        self.done = True

    def _send(self, parcel: Parcel) -> None:
        assert len(parcel.data) <= parcel.bound
        box = self.mail.setdefault((self.worker.rank, parcel.to, parcel.lane), deque())
        box.append(np.array(parcel.data))
        spent = self.worker.spent
        spent.bytes_sent += len(parcel.data)
        spent.messages += 1
        self.worker.sent(parcel)

    def _receive(self, item: Expected) -> None:
        box = self.mail.get((item.source, self.worker.rank, item.lane))
        if item.nbytes is None and box:
            data = box.popleft()
            item.room[: len(data)] = data
            item.nbytes = len(data)
            self.worker.spent.bytes_received += len(data)

"""All ranks in one process: for tests, teaching, and as the oracle of what runs under MPI."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.processor import Host
from gqallreduce.coding import frame
from gqallreduce.errors import NonFiniteError
from gqallreduce.hashing import hash64
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime.memory import Memory
from gqallreduce.runtime.operation import Operation
from gqallreduce.runtime.plan import Plan
from gqallreduce.scheduling.model import fixed_schedule
from gqallreduce.scheduling.topology import apart
from gqallreduce.scheme import DENSE, Scheme
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call
from gqallreduce.transport.exchange import MEASURE, Largest
from gqallreduce.transport.progress import Progress

STUCK = 10.0  # seconds without anything that a rank can do: a device may be at work


class LocalAllreduce:
    """P ranks in one process: the same plans, progress engine, schedules and bytes as under MPI.

    allreduce(arrays, key="w") reduces one array per rank in place and returns them; `memory[rank]` holds residuals,
    `spent[rank]` what the last call cost. `processors` has one per rank, for arrays in their memory.
    """

    def __init__(self, scheme, size: int, *, average: bool = False, seed: int = 0, processors=None):
        self.scheme, self.size, self.average, self.seed = Scheme.parse(scheme), size, average, seed
        if self.scheme.schedule == DENSE:
            raise ValueError("dense is MPI's own allreduce: it runs under MPI only; ring/raw is an exact sum here")
        self.group = hash64(*range(size))  # like COMM_WORLD's
        self.processors = processors or [Host() for _ in range(size)]
        self.memory = [Memory() for _ in range(size)]
        self.spent = [Spent() for _ in range(size)]
        self.steps: dict[str | None, int] = {}
        self.order = list  # tests shuffle: which rank goes on, and what arrives first

    @usual_arithmetic()
    def __call__(self, arrays, *, key: str | None = None, out=None):
        """Reduce; NonFiniteError as on every rank under MPI."""
        sources = [Buffer(array) for array in arrays]
        targets = sources if out is None else [Buffer(array) for array in out]
        for rank, processor in enumerate(self.processors):
            sources[rank].arithmetic = targets[rank].arithmetic = processor.arithmetic
        step, states, operations = self.steps.get(key, 0), [{}] * self.size, []
        self.spent = [Spent() for _ in range(self.size)]
        for rank in range(self.size):
            owed = owing = None
            if self.scheme.feedback:
                form = sources[rank].shape, sources[rank].order, sources[rank].dtype
                owed, after = self.memory[rank].next(key, form, sources[rank].size, self.processors[rank])
                owing, states[rank] = after.residual, {key: after}
            stream, plan = hash64(self.seed, key, self.group), self.plan(rank, sources[rank])
            vectors = sources[rank], targets[rank], owed, owing
            operations.append(Operation(plan, *vectors, key, stream, step, hash64(key), self.spent[rank]))
        try:
            self._carry_out(operations)
            flaws = {operation.flaw for operation in operations}
        finally:
            for operation in operations:
                operation.end()
        assert len(flaws) == 1, f"ranks disagree on what was not finite: {flaws}"
        flaw = flaws.pop()
        if flaw:
            raise NonFiniteError(None if flaw[0] == frame.NO_RANK else flaw[0], key, flaw[1])
        for memory, after in zip(self.memory, states, strict=True):
            memory.commit(after)
        self.steps[key] = step + 1
        return arrays if out is None else out

    def plan(self, rank: int, source: Buffer) -> Plan:
        """A rank's Plan for a buffer."""
        schedule = self.scheme.schedule or fixed_schedule(self.size, self.scheme.codec, source.size)
        return Plan(
            schedule, self.scheme.codec, rank, apart(self.size), source.shape, source.order, source.dtype, self.average,
            self.processors[rank],
        )  # fmt: skip

    def _carry_out(self, operations: list[Operation]) -> None:
        """Let every rank go as far as it can, in turn, until all are done."""
        mail: dict[tuple, deque] = {}
        ranks = [Mailbox(rank, mail, self.order) for rank in range(self.size)]
        calls = [Call("a call") for _ in ranks]
        for rank, call, operation in zip(ranks, calls, operations, strict=True):
            rank.progress.start(call, _stages(operation))
        moved = perf_counter()
        while not all(call.done for call in calls):
            if sum(any(rank.progress.work()) for rank in self.order(ranks)):  # of all of them
                moved = perf_counter()
            assert perf_counter() - moved < STUCK, "all ranks wait for each other"
        assert not any(mail.values()), "messages that were never received"


def _stages(operation: Operation):
    """Of a call."""
    number = operation.measure()
    if number is not None:
        asked = Largest(operation.plan.rank, operation.plan.size, MEASURE, np.array([number]))
        yield asked
        operation.agreed(float(asked.found[0]))
    yield operation


class Mailbox:
    """The transport of one rank, and what its progress engine asks of a communicator.

    mail
        (source, to, tag) -> messages, shared by all ranks.
    """

    shortest = 1 << 30

    def __init__(self, rank: int, mail: dict[tuple, deque], order):
        self.rank, self.mail, self._order = rank, mail, order
        self.owners: list = []
        self._due: list[tuple] = []  # (owner, room, box)
        self._sent: list = []
        self.progress = Progress(self, self, poll_every=0)

    def longest(self, peer: int) -> int:
        return self.shortest

    def tag(self, number: int, lane: int, signature: int) -> int:
        return lane

    def send(self, data, peer: int, tag: int, owner) -> None:
        assert len(data) <= owner.message.bound
        self.mail.setdefault((self.rank, peer, tag), deque()).append(data.copy())
        self._sent.append((owner, len(data)))

    def receive(self, data, peer: int, tag: int, owner) -> None:
        self._due.append((owner, data, self.mail.setdefault((peer, self.rank, tag), deque())))

    def poll(self) -> list[tuple]:
        """What has been sent, and of what is due what has come: the first of each sender's for each that waits."""
        completed, self._sent = self._sent, []
        left = []
        for owner, room, box in self._due:
            if box:
                data = box.popleft()
                room[: len(data)] = data
                completed.append((owner, len(data)))
            else:
                left.append((owner, room, box))
        self._due = left
        return self._order(completed)

    def listen(self, calls) -> None:
        """No rank gives up."""

    def alike(self, error: Exception) -> bool:
        return False

    def stage_ends(self, call) -> None:
        """No rank is late."""

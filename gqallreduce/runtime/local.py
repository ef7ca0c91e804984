"""All ranks in one process: for tests, teaching, and as the oracle of what runs under MPI."""

from __future__ import annotations

import operator
from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.processor import Host
from gqallreduce.backends.product import source_of, written
from gqallreduce.hashing import hash64
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.indirect import begin, plan_for
from gqallreduce.runtime.memory import Memory, keep_learned
from gqallreduce.runtime.operand import Operand
from gqallreduce.scheduling.model import fixed_schedule
from gqallreduce.scheduling.topology import Topology, apart
from gqallreduce.scheme import AUTO, DENSE, MPI_SUM, Scheme
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call
from gqallreduce.transport.progress import Progress

PLANS_MOST = 8  # of each rank
STUCK = 10.0  # seconds without anything that a rank can do: a device may be at work


class LocalAllreduce:
    """P ranks in one process: the same plans, progress engine, schedules and bytes as under MPI.

    allreduce(arrays, key="w") reduces one array per rank in place and returns them; `memory[rank]` holds residuals,
    `spent[rank]` what the last call cost. `processors` has one per rank, for arrays in their memory; `topology` says
    which of them are on one host, each on its own by default.

    tap
        (source, to, tag, bytes) -> bytes: sees each message on its way, and may change it.
    poll_every
        seconds of arithmetic after which another rank's turn comes; 0: after every instruction, so that they mix well.
    exposed_from
        values of so many bytes are read where they lie, as by ranks of a host; 0 for none.
    """

    tap, poll_every, exposed_from = None, 0.0, 0

    def __init__(
        self,
        scheme,
        size: int,
        *,
        average: bool = False,
        seed: int = 0,
        processors=None,
        topology: Topology | None = None,
    ):
        self.scheme, self.size, self.average, self.seed = Scheme.parse(scheme), size, average, seed
        self.topology = topology or apart(size)
        if self.topology.size != size:
            raise ValueError(f"topology: got one of {self.topology.size} ranks, expected {size}")
        if self.scheme.schedule == DENSE:
            raise ValueError("dense is MPI's own allreduce: it runs under MPI only; ring/raw is an exact sum here")
        if self.scheme.schedule == MPI_SUM:
            raise ValueError("mpi is MPI's own allreduce: it runs under MPI only; allgather gives the same bits here")
        if self.scheme.schedule == AUTO:
            raise ValueError("auto/ measures calls under MPI: it runs there only; name a schedule, or none, here")
        self.group = hash64(*range(size))  # like COMM_WORLD's
        self.processors = processors or [Host() for _ in range(size)]
        self.memory = [Memory() for _ in range(size)]
        self.spent = [Spent() for _ in range(size)]
        self.order = list  # tests shuffle: which rank goes on, and what arrives first
        self._plans: dict[tuple, object] = {}

    @usual_arithmetic()
    def __call__(self, arrays, *, key: str | list[str] | None = None, out=None):
        """Reduce; NonFiniteError as on every rank under MPI. For a group, a list of arrays per rank and of keys."""
        group = isinstance(key, (list, tuple))
        keys = tuple(key) if group else (key,)
        results = [written(*each) for each in zip(arrays, out or [None] * self.size, strict=True)]
        results = arrays if all(map(operator.is_, results, arrays)) else results
        sources, targets = [], []
        for each, into in zip(arrays, results, strict=True):
            pairs = zip(each, into, strict=True) if group else [(each, into)]
            of_rank = [(value, array, Buffer(array)) for value, array in pairs]
            targets.append([target for _, _, target in of_rank])
            sources.append([target if value is array else source_of(value, target) for value, array, target in of_rank])
        for rank, processor in enumerate(self.processors):
            for buffer in sources[rank] + targets[rank]:
                buffer.arithmetic = processor.arithmetic
        states, operations = [], []
        self.spent = [Spent() for _ in range(self.size)]
        streams = [hash64(self.seed, each, self.group) for each in keys]
        for rank in range(self.size):
            forms = tuple(source.form.kept for source in sources[rank])
            after, _ = self.memory[rank].next(keys, forms, self.processors[rank], self.scheme.feedback)
            states.append(after)
            parts = zip(sources[rank], targets[rank], after.values(), streams, strict=True)
            operands = [Operand.of(*each) for each in parts]
            plan = self.plan(rank, *sources[rank], learned=[each.learned for each in operands])
            operations.append(begin(plan, operands, key, hash64(key), self.spent[rank]))
        try:
            self.carry_out(operations)
            flaws = {operation.flaws.first for operation in operations}
            learned = [operation.learned for operation in operations]
        finally:
            for operation in operations:
                operation.end()
        assert len(flaws) == 1, f"ranks disagree on what was not finite: {flaws}"
        flaw = flaws.pop()
        if flaw:
            raise not_finite(flaw, keys, sources[0], len(sources))
        for memory, after, known in zip(self.memory, states, learned, strict=True):
            memory.commit(keep_learned(after, keys, known) if known else after)
        return results if out is None else out

    def plan(self, rank: int, *sources: Buffer, learned=()):
        """A rank's Plan for a buffer, or for those of a group, of keys that have learned this."""
        forms = tuple(source.form for source in sources)
        schedule = self.scheme.schedule or fixed_schedule(self.size, self.scheme.codec, forms)
        topology, processor, codec = self.topology, self.processors[rank], self.scheme.codec
        borders = [tuple(map(codec.borders, learned or [None] * len(forms)))] if codec.moves_borders else []
        which = (rank, forms, self.average, self.scheme, processor, *borders)
        if which not in self._plans:
            made = plan_for(schedule, codec, rank, topology, forms, self.average, processor, *borders)
            self._plans[which] = made
            if len(self._plans) > PLANS_MOST * self.size:
                del self._plans[next(iter(self._plans))]
        return self._plans[which]

    def carry_out(self, operations: list) -> None:
        """Let every rank go as far as it can, in turn, until all are done."""
        mailboxes = _kernels.Mailboxes(self.tap)
        ranks = [
            Mailbox(rank, mailboxes, self.order, self.poll_every, processor, self.exposed_from)
            for rank, processor in enumerate(self.processors)
        ]
        calls = [Call("a call") for _ in ranks]
        for rank, call, operation in zip(ranks, calls, operations, strict=True):
            rank.progress.start(call, operation.stages())
        moved = perf_counter()
        while not all(call.done for call in calls):
            if sum(any(rank.progress.work()) for rank in self.order(ranks)):  # of all of them
                moved = perf_counter()
            assert perf_counter() - moved < STUCK, "all ranks wait for each other"
        assert mailboxes.empty, "messages that were never received"


class Mailbox:
    """The transport of one rank, and what its progress engine asks of a communicator.

    mailboxes
        shared by all ranks.
    native
        the same for the runtime in C++.
    processor
        of the rank; None if all messages lie in host memory.
    """

    least_limit = 1 << 30

    def __init__(
        self, rank: int, mailboxes: _kernels.Mailboxes, order, poll_every: float = 0.0, processor=None, exposed_from=0
    ):
        self.rank, self.mailboxes, self._order, self._processor = rank, mailboxes, order, processor
        shuffled = order is not list
        self.native = _kernels.Loopback(mailboxes, rank, seed=shuffled * (rank + 1), exposed_from=exposed_from)
        self.messages: list = []
        self._due: list[tuple] = []  # (message, room, tag)
        self._sent: list = []
        self.progress = Progress(self, self, poll_every=poll_every)

    def limit(self, peer: int) -> int:
        return self.least_limit

    def tag(self, number: int, lane: int, signature: int) -> int:
        return lane

    def send(self, data, peer: int, tag: int, message) -> None:
        assert len(data) <= message.bound
        there = data if isinstance(data, np.ndarray) else self._processor.on_host(data)
        self.mailboxes.put(self.rank, peer, tag, there)
        self._sent.append((message, 0))

    def receive(self, data, peer: int, tag: int, message) -> None:
        self._due.append((message, data, tag))

    def poll(self) -> list[tuple]:
        """What has been sent, and of what is due what has come: the first of each sender's for each that waits."""
        completed, self._sent = self._sent, []
        left = []
        for message, room, tag in self._due:
            (source,) = message.peers
            nbytes = self._take(source, tag, room)
            if nbytes is None:
                left.append((message, room, tag))
            else:
                assert nbytes <= len(room), "a message is longer than its room"
                completed.append((message, nbytes))
        self._due = left
        return self._order(completed)

    def _take(self, source: int, tag: int, room) -> int | None:
        """As Mailboxes; the room may lie in a GPU's memory."""
        if isinstance(room, np.ndarray):
            return self.mailboxes.take(source, self.rank, tag, room)
        there = np.empty(len(room), np.uint8)
        nbytes = self.mailboxes.take(source, self.rank, tag, there)
        if nbytes:
            with self._processor.active(None, None):
                self._processor.arithmetic.copy(room[:nbytes], self._processor.adopt(there[:nbytes]))
        return nbytes

    def failed(self, event):
        raise AssertionError("a message is longer than its room")

    def listen(self, calls) -> None:
        """No rank gives up."""

    def alike(self, error: Exception) -> bool:
        return False

    def stage_ends(self, call) -> None:
        """No rank is late."""

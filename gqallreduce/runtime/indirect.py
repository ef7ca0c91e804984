"""Calls with a codec that sums other vectors than the buffers (coding/indirect.py).

The tensors of such a call go on side by side: the vectors that they have summed at one time are the tensors of one
Operation, which is carried out as any other. Here lies what comes before, between and after.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.frame import LARGEST_STEP, NO_RANK
from gqallreduce.coding.indirect import ALL_ALIKE, Own, Sum
from gqallreduce.coding.layout import Form
from gqallreduce.hashing import hash64
from gqallreduce.runtime.flaws import Flaws, own_flaws
from gqallreduce.runtime.operation import Operand, Operation
from gqallreduce.runtime.plan import Plan
from gqallreduce.runtime.preparation import KernelCalls, answer
from gqallreduce.scheduling.topology import Topology
from gqallreduce.stats import Spent

_PLANS_MOST = 16


class IndirectPlan:
    """As Plan, of a codec that sums other vectors: it makes a Plan for those that are summed at one time.

    tensors
        the Indirect of each buffer.
    """

    def __init__(self, schedule, codec, rank, topology: Topology, forms: tuple[Form, ...], average, processor):
        self.rank, self.size, self.processor = rank, topology.size, processor
        self.tensors = [codec.bind(form, topology.size, processor.arithmetic) for form in forms]
        self.scale = 1.0 / topology.size if average else 1.0
        self._schedule, self._topology = schedule, topology
        self._plans: OrderedDict[tuple, Plan] = OrderedDict()

    def of_vectors(self, codec, sizes: tuple[int, ...]) -> Plan:
        """For float32 vectors of so many elements. The last few are kept."""
        found = self._plans.pop((codec, sizes), None)
        if found is None:
            forms = tuple(Form((size,), "C", "float32") for size in sizes)
            found = Plan(self._schedule, codec, self.rank, self._topology, forms, False, self.processor)
        self._plans[codec, sizes] = found
        while len(self._plans) > _PLANS_MOST:
            self._plans.popitem(last=False)
        return found


def plan_for(schedule, codec, *rest) -> Plan | IndirectPlan:
    """Of a codec, with the arguments of a Plan."""
    return (IndirectPlan if codec.indirect else Plan)(schedule, codec, *rest)


def begin(plan: Plan | IndirectPlan, *rest) -> Operation | IndirectOperation:
    """A call on a plan, with the arguments of an Operation."""
    return (IndirectOperation if isinstance(plan, IndirectPlan) else Operation)(plan, *rest)


class IndirectOperation:
    """One call on an IndirectPlan. As of an Operation, where both have the same.

    flaws
        place -> what is not finite among own values and among the results: noted at the one place (0, 0).
    """

    def __init__(self, plan: IndirectPlan, given: list[Operand], key, signature: int, spent: Spent):
        self.plan, self.key, self.signature, self.spent = plan, key, signature, spent
        self.processor, self.workspace = plan.processor, plan.processor.workspace
        self.arithmetic = plan.processor.arithmetic
        self.flaws, self._lent = Flaws(self), []
        self.tensors, begin = [], 0
        for bound, each in zip(plan.tensors, given, strict=True):
            self.tensors.append(OwnValues(self, bound, each, begin))
            begin += each.source.size

    @property
    def learned(self) -> list[dict | None]:
        found = [each.learned for each in self.tensors]
        return [] if found.count(None) == len(found) else found

    def active(self):
        return self.processor.active(None, self.key)

    def stages(self):
        left = [(each.bound.sums(each), each.ended, None) for each in self.tensors]
        while left:
            work = KernelCalls(self, left)
            work.advance(None)
            if not work.finished:
                yield work
            left = work.asking
            yield from answer(self, left, self.signature)
            if (yield from self._sum_up(left)) and self.flaws:  # of which all ranks know by now
                return

    def _sum_up(self, asking: list[tuple]):
        """Stages: every Sum that is asked for, those by one codec together; answers take their places.

        Returns whether there was one.
        """
        by_codec: dict[object, list[int]] = {}
        for number, (_, _, asked) in enumerate(asking):
            if isinstance(asked, Sum):
                by_codec.setdefault(asked.codec, []).append(number)
        for codec, numbers in by_codec.items():
            lost = yield from self._sum(codec, [asking[number][2] for number in numbers])
            if self.flaws:
                break
            for number, mine in zip(numbers, lost, strict=True):
                asking[number] = (*asking[number][:2], mine)
        return bool(by_codec)

    def _sum(self, codec, asked: list[Sum]):
        """Stages of an Operation; returns what the encodings of each vector lost."""
        operands = [each.own.operand(each) for each in asked]
        plan = self.plan.of_vectors(codec, tuple(each.values.size for each in asked))
        inner = Operation(plan, operands, self.key, self.signature, self.spent)
        try:
            for number, each in enumerate(asked):
                if each.mark:
                    inner.mark(hash64(number, each.mark))
            if self.flaws:
                inner.flaws.note((0, 0), self.flaws.first)
            yield from inner.stages()
            if inner.flaws:
                self.flaws.note((0, 0), inner.flaws.first)
        finally:
            inner.end()
        self.spent.selected += sum(each.values.size for each in asked)
        return [each.new_residual for each in operands]

    def lend(self, size: int, dtype) -> np.ndarray:
        """An array until the end of the call."""
        dtype = np.dtype(dtype)
        self._lent.append(self.workspace.take(size * dtype.itemsize))
        return self._lent[-1][: size * dtype.itemsize].view(dtype)

    def end(self) -> None:
        for buffer in self._lent:
            self.workspace.give(buffer)
        self._lent.clear()
        for each in self.tensors:
            each.end()
        self.flaws.end()


class OwnValues(Own):
    """Of one tensor of such a call.

    bound
        its Indirect.
    """

    def __init__(self, operation: IndirectOperation, bound, given: Operand, begin: int):
        self._operation, self.bound, self._given, self._begin = operation, bound, given, begin
        self.rank, self.ranks = operation.plan.rank, operation.plan.size
        self.size, self.number = given.source.size, given.stream
        self.feedback, self.learned = given.new_residual is not None, given.learned
        self._sums, self._room = 0, None
        if self.feedback:
            self.values = given.new_residual
        elif _is_float32(given.source):
            self.values = given.source.flat
        else:
            self.values = operation.lend(self.size, np.float32)

    def draw(self):
        return _kernels.Stream(self.number, *ALL_ALIKE, self._given.step & LARGEST_STEP)

    # --- own values ---

    def form(self, begin, stop):
        source, v, residual = self._given.source, self.values[begin:stop], None
        if not self.feedback:
            x = v
            if not _is_float32(source):
                source.load(begin, stop, v)
            flawed = self._operation.arithmetic.not_finite(v)
        else:
            residual, x = self._given.residual[begin:stop], v
            if _is_float32(source):
                x = source.flat[begin:stop]
            else:
                source.load(begin, stop, v)
            flawed = self._operation.arithmetic.add_finite(x, residual, v)
        if flawed:
            self._note_flaws(begin, v, residual)

    def _note_flaws(self, begin: int, v, residual) -> None:
        own = own_flaws(v, residual)
        rank, bad = (self.rank, own) if own.any() else (NO_RANK, ~np.isfinite(v))
        self._note(rank, begin + np.flatnonzero(bad))

    def _note(self, rank: int, elements) -> None:
        self._operation.flaws.note((0, 0), (rank, self._number_of(elements)))

    def _number_of(self, elements) -> int:
        """Of the first of these, in C order, among those of all tensors."""
        return self._begin + self._given.source.c_index(elements)

    # --- sums ---

    def operand(self, asked: Sum) -> Operand:
        """Of the Operation that sums a vector."""
        values, errors = asked.values, None
        if self._operation.flaws:  # which are noted
            values[~np.isfinite(values)] = 0
        exact = asked.codec.unbiased and asked.codec.deterministic
        if self.feedback and not exact:
            errors = self._operation.lend(values.size, np.float32)
            errors[:] = 0
        buffer = Buffer.of_vector(values, self._operation.processor)
        stream = hash64(self.number, self._sums) if self._sums else self.number
        self._sums += 1

        def locate(numbers) -> int:
            return self._number_of(asked.origin(numbers))

        return Operand(buffer, buffer, None, errors, self._given.step, stream, locate=locate)

    # --- the result ---

    def result(self, begin, stop):
        target = self._given.target
        return target.flat[begin:stop] if _is_float32(target) else self._scratch(stop - begin)

    def store(self, begin, stop, y):
        operation, target, scale = self._operation, self._given.target, self._operation.plan.scale
        if _is_float32(target):
            flawed, stored = operation.arithmetic.scale(y, scale), y
        else:
            stored = y * np.float32(scale)
            flawed = target.store(begin, stop, stored)
            target.load(begin, stop, stored)
            if self.feedback and target.dtype != "float64":
                self._keep_rounding(begin, stop, y - stored / np.float32(scale))
        if flawed:
            self._note(NO_RANK, begin + np.flatnonzero(~np.isfinite(stored)))

    def _keep_rounding(self, begin: int, stop: int, error) -> None:
        """Add what a buffer of 16 bits lost, alike on all ranks, to the residual of this rank's share."""
        low, high = (self.size * rank // self.ranks for rank in (self.rank, self.rank + 1))
        low, high = max(low, begin), min(high, stop)
        if low < high:
            self.values[low:high] += error[low - begin : high - begin]

    def ended(self, learned: dict | None) -> None:
        if learned is not None:
            self.learned = learned

    def _scratch(self, size: int):
        if self._room is None or self._room.size < size:
            self._room = self._operation.lend(size, np.float32)
        return self._room[:size]

    def end(self) -> None:
        """The arrays are lent no more."""
        self._operation = self._given = self.values = self._room = None


def _is_float32(buffer: Buffer) -> bool:
    return buffer.flat is not None and buffer.flat.dtype == np.float32

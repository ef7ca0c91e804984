"""Calls with a codec that sums other vectors than the buffers (coding/indirect.py).

The tensors of such a call go on side by side: the vectors that they have summed at one time are the tensors of one
Operation, which is carried out as any other. Here lies what comes before, between and after.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from gqallreduce.coding.frame import LARGEST_STEP
from gqallreduce.coding.indirect import Gathered, Sum, Whole
from gqallreduce.coding.layout import Form
from gqallreduce.registry import CODECS
from gqallreduce.runtime.flaws import Flaws
from gqallreduce.runtime.lending import Lending
from gqallreduce.runtime.operand import Operand, Operands, step_of
from gqallreduce.runtime.operation import Operation
from gqallreduce.runtime.own import OwnValues
from gqallreduce.runtime.packets import gather
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

    runs = repeats = recalls = False
    scales = None

    @property
    def in_stages(self) -> bool:
        """Can the next call be carried out at once, stage by stage (repeated_stages.py)? Only with arrays on the
        host."""
        return self.processor.batches and self.processor.pool is not None

    def __init__(self, schedule, codec, rank, topology: Topology, forms: tuple[Form, ...], average, processor):
        self.codec, self.rank, self.size, self.processor = codec, rank, topology.size, processor
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


def plan_for(schedule, codec, rank, topology: Topology, forms: tuple[Form, ...], *rest, half=None):
    """A Plan, or an IndirectPlan, of a codec, with the arguments of a Plan."""
    if codec.indirect:
        exact = _exact(codec, topology.size, forms)
        if exact is None:
            return IndirectPlan(schedule, codec, rank, topology, forms, *rest)
        codec = exact
    return Plan(schedule, codec, rank, topology, forms, *rest, half=half)


def _exact(codec, size: int, forms: tuple[Form, ...]):
    """What sums such buffers if all that such a codec does is to sum them as they are, and as float32; else None."""
    raw = CODECS["raw"]()
    plain = all(form.dtype == "float32" and form.factors is None for form in forms)
    return raw if plain and all(codec.bind(form, size) == Whole(form.size, raw) for form in forms) else None


def begin(plan: Plan | IndirectPlan, *rest) -> Operation | IndirectOperation:
    """A call on a plan, with the arguments of an Operation."""
    return (IndirectOperation if isinstance(plan, IndirectPlan) else Operation)(plan, *rest)


class IndirectOperation(Lending):
    """One call on an IndirectPlan. As of an Operation, where both have the same.

    flaws
        place -> what is not finite among own values and among the results: noted at the one place (0, 0).
    """

    trace = None

    def __init__(self, plan: IndirectPlan, given: Operands | list[Operand], key, signature: int, spent: Spent):
        super().__init__(plan.processor)
        self.plan, self.key, self.signature, self.spent = plan, key, signature, spent
        self.flaws = Flaws(self)
        self.step = step_of(given) & LARGEST_STEP
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
            if (yield from self._gather(left)) and self.flaws:
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

    def _gather(self, asking: list[tuple]):
        """A stage: every message that all ranks get, in one packet; answers take their places. Was there one?"""
        numbers = [number for number, (_, _, asked) in enumerate(asking) if isinstance(asked, Gathered)]
        if not numbers:
            return False
        messages = [asking[number][2].message for number in numbers]
        everyone, at = (yield from gather(self, np.concatenate(messages))), 0
        for number, message in zip(numbers, messages, strict=True):
            asking[number] = (*asking[number][:2], everyone[:, at : at + message.size])
            at += message.size
        return True

    def _sum(self, codec, asked: list[Sum]):
        """Stages of an Operation; returns what the encodings of each vector lost."""
        operands = [each.own.operand(each) for each in asked]
        plan = self.plan.of_vectors(codec, tuple(each.values.size for each in asked))
        inner = Operation(plan, operands, self.key, self.signature, self.spent)
        inner.trace = self.trace
        try:
            for number, each in enumerate(asked):
                inner.mark(number, each.mark)
            if self.flaws:
                inner.flaws.note((0, 0), self.flaws.first)
            yield from inner.stages()
            if inner.flaws:
                self.flaws.note((0, 0), inner.flaws.first)
        finally:
            inner.end()
        self.spent.selected += sum(each.values.size for each in asked)
        return [each.new_residual for each in operands]

    def end(self) -> None:
        self.give_all_back()
        for each in self.tensors:
            each.end()
        self.flaws.end()

"""A call on a Plan that the runtime in C++ carries out from beginning to end, while Python has nothing to find out."""

from __future__ import annotations

import math

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.preparing import Prepared
from gqallreduce.runtime import native
from gqallreduce.runtime.operand import Operand, Operands, step_of
from gqallreduce.runtime.operation import Operation
from gqallreduce.runtime.plan import Plan
from gqallreduce.stats import Spent
from gqallreduce.transport.exchange import Largest


class Run:
    """A Stage (transport/call.py). Its Operation is made only where the runtime tells of something to be looked at.

    flaw
        the first of any rank's, once it is done; None if there is none.
    learned
        of each tensor, what its codec has learned; empty if none has.
    """

    __slots__ = ("_operation", "flaw", "key", "operands", "plan", "signature", "spent")

    first_lane, trace, poll_at, learned = 0, None, math.inf, ()

    def __init__(self, plan: Plan, operands: Operands | list[Operand], key, signature: int, spent: Spent):
        self.plan, self.operands, self.key, self.signature, self.spent = plan, operands, key, signature, spent
        self._operation = self.flaw = None

    def stages(self):
        """Itself; on a single rank there is nothing to wait for."""
        if self.plan.size > 1:
            yield self
        else:
            native.run_alone(self, self.native())

    def native(self) -> _kernels.NativeOperation:
        """What the runtime carries out."""
        return self._made(self.signature)

    def _made(self, frames: int, coders: list | None = None) -> _kernels.NativeOperation:
        """With this signature in its headers, by the coders of this call or those of the Plan."""
        plan, step = self.plan, step_of(self.operands) & frame.LARGEST_STEP
        pool = plan.processor.pool
        return _kernels.NativeOperation(plan.native, pool, self.operands, frames, step, coders, plan.selects_own)

    @property
    def operation(self) -> Operation:
        """For what Python must look at."""
        if self._operation is None:
            self._operation = Operation(self.plan, self.operands, self.key, self.signature, self.spent)
        return self._operation

    def answer(self, running: _kernels.NativeOperation, event: _kernels.Event) -> None:
        """What the runtime tells: a flaw is noted, anything else raised."""
        native.answer(self.operation, running, event)

    def account(self, running: _kernels.NativeOperation) -> None:
        """The runtime is done with it."""
        self.spent.count(running)
        self.flaw = running.first_flaw

    def end(self) -> None:
        """Give everything borrowed back; also after an error."""
        if self._operation is not None:
            self._operation.end()


class ScaledRun(Run):
    """The same of codecs with a scale that all ranks share: they agree on it first, of each tensor the largest."""

    __slots__ = ("_coder", "_running")

    def stages(self):
        """An exchange of the scales, then itself."""
        self._running = super().native()
        yield from self.stages_with(self.plan.scales.own(self._running))

    def stages_with(self, found: np.ndarray, running: _kernels.NativeExchange | None = None):
        """The same with own scales, whose exchange the runtime may have begun already."""
        if self.plan.size > 1:
            exchange = Largest(self.plan.rank, self.plan.size, self.plan.scales.lane, found, self.signature)
            if running is not None:
                exchange.go_on(running)
            yield exchange
            found = exchange.found
        self._coder = self.plan.scales.take(self._running, found)
        yield from super().stages()

    def go_on(self, running: _kernels.NativeOperation, coder: _kernels.Coder | None) -> None:
        """With what was begun already: there is no Coder before ranks have agreed on scales."""
        self._running, self._coder = running, coder

    def native(self) -> _kernels.NativeOperation:
        return self._running

    def answer(self, running: _kernels.NativeOperation, event: _kernels.Event) -> None:
        if self._operation is None:
            self.operation.prepare_all(self.plan.codec.knowing(unit=self._coder.unit))
        super().answer(running, event)


class KnownRun(Run):
    """The same of codecs that learn, in a call for which what they have learned is enough.

    known
        the Prepared of each tensor.
    """

    __slots__ = ("known",)

    def __init__(self, known: list[Prepared], *rest):
        super().__init__(*rest)
        self.known = known

    def native(self) -> _kernels.NativeOperation:
        frames, coders = self.signature, [each.codec.kept_coder for each in self.known]
        for number, each in enumerate(self.known):
            frames = _kernels.marked(frames, number, each.mark)
        return self._made(frames, coders)

    @property
    def learned(self) -> list[dict | None]:
        return [each.learned for each in self.known]

    def answer(self, running: _kernels.NativeOperation, event: _kernels.Event) -> None:
        if self._operation is None:
            for values, prepared in zip(self.operation.tensors, self.known, strict=True):
                values.prepared(prepared)
        super().answer(running, event)


def run_of(known: list[Prepared] | None, plan, *rest) -> Run | None:
    """What carries a call on a Plan out in C++; None if an Operation must carry it out.

    known
        what `Plan.known` has found, for a plan that `recalls`.
    """
    if plan.recalls:
        return None if known is None else KnownRun(known, plan, *rest)
    if plan.runs:
        return Run(plan, *rest)
    return ScaledRun(plan, *rest) if plan.scales is not None else None

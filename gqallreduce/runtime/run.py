"""A call on a Plan that the runtime in C++ carries out from beginning to end, while Python has nothing to find out."""

from __future__ import annotations

import math

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.runtime import native
from gqallreduce.runtime.operand import Operand, Operands, step_of
from gqallreduce.runtime.operation import Operation
from gqallreduce.runtime.plan import Plan
from gqallreduce.stats import Spent


class Run:
    """A Stage (transport/call.py). Its Operation is made only where the runtime tells of something to be looked at.

    flaw
        the first of any rank's, once it is done; None if there is none.
    """

    __slots__ = ("_operation", "flaw", "key", "operands", "plan", "signature", "spent")

    first_lane, trace, poll_at = 0, None, math.inf

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
        plan, step = self.plan, step_of(self.operands) & frame.LARGEST_STEP
        pool = plan.processor.pool
        return _kernels.NativeOperation(
            plan.native, pool, self.operands, self.signature, step, None, plan.selects_natively
        )

    def answer(self, running: _kernels.NativeOperation, event: _kernels.Event) -> None:
        """What the runtime tells: a flaw is noted, anything else raised."""
        if self._operation is None:
            self._operation = Operation(self.plan, self.operands, self.key, self.signature, self.spent)
        native.answer(self._operation, running, event)

    def account(self, running: _kernels.NativeOperation) -> None:
        """The runtime is done with it."""
        self.spent.count(running)
        self.flaw = running.first_flaw

    def end(self) -> None:
        """Give everything borrowed back; also after an error."""
        if self._operation is not None:
            self._operation.end()

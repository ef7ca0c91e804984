"""The next call of a known key whose stages are carried out at once (repeated.py), each for as long as it is over soon.

The stages are those of any such call: ranks may differ in which of the two ways they take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime.arguments import Given
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.indirect import begin
from gqallreduce.runtime.memory import keep_learned
from gqallreduce.runtime.operand import Operands
from gqallreduce.runtime.preparation import KernelCalls


class Again(ABC):
    """One such call. It has no reference to the Repeat whose it is, which has one to this.

    call
        the same as a Call, once it has become one.
    data
        of that, the Stage whose messages come, if they are no one else's.
    """

    data = None

    def __init__(self):
        self.call = self._stages = self._stage = None
        self._over = False

    @abstractmethod
    def whole(self, repeat):
        """A generator of Stages. It yields None where the call must be a Call before it goes on, and raises errors that
        all ranks have alike after that only."""

    @usual_arithmetic()
    def carry_out(self, repeat) -> bool:
        """Is the call over?"""
        self._stages = self.whole(repeat)
        try:
            for stage in self._stages:
                self._stage = stage
                if stage is None or not _is_over_soon(repeat, stage):
                    return False
                self._stage = None
        except BaseException:
            self._stages.close()
            raise
        self._over = True
        return True

    def stages(self, repeat, call):
        """What is left of it as a Call: the Stage that the runtime carries out now, if any, and those after it."""
        self.call, call.data = call, self.data
        try:
            if self._stage is not None:
                yield self._stage
            if not self._over:
                yield from self._stages
        finally:
            self._stages.close()
        if call.spent is None:
            call.spent, call.states, repeat.waited = repeat.spent, repeat.states, call.wait
            repeat.take_effect()


def _is_over_soon(repeat, stage) -> bool:
    """Begins a Stage. If it is not over, its lanes have yet to begin, or the runtime goes on with it."""
    if isinstance(stage, KernelCalls):
        while not stage.finished:  # nothing else is under way, so there is nothing to poll for
            stage.advance(None)
        return True
    running = stage.native()
    if running is None or running.longest > repeat.link.requests.least_limit:
        return False
    repeat.running = running
    if not repeat.run_with_others(running, stage.first_lane, stage.signature):
        return False
    repeat.running = None
    stage.account(running)
    return True


class IndirectAgain(Again):
    """With a codec that sums other vectors than the buffers (indirect.py)."""

    def whole(self, repeat):
        agreed = repeat.agreed
        given = repeat.given = Given.known(agreed, repeat.arrays, repeat.into)
        operands = Operands(given, repeat.states, agreed.streams)
        operation = self.data = begin(repeat.known.plan, operands, agreed.name, agreed.signature, repeat.spent)
        try:
            yield from operation.stages()
            flaw, learned = operation.flaws.first, operation.learned
        finally:
            operation.end()
        if flaw is not None:
            if self.call is None:
                yield None
            raise not_finite(flaw, given.keys, given.sources, repeat.link.size)
        if learned:
            repeat.states = keep_learned(repeat.states, agreed.keys, learned)

"""The first steps of a training, which have rules of their own, and residuals that go on under the rules after them."""

from __future__ import annotations

from collections.abc import Callable

from gqallreduce.models.model import Model
from gqallreduce.runtime.arguments import integer
from gqallreduce.runtime.memory import State


class WarmUp:
    """Which steps, counted from 1, are of the warm-up: the first so many, or those of which a function is true."""

    def __init__(self, steps: int | Callable[[int], bool]):
        self._steps = steps if callable(steps) else integer("warmup", steps)
        if not callable(steps) and self._steps < 0:
            raise ValueError(f"warmup={steps!r}, expected a number of steps, 0 or more, or a function of the step")

    def __bool__(self) -> bool:
        return callable(self._steps) or self._steps > 0

    def __repr__(self) -> str:
        """For the comparison of ranks, whose functions are not compared."""
        return "a function" if callable(self._steps) else str(self._steps)

    @property
    def is_at_first(self) -> bool:
        """Is it the first so many steps, so that it has an end?"""
        return not callable(self._steps)

    def has(self, step: int) -> bool:
        """Is a step of the warm-up?"""
        return bool(self._steps(step)) if callable(self._steps) else step <= self._steps

    def ends(self, step: int) -> bool:
        """Is this step its last one?"""
        return self.is_at_first and step == self._steps > 0


def require_feedback(warmup: WarmUp, before: Model, after: Model, feedback: dict[str, bool]) -> None:
    """ValueError for a tensor whose residual would be lost at the end of the warm-up."""
    for name, tensor in after.tensors.items():
        first = before.tensors[name].scheme
        if feedback[first] and not warmup.is_at_first and first != tensor.scheme:
            raise ValueError(f"{name!r} is summed by {first} in some steps, expected a scheme without /ef there")
        if feedback[first] and not feedback[tensor.scheme]:
            raise ValueError(
                f"{name!r} is summed by {first} in the warm-up and by {tensor.scheme} after it: its residual would be "
                "lost; expected both with /ef, or the first without"
            )


def hand_over(before: Model, after: Model, allreduces: dict) -> None:
    """Residuals of the warm-up become those of the rules after it; undone with the step that this is part of.

    Steps are counted on, so that random streams are new ones.
    """
    for name, old, new in _changes(before, after):
        state = allreduces[old].memory.get(name)
        if state is not None:
            moved = State(state.form, state.step, residual=state.residual, processor=state.processor)
            allreduces[new].memory.commit({name: moved})


def forget(before: Model, after: Model, allreduces: dict) -> None:
    """What the warm-up has kept of tensors that other schemes sum now, once the first step after it has succeeded."""
    for name, old, _ in _changes(before, after):
        allreduces[old].memory.forget(name)


def _changes(before: Model, after: Model):
    for name, tensor in after.tensors.items():
        if before.tensors[name].scheme != tensor.scheme:
            yield name, before.tensors[name].scheme, tensor.scheme

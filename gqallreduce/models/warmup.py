"""The first steps of a training, which have rules of their own, and residuals that go on under the rules after them."""

from __future__ import annotations

from gqallreduce.models.model import Model
from gqallreduce.runtime.memory import State


def require_feedback(before: Model, after: Model, feedback: dict[str, bool]) -> None:
    """ValueError for a tensor whose residual would be lost at the end of the warm-up."""
    for name, tensor in after.tensors.items():
        first = before.tensors[name].scheme
        if feedback[first] and not feedback[tensor.scheme]:
            raise ValueError(
                f"{name!r} is summed by {first} in the warm-up and by {tensor.scheme} after it: its residual would be "
                "lost; expected both with /ef, or the first without"
            )


def hand_over(before: Model, after: Model, allreduces: dict) -> None:
    """Residuals of the warm-up become those of the rules after it; undone with the step that this is part of."""
    for name, old, new in _changes(before, after):
        state = allreduces[old].memory.get(name)
        if state is not None and state.residual is not None:
            moved = State(state.form, residual=state.residual, processor=state.processor)
            allreduces[new].memory.commit({name: moved})


def forget(before: Model, after: Model, allreduces: dict) -> None:
    """What the warm-up has kept of tensors that other schemes sum now, once the first step after it has succeeded."""
    for name, old, _ in _changes(before, after):
        allreduces[old].memory.forget(name)


def _changes(before: Model, after: Model):
    for name, tensor in after.tensors.items():
        if before.tensors[name].scheme != tensor.scheme:
            yield name, before.tensors[name].scheme, tensor.scheme

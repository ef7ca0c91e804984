"""What an Operation is given of a tensor."""

from __future__ import annotations

from typing import NamedTuple


class Operand(NamedTuple):
    """One tensor of a call.

    source, target
        Buffers; the same in an in-place call.
    residual, new_residual
        before and after the call; None without feedback.
    step, stream
        how many calls of its key have succeeded; what its random streams are made of.
    learned
        what the State of the key holds of its codec.
    locate
        (elements) -> the number by which errors name the first of them; None for that of a tensor of the Plan.
    """

    source: object
    target: object
    residual: object
    new_residual: object
    step: int
    stream: int
    learned: dict | None = None
    locate: object = None

    @classmethod
    def of(cls, source, target, residual, after, stream: int) -> Operand:
        """With the residual of before, for a call that leads to the State `after`."""
        _, step, learned, new_residual, *_ = after
        return tuple.__new__(cls, (source, target, residual, new_residual, step - 1, stream, learned, None))

"""What an Operation is given of its tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from gqallreduce import _kernels


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
    def of(cls, source, target, after, stream: int) -> Operand:
        """For a call that leads to the State `after`."""
        return cls(source, target, after.spare, after.residual, after.step - 1, stream, after.learned)


class Operands(Sequence):
    """An Operand of each tensor of a call; made only when they are looked at.

    given, states, streams
        what they are made of: the Given (arguments.py), the States after the call by key, what random streams are made
        of (array of uint64).
    arrays
        the same buffers as the runtime in C++ finds them; None if it must look at each Operand. `into`: where results
        are written; None in place.
    """

    __slots__ = ("_made", "arrays", "given", "into", "states", "streams")

    def __init__(self, given, states, streams: array):
        self.given, self.states, self.streams, self.arrays = given, states, streams, given.arrays
        self.into = given.into
        self._made = None

    def __len__(self) -> int:
        return len(self.streams)

    def __getitem__(self, number):
        if self._made is None:
            parts = self.given.sources, self.given.targets, self.states.values(), self.streams
            self._made = [Operand.of(*each) for each in zip(*parts, strict=True)]
        return self._made[number]


def step_of(operands) -> int:
    """The sum of all steps."""
    if isinstance(operands, Operands):
        return _kernels.steps_before(operands.states)
    return sum([each.step for each in operands])

"""The slices of a gradient whose coefficients are summed: of filters, or of one place of all filters and inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gqallreduce.coding.layout import BLOCK, Form
from gqallreduce.coding.order import axes

LONGEST = 512  # of slices, if nothing is said: the basis costs the cube of that


@dataclass(frozen=True)
class Slices:
    """Where the slices of a buffer lie.

    length, count
        K, and how many.
    extents, turned
        of the axes in memory; in which order the slices have them, None if that is the same.
    """

    length: int
    count: int
    extents: tuple[int, ...]
    turned: tuple[int, ...] | None

    @classmethod
    def of(cls, codec, form: Form) -> Slices | None:
        """As the options K, d, order and layout of gradiveq say; None if there are none."""
        if len(form.shape) < 2 or not form.size:
            return None
        every = list(range(len(form.shape)))
        filters, inputs = (0, 1) if codec.layout == "oihw" else (every[-1], every[-2])
        places = [axis for axis in every if axis not in (filters, inputs)]
        if codec.order == "hwdf":
            wanted, unit = [*places, inputs, filters], form.shape[filters] * form.shape[inputs]
        else:
            wanted, unit = [filters, *(axis for axis in every if axis != filters)], form.size // form.shape[filters]
        length = codec.K or _usual_length(unit, form.size)
        if form.size < length or codec.d > length:
            return None
        in_memory = axes(len(form.shape), form.order)
        turned = [in_memory.index(axis) for axis in wanted]
        wide = [axis for axis in turned if form.shape[in_memory[axis]] > 1]
        extents = tuple(form.shape[axis] for axis in in_memory)
        return cls(length, form.size // length, extents, tuple(turned) if wide != sorted(wide) else None)

    @property
    def size(self) -> int:
        """Of all slices."""
        return self.length * self.count

    def blocks(self):
        """(begin, stop, first slice) of whole slices, for one kernel call each."""
        step = max(1, BLOCK // self.length) * self.length
        for begin in range(0, self.size, step):
            yield begin, min(begin + step, self.size), begin // self.length

    def ordered(self, vector: np.ndarray) -> np.ndarray:
        """A vector in memory order, in the order of the slices: itself or a copy."""
        if self.turned is None:
            return vector
        return vector.reshape(self.extents).transpose(self.turned).reshape(-1)

    def put(self, ordered: np.ndarray, vector: np.ndarray) -> None:
        """The vector in memory order := one in the order of the slices."""
        if self.turned is None:
            vector[:] = ordered
            return
        shape = [self.extents[axis] for axis in self.turned]
        vector.reshape(self.extents)[...] = ordered.reshape(shape).transpose(np.argsort(self.turned))

    def origin(self, numbers: np.ndarray) -> np.ndarray:
        """Elements in memory order of numbers in the order of the slices."""
        if self.turned is None:
            return numbers
        shape = [self.extents[axis] for axis in self.turned]
        found = np.unravel_index(numbers, shape)
        back = np.argsort(self.turned)
        return np.ravel_multi_index([found[axis] for axis in back], self.extents)


def _usual_length(unit: int, size: int) -> int:
    if unit > LONGEST:
        return unit // -(-unit // LONGEST)
    return unit * min(LONGEST // unit, max(1, size // (2 * unit)))

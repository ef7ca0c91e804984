"""What a rank owes between steps, per key: the part of its gradients that no message has carried yet.

Each key has two arrays: `owed` is what the next call adds to its gradient, `owing` is written during that call and
becomes `owed` only when the call has succeeded, so that an error loses nothing.
"""

from __future__ import annotations

import math

import numpy as np

from gqallreduce.layout import Grid, Region, blocks
from gqallreduce.selection import Parts


class Memory:
    """Residuals, float32, in memory order of the buffer, in units of the sum.

    A key's arrays lie in the memory of the processor that the key was last opened for.
    """

    def __init__(self):
        self._pairs: dict[str, list] = {}
        self._homes: dict[str, object] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._pairs

    def __iter__(self):
        """Keys, sorted."""
        return iter(sorted(self._pairs))

    def open(self, key: str, size: int, processor) -> tuple:
        """(owed, owing) of a key in the processor's memory, zeros when it is new."""
        if key not in self._pairs:
            self._pairs[key] = [processor.zeros(size), processor.zeros(size)]
        elif self._homes[key] is not processor:
            owed = self._homes[key].on_host(self.owed(key))
            self._pairs[key] = [processor.adopt(owed), processor.zeros(size)]
        self._homes[key] = processor
        return tuple(self._pairs[key])

    def owed(self, key: str):
        return self._pairs[key][0]

    def home(self, key: str):
        """The processor in whose memory the key's arrays lie."""
        return self._homes[key]

    def norm(self, key: str) -> float:
        """Euclidean norm of what is owed. Not by BLAS: its threads spin into the next call."""
        processor = self.home(key)
        with processor.active(None, key):
            return math.sqrt(_sum_of_squares(processor, self.owed(key)))

    def commit(self, key: str) -> None:
        """The call has succeeded: what it wrote is what is owed now."""
        self._pairs[key].reverse()

    def set(self, key: str, values: np.ndarray, processor) -> None:
        """What is owed, in the processor's memory."""
        self._pairs[key], self._homes[key] = [values, np.zeros_like(values)], processor

    def clear(self, key: str) -> None:
        self._pairs[key][0][:] = 0


def _sum_of_squares(processor, x) -> float:
    """The sum of x * x: of each block by the sum rule, blocks in order, so alike on all processors."""
    grid = Grid(1)
    regions = [Region(begin, end - begin, grid, x.size) for begin, end in blocks(0, x.size, grid)]
    parts = Parts(processor.extents(regions), lambda part: (x[part.start : part.start + part.size], None, None))
    return sum(squares for _, squares, _ in processor.arithmetic.measure(parts, squares=True))

"""What a rank owes between steps, per key: the part of its gradients that no message has carried yet.

Each key has two arrays: `owed` is what the next call adds to its gradient, `owing` is written during that call and
becomes `owed` only when the call has succeeded, so that an error loses nothing.
"""

from __future__ import annotations

import math

import numpy as np

_NORM_BLOCK = 1 << 16


class Memory:
    """Residuals, float32, in memory order of the buffer, in units of the sum."""

    def __init__(self):
        self._pairs: dict[str, list[np.ndarray]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._pairs

    def __iter__(self):
        """Keys, sorted."""
        return iter(sorted(self._pairs))

    def open(self, key: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(owed, owing) of a key, zeros when it is new."""
        if key not in self._pairs:
            self._pairs[key] = [np.zeros(size, np.float32), np.zeros(size, np.float32)]
        owed, owing = self._pairs[key]
        return owed, owing

    def owed(self, key: str) -> np.ndarray:
        return self._pairs[key][0]

    def norm(self, key: str) -> float:
        """Euclidean norm of what is owed, in float64 by blocks. Not by BLAS: its threads spin into the next call."""
        owed, squares = self.owed(key), 0.0
        for start in range(0, owed.size, _NORM_BLOCK):
            block = owed[start : start + _NORM_BLOCK].astype(np.float64)
            squares += float(np.einsum("i,i", block, block))
        return math.sqrt(squares)

    def commit(self, key: str) -> None:
        """The call has succeeded: what it wrote is what is owed now."""
        self._pairs[key].reverse()

    def set(self, key: str, values: np.ndarray) -> None:
        self._pairs[key] = [values, np.zeros_like(values)]

    def clear(self, key: str) -> None:
        self._pairs[key][0][:] = 0

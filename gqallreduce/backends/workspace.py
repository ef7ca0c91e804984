"""Buffers that are used again by calls of the same sizes."""

from __future__ import annotations

import numpy as np

_ALIGNMENT = 64


class Workspace:
    """Byte arrays lent and given back, by size class (steps of an eighth of a power of two).

    allocate
        makes an aligned uint8 array of so many bytes; in host memory by default.
    """

    def __init__(self, allocate=None):
        self._allocate = allocate or _in_host_memory
        self._free: dict[int, list] = {}

    def take(self, nbytes: int) -> np.ndarray:
        """A uint8 array of at least `nbytes`, aligned to 64 bytes, contents undefined."""
        size = _size_class(nbytes)
        free = self._free.get(size)
        if free:
            return free.pop()
        return self._allocate(size)

    def give(self, array: np.ndarray) -> None:
        """Back for the next `take`; the whole array that `take` returned."""
        self._free.setdefault(len(array), []).append(array)


def _in_host_memory(nbytes: int) -> np.ndarray:
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + nbytes]


def _size_class(nbytes: int) -> int:
    if nbytes <= 1024:
        return 1024
    step = 1 << ((nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step

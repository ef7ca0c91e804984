"""Do two buffers share memory?  Exact for what a buffer's memory can be: runs of bytes at equal distances."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Runs(NamedTuple):
    """`count` runs of `length` bytes, each `distance` > 0 bytes behind the one before, from an address on."""

    address: int
    count: int
    length: int
    distance: int


def runs(memory) -> Runs:
    """Those of an array of one axis without gaps, or of two with gaps between its rows; none may be empty."""
    address = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.data.ptr
    length = memory.shape[-1] * memory.itemsize
    if memory.ndim == 1:
        return Runs(address, 1, length, length)
    return Runs(address, memory.shape[0], length, memory.strides[0])


def share_a_byte(one: Runs, other: Runs) -> bool:
    """Is a byte in both? Time and memory grow with the smaller number of runs; constant if the distances are equal."""
    if one.distance == other.distance:  # then only how far a run lies from another counts, not which two they are
        back = other.count - 1
        one = one._replace(address=one.address - back * one.distance, count=one.count + back)
        other = other._replace(count=1)
    few, many = sorted((one, other), key=lambda each: each.count)
    begins = few.address + few.distance * np.arange(few.count)
    ends_behind = np.maximum((begins - many.length - many.address) // many.distance + 1, 0)  # the first that does
    begins_before = many.address + ends_behind * many.distance < begins + few.length
    return bool((begins_before & (ends_behind < many.count)).any())

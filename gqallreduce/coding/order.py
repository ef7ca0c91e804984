"""The order of an array's axes in memory, as text: "C", "F", or else the axes from slowest to fastest, as "0,2,3,1".

It is "C" where C order fits and "F" where only that fits. Axes of extent 1 come first in the other texts, so that equal
memory has one order, whatever strides an array states for such axes.
"""

from __future__ import annotations

import math

import numpy as np


def axes(count: int, order: str) -> tuple[int, ...]:
    """The axes from the one that varies slowest in memory to the fastest. ValueError if the text is no such order."""
    if order in ("C", "F"):
        return tuple(range(count) if order == "C" else reversed(range(count)))
    found = tuple(int(axis) for axis in order.split(",") if axis.isdecimal())
    if sorted(found) != list(range(count)) or order.count(",") != count - 1:
        raise ValueError(f"got order {order!r}, expected C, F, or each of {count} axes once")
    return found


def to_array(vector, shape: tuple[int, ...], order: str):
    """A vector in memory order as an array of this shape and order, without a copy."""
    if order in ("C", "F"):
        return vector.reshape(shape, order=order)
    slowest_first = axes(len(shape), order)
    return vector.reshape([shape[axis] for axis in slowest_first]).transpose(np.argsort(slowest_first).tolist())


def to_vector(array, order: str):
    """The elements of an array in this order; a view if that is its own."""
    return array.transpose(axes(array.ndim, order)).reshape(-1)


def c_index(positions, shape: tuple[int, ...], order: str) -> int:
    """The least C-order index of positions in memory order."""
    if order == "C" or len(shape) < 2:
        return int(np.min(positions))
    slowest_first = axes(len(shape), order)
    places = np.unravel_index(positions, [shape[axis] for axis in slowest_first])
    by_axis = [places[slowest_first.index(axis)] for axis in range(len(shape))]
    return int(np.min(np.ravel_multi_index(by_axis, shape)))


def in_memory(shape, strides, itemsize: int) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """(order, shape, strides) of an array's memory: one run of elements, or runs with gaps (a leading dimension).

    Strides are in bytes. ValueError if there are gaps at more places.
    """
    wide = [axis for axis, extent in enumerate(shape) if extent > 1]
    for order in ("C", "F", _by_strides(shape, strides)):
        slowest_first = axes(len(shape), order)
        levels = _levels([(shape[axis], strides[axis]) for axis in slowest_first if shape[axis] > 1])
        if levels == [(math.prod(shape), itemsize)]:
            return order, (math.prod(shape),), (itemsize,)
        if len(levels) == 1 and len(shape) > 1 and (shape[slowest_first[-1]] == 1 or len(wide) == 1):
            levels.append((1, itemsize))  # a column of a C-ordered matrix, or a row of the other
        (runs, leading), (run, stride) = levels if len(levels) == 2 else ((0, 0), (0, 0))
        if stride == itemsize and leading > run * stride:
            return order, (runs, run), (leading, stride)
    raise ValueError(
        f"got shape {tuple(shape)} with strides {tuple(strides)}, expected axes in any order without gaps in memory, "
        "or with gaps at one place (a leading dimension); copy it first (numpy.ascontiguousarray)"
    )


def _by_strides(shape, strides) -> str:
    slowest_first = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -strides[axis] * (shape[axis] > 1)))
    return ",".join(map(str, slowest_first))


def _levels(slowest_first) -> list[tuple[int, int]]:
    """(extent, stride) of axes, those merged that are one run."""
    levels: list[tuple[int, int]] = []
    for extent, stride in slowest_first:
        if levels and levels[-1][1] == extent * stride:
            levels[-1] = levels[-1][0] * extent, stride
        else:
            levels.append((extent, stride))
    return levels

"""The operations on arrays in host memory that codecs and values ask for; cuda/arithmetic.py has the same for a device.

x (values), e (residual before, or None), r (new residual, or None), y (what is decoded) and m (multiples of a unit) are
float32 vectors where nothing else is said, wire is uint8, and a region (or a Span of several, whose elements and
messages follow each other) says where in the vector they lie.
What may meet a value that is not finite returns whether it did, or as a number of bytes NOT_FINITE; a device returns
None, or a number of bytes that only it knows yet: see processor.py.
"""

from __future__ import annotations

import math

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.selection import Kept, select_largest
from gqallreduce.errors import WireError

NOT_FINITE = -1
# With feedback larger magnitudes are refused where several errors of one value may meet, whose sum must stay finite.
LARGEST_WITH_ERROR = 2.0**126
SPREAD_REASON = ""  # for stats: where levels_spread counts, if that is elsewhere than where arrays lie

__all__ = ("select_largest",)


# --- buffers ---


def copy(target, source) -> None:
    """target := source, of one shape and dtype; any strides."""
    target[...] = source


def clear(y) -> None:
    """y := 0."""
    y[:] = 0


def contiguous(array):
    """The array itself, or a copy of it in C order."""
    return np.ascontiguousarray(array)


def widen(source, y, number_format: int) -> None:
    """y := source, a contiguous array of that format; a float64 beyond float32 becomes an infinity."""
    _kernels.widen(source.reshape(-1).view(np.uint8), y, number_format)


def narrow(x, target, number_format: int) -> bool:
    """target, a contiguous array of that format, := x rounded to nearest even."""
    return bool(_kernels.narrow(x, target.reshape(-1).view(np.uint8), number_format))


def not_finite(x) -> bool:
    """Is a value not finite?"""
    return not (_kernels.all_finite(x) if x.dtype == np.float32 else np.isfinite(x).all())


# --- float32 or float64 alike ---


def add_finite(x, e, y) -> bool:
    """y := x + e; y may be x."""
    if y.dtype == np.float32:
        return bool(_kernels.add_finite(x, e, y))
    if e is None:
        y[:] = x
    else:
        np.add(x, e, out=y)
    return not np.isfinite(y).all()


def scale(y, factor: float) -> bool:
    """y *= factor."""
    if y.dtype == np.float32:
        return bool(_kernels.scale(y, factor))
    y *= factor
    return not np.isfinite(y).all()


def exceeds(x, limit: float) -> bool:
    """Is a magnitude above the limit? Not of a NaN."""
    return x.size > 0 and bool(max(x.max(), -x.min()) > limit)


def multiply(x, factor: float, y) -> None:
    """y := x * factor, whatever comes of it; y may be x."""
    np.multiply(x, y.dtype.type(factor), out=y)


def subtract(a, b, y) -> None:
    """y := a - b; y may be a or b."""
    np.subtract(a, b, out=y)


def accumulate(a, y) -> None:
    """y += a."""
    np.add(y, a, out=y)


# --- codecs ---


def plain_encode(x, e, r, wire, number_format: int) -> bool:
    return bool(_kernels.plain_encode(x, e, r, wire, number_format))


def plain_decode(wire, y, number_format: int, scale: float, add: bool, streaming: bool = False) -> None:
    _kernels.plain_decode(wire, y, number_format, scale, add, streaming)


def wide_encode(x, e, wire) -> bool:
    """x is float64, and so are the numbers in the wire."""
    return add_finite(x, e, wire.view(np.float64))


def wide_decode(wire, y, scale: float, add: bool) -> None:
    values = wire.view(np.float64)
    if not np.isfinite(values).all():
        raise WireError("a value on the wire is not finite")
    if add:
        y += values
    else:
        np.multiply(values, scale, out=y)


def onebit_encode(x, e, r, wire, region) -> bool:
    return bool(_kernels.onebit_encode(x, e, r, wire, region.table))


def onebit_decode(wire, y, region, scale: float, add: bool) -> None:
    if add:
        _kernels.onebit_decode_add(wire, y, region.table)
    else:
        _kernels.onebit_decode(wire, y, region.table, scale)


def levels_encode(x, e, r, wire, levels, l2: bool, region, stream) -> bool:
    return bool(_kernels.levels_encode(x, e, r, wire, levels, l2, region.table, stream))


def levels_decode(wire, y, levels, region, scale: float, add: bool) -> None:
    if add:
        _kernels.levels_decode_add(wire, y, levels, region.table)
    else:
        _kernels.levels_decode(wire, y, levels, region.table, scale)


def levels_spread(x, e, weight: np.ndarray, l2: bool, power: int, region) -> None:
    """weight, float64 in host memory, += how v / norm lies in the buckets, each of which counts by norm^power."""
    _kernels.levels_spread(x, e, l2, power, region.table, weight)


def select_columns(x, e, r, region, pi: int, separate: bool) -> Kept:
    """The largest of each column, one value in pi; v = x + e is left in r."""
    table = region.table
    capacity = _kernels.adaptive_select_bound(table, pi)
    index, value = np.empty(capacity, np.uint32), np.empty(capacity, np.float32)
    counts = np.empty(len(table), np.int64)
    count = _kernels.adaptive_select_columns(x, e, r, index, value, counts, table, pi, separate)
    return Kept(index[: max(count, 0)], value[: max(count, 0)], counts, finite=count >= 0)


def adaptive_encode(kept: Kept, x, r, wire, region) -> int:
    if not kept.finite:
        return NOT_FINITE
    return _kernels.adaptive_encode(kept.index, kept.value, kept.counts, r, wire, region.table)


def adaptive_decode(wire, y, region, scale: float, add: bool, streaming: bool = False) -> int:
    if add:
        return _kernels.adaptive_decode_add(wire, y, region.table)
    return _kernels.adaptive_decode(wire, y, region.table, scale, streaming)


def measure(parts, squares: bool):
    """For each region of the parts: (max |v|, sum of v * v by the sum rule or 0.0, how many); v = x + e."""
    for region, x, e, _ in parts:
        table = region.table
        largest, totals = _kernels.measure(x, e, squares, table)
        if len(table) == 1:
            yield float(largest[0]), float(totals[0]), x.size
            continue
        yield from zip(largest.tolist(), totals.tolist(), table.sizes.tolist(), strict=True)


def scale_of(measured, clip: float | None) -> float:
    """The largest magnitude, or clip times the root mean square where that is less; inf if a value is not finite."""
    largest = squares = 0.0
    count = 0
    for magnitude, summed, size in measured:
        if not magnitude < math.inf:
            return math.inf
        largest, squares, count = max(largest, magnitude), squares + summed, count + size
    if not clip or not count:
        return largest
    clipped = clip * math.sqrt(squares / count)  # rounded to float32, it stays at most `largest`, which is one
    return largest if clipped >= largest else float(np.float32(clipped))


def own_unit(x, e, region, clip: float | None) -> np.ndarray:
    """`scale_of` each region by itself."""
    measured = measure([(region, x, e, None)], bool(clip))
    return np.array([scale_of([one], clip) for one in measured], np.float32)


# What follows takes as `unit` one float, or an array with one float32 for each region.


def integers_encode_own(x, e, r, wire, unit, ternary: bool, region, stream) -> int:
    return _kernels.integers_encode_own(x, e, r, wire, unit, ternary, region.table, stream)


def integers_quantize(x, e, r, m, unit, ternary: bool, region, stream) -> bool:
    return bool(_kernels.integers_quantize(x, e, r, m, unit, ternary, region.table, stream))


def integers_lower(m, unit, region) -> bool:
    """m *= unit."""
    if isinstance(unit, float):
        return scale(m, unit)
    with np.errstate(over="ignore", invalid="ignore"):
        m *= np.repeat(unit, region.table.sizes)
    return not_finite(m)


def integers_encode(m, wire, unit, terms: int, region) -> int:
    return _kernels.integers_encode(m, wire, unit, terms, region.table)


def integers_decode(wire, y, unit, terms: int, whole: bool, region, scale=1.0, add=False) -> int:
    return _kernels.integers_decode(wire, y, unit, terms, whole, region.table, scale, add)

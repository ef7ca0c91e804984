"""How each operation on arrays of a device becomes launches of kernels.

`launch(family, kernel, blocks, threads, *arguments)` is the device: arrays stand for their address, None for a null
pointer, and NumPy scalars have the kernel's types. x, e (what is owed, or None), r (what will be owed, or None) and y
are float32 arrays, wire uint8, all contiguous. `status` is a uint32 array of one element, into which kernels set bits:
NOT_FINITE, MALFORMED. A launch of no blocks is left out.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.layout import Region

NOT_FINITE, MALFORMED = 1, 2

_THREADS = 256  # of kernels that work value by value
_BLOCKS = 4096  # at most, of those: each thread goes on with what lies one grid further
_TEAM_THREADS = 128
_SCAN_THREADS = 1024
_DIGITS = ((19, 12), (7, 12), (0, 7))  # of a magnitude: the bits below, the bits
_SHORT = 1024  # units up to here are worked on by one warp each


def plain_encode(launch, x, e, r, wire, number_format: int, status) -> None:
    _by_fours(launch, "plain_encode", x.size, x, e, r, wire, np.uint64(x.size), np.int32(number_format), status)


def plain_decode(launch, wire, y, number_format: int, scale: float, add: bool, status) -> None:
    how = np.int32(number_format), np.float32(scale), np.int32(add)
    _by_fours(launch, "plain_decode", y.size, wire, y, np.uint64(y.size), *how, status)


def buffer_widen(launch, source, y, number_format: int, status) -> None:
    """y = source, the bytes of as many numbers of a format."""
    _by_fours(launch, "buffer_widen", y.size, source, y, np.uint64(y.size), np.int32(number_format), status)


def buffer_narrow(launch, x, target, number_format: int, status) -> None:
    _by_fours(launch, "buffer_narrow", x.size, x, target, np.uint64(x.size), np.int32(number_format), status)


def buffer_add(launch, x, e, y, status) -> None:
    """y = x + e; y may be x."""
    _by_fours(launch, "buffer_add", x.size, x, e, y, np.uint64(x.size), status)


def buffer_scale(launch, y, factor: float, status) -> None:
    _by_fours(launch, "buffer_scale", y.size, y, np.float32(factor), np.uint64(y.size), status)


def levels_encode(launch, x, e, r, wire, levels, l2: bool, region: Region, stream, status) -> None:
    """`levels`: the bytes of a _kernels.Levels (`packed`) in the device's memory; the grid's units are buckets."""
    words = [np.uint32(word) for word in stream.words]
    geometry = np.uint64(region.start), np.uint64(region.grid.run)
    arguments = x, e, r, wire, np.uint64(region.size), levels, np.int32(l2), *geometry, *words
    _by_units(launch, "levels", "levels_encode", region, arguments, status)


def levels_decode(launch, wire, y, levels, region: Region, scale: float, add: bool, status) -> None:
    geometry = np.uint64(region.start), np.uint64(region.grid.run)
    arguments = wire, y, np.uint64(region.size), levels, *geometry, np.float32(scale), np.int32(add)
    _by_units(launch, "levels", "levels_decode", region, arguments, status)


def onebit_encode(launch, x, e, r, wire, region: Region, status) -> None:
    arguments = x, e, r, wire, np.uint64(region.size), *_geometry(region)
    _by_units(launch, "onebit", "onebit_encode", region, arguments, status)


def onebit_decode(launch, wire, y, region: Region, scale: float, add: bool, status) -> None:
    arguments = wire, y, np.uint64(region.size), *_geometry(region), np.float32(scale), np.int32(add)
    _by_units(launch, "onebit", "onebit_decode", region, arguments, status)


def adaptive_search(launch, parts, pi: int, search, table, status) -> None:
    """Find the threshold of a range: `search` (two uint32, any) is what `adaptive_count` takes.

        parts
            (region, x, e, r) of each region;
    where there is an e there must be an r, in which v = x + e is left.table 4096 uint32 zeros; zeros again afterwards.
    """
    elements = sum(region.size for region, *_ in parts)
    assert elements < 2**32, "counts have 32 bits"
    search[:] = np.array([0, min(max(1, elements // pi), elements)], np.uint32)
    for number, (shift, width) in enumerate(_DIGITS):
        how = np.int32(shift), np.int32(width), search, table, status
        for region, x, e, r in parts:
            given = (x, e, r) if number == 0 else (x if r is None else r, None, None)
            if region.size:
                blocks = _blocks(region.size)
                launch("adaptive", "adaptive_histogram", blocks, _THREADS, *given, np.uint64(region.size), *how)
        launch("adaptive", "adaptive_digit", 1, _TEAM_THREADS, table, np.int32(width), search)


def adaptive_count(launch, v, region: Region, search, columns) -> None:
    """What each column of a region keeps of v, into `columns`: 3 * region.units + 1 uint32; regions in memory order."""
    if region.size:
        arguments = v, np.uint64(region.size), *_geometry(region), search, columns, np.uint64(region.units)
        _by_units(launch, "adaptive", "adaptive_count", region, arguments)
        _adaptive_scan(launch, search, columns, region)


def adaptive_select(launch, x, e, r, region: Region, pi: int, search, columns, status) -> None:
    """As adaptive_count, but one value in pi of each column. An e wants an r, in which v is left."""
    if region.size:
        arguments = x, e, r, np.uint64(region.size), *_geometry(region), np.uint64(pi), columns
        _by_units(launch, "adaptive", "adaptive_select", region, (*arguments, np.uint64(region.units)), status)
        search[:] = np.array([0, 2**32 - 1], np.uint32)  # ties are counted already: all may stay
        _adaptive_scan(launch, search, columns, region)


def adaptive_encode(launch, v, r, wire, region: Region, columns) -> None:
    """Write the message; it has 12 * units + 4 + 2 * columns[-1] bytes. Where errors are kept, r is v."""
    if not region.size:
        wire[:4] = 0
        return
    arguments = v, r, wire, np.uint64(region.size), *_geometry(region), columns, np.uint64(region.units)
    _by_units(launch, "adaptive", "adaptive_encode", region, arguments)


def adaptive_decode(launch, wire, y, region: Region, scale: float, add: bool, status) -> None:
    """The message at the beginning of `wire`, which may be longer."""
    if wire.size < 12 * region.units + 4:
        status[:] = MALFORMED
        return
    checked = wire, np.uint64(wire.size), np.uint64(region.units), status
    launch("adaptive", "adaptive_check", _blocks(max(region.units, 1)), _THREADS, *checked)
    arguments = wire, y, np.uint64(region.size), *_geometry(region), np.uint64(region.units)
    how = np.float32(scale), np.int32(add)
    _by_units(launch, "adaptive", "adaptive_decode", region, (*arguments, *how), status)


def _adaptive_scan(launch, search, columns, region: Region) -> None:
    launch("adaptive", "adaptive_scan", 1, _SCAN_THREADS, search, columns, np.uint64(region.units))


def _by_fours(launch, kernel: str, size: int, *arguments) -> None:
    if size:
        launch("casts", kernel, _blocks(size), _THREADS, *arguments)


def _blocks(size: int) -> int:
    return min(-(-size // (4 * _THREADS)), _BLOCKS)


def _by_units(launch, family: str, kernel: str, region: Region, arguments, *last) -> None:
    if region.size:
        teams = _teams(region)
        launch(family, kernel, -(-region.units // teams), _TEAM_THREADS, *arguments, np.uint32(teams), *last)


def _teams(region: Region) -> int:
    """Units worked on by one block: one, or four if they are short."""
    return 4 if min(region.grid.tallest(), region.size) <= _SHORT else 1


def _geometry(region: Region) -> tuple:
    return tuple(np.uint64(number) for number in region.geometry)

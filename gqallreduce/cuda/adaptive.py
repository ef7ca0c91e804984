"""Launches of adaptive.cu: selection, ordered entries, decoding."""

from __future__ import annotations

import numpy as np

from gqallreduce.cuda.launching import MALFORMED, TEAM_THREADS, THREADS, blocks_for, by_units, geometry
from gqallreduce.layout import Region

_SCAN_THREADS = 1024
_DIGITS = ((19, 12), (7, 12), (0, 7))  # of a magnitude: the bits below, the bits


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
                blocks = blocks_for(region.size)
                launch("adaptive", "adaptive_histogram", blocks, THREADS, *given, np.uint64(region.size), *how)
        launch("adaptive", "adaptive_digit", 1, TEAM_THREADS, table, np.int32(width), search)


def adaptive_count(launch, v, region: Region, search, columns) -> None:
    """What each column of a region keeps of v, into `columns`: 3 * region.units + 1 uint32; regions in memory order."""
    if region.size:
        arguments = v, np.uint64(region.size), *geometry(region), search, columns, np.uint64(region.units)
        by_units(launch, "adaptive", "adaptive_count", region, arguments)
        _adaptive_scan(launch, search, columns, region)


def adaptive_select(launch, x, e, r, region: Region, pi: int, search, columns, status) -> None:
    """As adaptive_count, but one value in pi of each column. An e wants an r, in which v is left."""
    if region.size:
        arguments = x, e, r, np.uint64(region.size), *geometry(region), np.uint64(pi), columns
        by_units(launch, "adaptive", "adaptive_select", region, (*arguments, np.uint64(region.units)), status)
        search[:] = np.array([0, 2**32 - 1], np.uint32)  # ties are counted already: all may stay
        _adaptive_scan(launch, search, columns, region)


def adaptive_encode(launch, v, r, wire, region: Region, columns) -> None:
    """Write the message; it has 12 * units + 4 + 2 * columns[-1] bytes. Where errors are kept, r is v."""
    if not region.size:
        wire[:4] = 0
        return
    arguments = v, r, wire, np.uint64(region.size), *geometry(region), columns, np.uint64(region.units)
    by_units(launch, "adaptive", "adaptive_encode", region, arguments)


def adaptive_decode(launch, wire, y, region: Region, scale: float, add: bool, status) -> None:
    """The message at the beginning of `wire`, which may be longer."""
    if wire.size < 12 * region.units + 4:
        status[:] = MALFORMED
        return
    checked = wire, np.uint64(wire.size), np.uint64(region.units), status
    launch("adaptive", "adaptive_check", blocks_for(max(region.units, 1)), THREADS, *checked)
    arguments = wire, y, np.uint64(region.size), *geometry(region), np.uint64(region.units)
    how = np.float32(scale), np.int32(add)
    by_units(launch, "adaptive", "adaptive_decode", region, (*arguments, *how), status)


def _adaptive_scan(launch, search, columns, region: Region) -> None:
    launch("adaptive", "adaptive_scan", 1, _SCAN_THREADS, search, columns, np.uint64(region.units))

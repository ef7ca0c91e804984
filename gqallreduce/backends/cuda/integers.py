"""Launches of integers.cu: the linear codecs.

A `span` is worked on in one go; `regions` is its table on the device (`tile_table`), `scratch` uint8 of scratch_nbytes
bytes at an address that is a multiple of 8, with any content. `length` (uint64, one element) receives the bytes of the
message. Values are lowered by `buffer_scale` of casts.py.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.cuda.launching import TEAM_THREADS, THREADS, blocks_for, first_units, region_table
from gqallreduce.coding.layout import Region, Span

_TILE = 4096
_SCAN_THREADS = 1024


def tile_table(span: Span) -> np.ndarray:
    return region_table(span, _tiles_of)


def scratch_nbytes(span: Span) -> int:
    """Of each tile: an offset or a sum, its bytes, its largest integer, and two bits for each value."""
    return _tiles(span) * (8 + 4 + 4 + _TILE // 4)


def integers_measure(launch, x, e, span: Span, regions, squares: bool, largest, totals, scratch) -> None:
    """Of each region the bits of max |v| (uint32) and, if asked for, the sum of v * v by the sum rule (float64)."""
    table = _table(span, regions)
    _by_tiles(launch, "integers_measure_tiles", span, x, e, *table, np.int32(squares), scratch)
    _by_regions(launch, "integers_measure_regions", span, *table, scratch, largest, totals)


def integers_units(launch, largest, totals, span: Span, regions, clip: float | None, units, status) -> None:
    """The unit (float32) of each region by itself, of what integers_measure has found."""
    table = _table(span, regions)
    _by_regions(launch, "integers_units", span, largest, totals, *table, np.float64(clip or 0), units, status)


def integers_encode_own(
    launch, x, e, r, wire, unit, units, ternary, span: Span, regions, stream, scratch, length, status
) -> None:
    """All regions have the same unit unless there are `units`, one for each, on the device."""
    table, unit = _table(span, regions), np.float32(unit)
    how = unit, units, np.int32(ternary), *table, np.uint64(span.start), *_words(stream)
    _by_tiles(launch, "integers_quantize_tiles", span, x, e, r, *how, scratch, status)
    _scan(launch, table, scratch, length)
    _by_tiles(launch, "integers_write_own", span, wire, unit, units, *table, scratch)


def integers_quantize(launch, x, e, r, m, unit: float, ternary: bool, first: int, stream, status) -> None:
    """m = x + e as multiples of the unit; m may be x, and keeps a value that is not finite."""
    how = np.float32(unit), np.int32(ternary), np.uint64(first), *_words(stream)
    blocks = blocks_for(-(-x.size // 2))  # each thread quantizes eight values
    launch("integers", "integers_quantize", blocks, THREADS, x, e, r, m, np.uint64(x.size), *how, status)


def integers_encode(launch, m, wire, unit: float, terms: int, span: Span, regions, scratch, length, status) -> None:
    """The integers in m; MALFORMED if one is larger than `terms`, NOT_FINITE if one is infinite times the unit."""
    table, unit = _table(span, regions), np.float32(unit)
    _by_tiles(launch, "integers_size_tiles", span, m, unit, np.uint32(terms), *table, scratch, status)
    _scan(launch, table, scratch, length)
    _by_tiles(launch, "integers_write", span, m, wire, unit, *table, scratch)


def integers_decode(
    launch, wire, y, unit, whole: bool, scale: float, add: bool, terms: int, span: Span, regions, scratch, status
) -> None:
    """`wire` is the message of the span and nothing else; its units must be `unit`, unless that is negative."""
    table = _table(span, regions)
    message = wire, np.uint64(wire.size), np.float32(unit)
    launch("integers", "integers_find", 1, _SCAN_THREADS, *message, *table, scratch, status)
    how = np.int32(whole), np.float32(scale), np.int32(add), np.uint32(terms)
    _by_tiles(launch, "integers_decode", span, wire, y, *table, *how, scratch, status)


def _tiles_of(region: Region) -> int:
    return -(-region.size // _TILE)


def _tiles(span: Span) -> int:
    return first_units(span, "tiles before", _tiles_of)[-1]


def _table(span: Span, regions) -> tuple:
    """Regions hold at least one value, unless the span holds none: an empty one has no bytes, not even a unit."""
    return regions, np.uint64(len(span.regions))


def _words(stream) -> list:
    return [np.uint32(word) for word in stream.words]


def _by_tiles(launch, kernel: str, span: Span, *arguments) -> None:
    launch("integers", kernel, _tiles(span), TEAM_THREADS, *arguments)


def _by_regions(launch, kernel: str, span: Span, *arguments) -> None:
    launch("integers", kernel, -(-len(span.regions) // THREADS), THREADS, *arguments)


def _scan(launch, table, scratch, length) -> None:
    launch("integers", "integers_scan", 1, _SCAN_THREADS, *table, scratch, length)

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


def _by_fours(launch, kernel: str, size: int, *arguments) -> None:
    if size:
        blocks = min(-(-size // (4 * _THREADS)), _BLOCKS)
        launch("casts", kernel, blocks, _THREADS, *arguments)


def _by_units(launch, family: str, kernel: str, region: Region, arguments, status) -> None:
    if region.size:
        teams = _teams(region)
        blocks = -(-region.units // teams)
        launch(family, kernel, blocks, _TEAM_THREADS, *arguments, np.uint32(teams), status)


def _teams(region: Region) -> int:
    """Units worked on by one block: one, or four if they are short."""
    return 4 if min(region.grid.tallest(), region.size) <= _SHORT else 1


def _geometry(region: Region) -> tuple:
    return tuple(np.uint64(number) for number in region.geometry)

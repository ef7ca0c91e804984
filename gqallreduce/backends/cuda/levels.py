"""Launches of levels.cu: the level codecs."""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.cuda.launching import by_units
from gqallreduce.coding.layout import Region


def levels_encode(launch, x, e, r, wire, levels, l2: bool, region: Region, stream, status) -> None:
    """`levels`: the bytes of a _kernels.Levels (`packed`) in the device's memory; the grid's units are buckets."""
    words = [np.uint32(word) for word in stream.words]
    geometry = np.uint64(region.start), np.uint64(region.grid.run)
    arguments = x, e, r, wire, np.uint64(region.size), levels, np.int32(l2), *geometry, *words
    by_units(launch, "levels", "levels_encode", region, arguments, status)


def levels_decode(launch, wire, y, levels, region: Region, scale: float, add: bool, status) -> None:
    geometry = np.uint64(region.start), np.uint64(region.grid.run)
    arguments = wire, y, np.uint64(region.size), levels, *geometry, np.float32(scale), np.int32(add)
    by_units(launch, "levels", "levels_decode", region, arguments, status)

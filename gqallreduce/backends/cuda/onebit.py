"""Launches of onebit.cu."""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.cuda.launching import by_units, geometry
from gqallreduce.coding.layout import Region


def onebit_encode(launch, x, e, r, wire, region: Region, status) -> None:
    arguments = x, e, r, wire, np.uint64(region.size), *geometry(region)
    by_units(launch, "onebit", "onebit_encode", region, arguments, status)


def onebit_decode(launch, wire, y, region: Region, scale: float, add: bool, status) -> None:
    arguments = wire, y, np.uint64(region.size), *geometry(region), np.float32(scale), np.int32(add)
    by_units(launch, "onebit", "onebit_decode", region, arguments, status)

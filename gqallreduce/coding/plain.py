"""The plain codecs: each value as a number of one floating-point format, little-endian, one after the other.

One kernel pair serves them all. A subclass names the `format`; narrower than float32 it loses what rounding to the
nearest (ties to even) loses, and what is added is added in float32.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region
from gqallreduce.coding.layout import Grid

assert sys.byteorder == "little", "the wire formats are little-endian"


class PlainCodec(FixedSizeCodec):
    """float32, unless a subclass says otherwise: `format`, the kernels' number of it, and its `itemsize` in bytes."""

    deterministic = batches = verbatim = True
    format: ClassVar[int] = 3
    itemsize: ClassVar[int] = 4

    def grid(self, columns: Grid) -> Grid:
        return Grid(1)

    def nbytes(self, region: Region) -> int:
        return self.itemsize * region.size

    def coder(self):
        return _kernels.plain_coder(self.format)

    def write(self, x, residual, new_residual, payload, region, stream):
        return self.arithmetic.plain_encode(x, residual, new_residual, payload, self.format)

    def read(self, payload, y, region, scale, streaming):
        self.arithmetic.plain_decode(payload, y, self.format, scale, False, streaming)

    def read_add(self, payload, y, region):
        self.arithmetic.plain_decode(payload, y, self.format, 1.0, True)


class NarrowCodec(PlainCodec):
    """A format of 16 bits."""

    itemsize = 2
    verbatim = False

    def carries(self, v) -> np.ndarray:
        rounded, back = np.empty(self.itemsize * v.size, np.uint8), np.empty_like(v)
        _kernels.narrow(v, rounded, self.format)
        _kernels.widen(rounded, back, self.format)
        return np.isfinite(back)

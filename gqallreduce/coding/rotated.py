"""Codecs that rotate the values first: at random, so that each of them becomes about normal, whatever they were.

A rotation is the product of random signs and the orthonormal Walsh-Hadamard transform, bucket by bucket; each message
has rotations of its own. Level codecs have an option for it, here are those that are made for it.
"""

from __future__ import annotations

from typing import ClassVar

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region, integer
from gqallreduce.coding.layout import Grid
from gqallreduce.coding.levels import ROTATED_MOST


class EdenCodec(FixedSizeCodec):
    """A subclass has `bits`, 1 to 4, and the option `bucket`."""

    unbiased = batches = host_only = True
    bits: ClassVar[int]

    def __post_init__(self):
        integer(self, "bucket", 1, ROTATED_MOST)

    def grid(self, columns: Grid) -> Grid:
        return Grid(self.bucket)

    def nbytes(self, region: Region) -> int:
        return _kernels.eden_nbytes(region.table, self.bits)

    def write(self, x, residual, new_residual, payload, region, stream):
        return bool(_kernels.eden_encode(x, residual, new_residual, payload, self.bits, region.table, stream))

    def read(self, payload, y, region, scale, streaming):
        _kernels.eden_decode(payload, y, self.bits, region.table, scale, add=False)

    def read_add(self, payload, y, region):
        _kernels.eden_decode(payload, y, self.bits, region.table, 1.0, add=True)

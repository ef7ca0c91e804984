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
    """A subclass has `bits`, 1 to 4, and the option `bucket`.

    Where errors are kept, the scale of a bucket minimises its error and not its bias: the error is 0.363, 0.117,
    0.0345 or 0.0095 of |v|^2 with 1 to 4 bits.
    """

    batches = host_only = True
    bits: ClassVar[int]
    # 1 / (1 - D) - 1 with D the distortion of the levels: of normal values, which rotated ones nearly are, so that it
    # holds to a few percent
    OMEGA: ClassVar[dict[int, float]] = {1: 0.5708, 2: 0.1331, 3: 0.0358, 4: 0.0096}

    @property
    def omega(self) -> float:
        return self.OMEGA[self.bits]

    def __post_init__(self):
        integer(self, "bucket", 1, ROTATED_MOST)

    @property
    def unbiased(self) -> bool:
        return not self.contracted

    def with_feedback(self):
        return self.knowing(contracted=True)

    def grid(self, columns: Grid) -> Grid:
        return Grid(self.bucket)

    def nbytes(self, region: Region) -> int:
        return _kernels.eden_nbytes(region.table, self.bits)

    def coder(self):
        return _kernels.eden_coder(self.bits, self.contracted)

    def write(self, x, residual, new_residual, payload, region, stream):
        return bool(
            _kernels.eden_encode(x, residual, new_residual, payload, self.bits, region.table, stream, self.contracted)
        )

    def read(self, payload, y, region, scale, streaming):
        _kernels.eden_decode(payload, y, self.bits, region.table, scale, add=False)

    def read_add(self, payload, y, region):
        _kernels.eden_decode(payload, y, self.bits, region.table, 1.0, add=True)

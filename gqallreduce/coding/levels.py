"""The level codecs: a norm per bucket and, per value, the code of a level. One kernel pair serves them all.

Wire, per bucket (or piece of a bucket): its norm (float32), then one code of `bits` bits per value, low bits first,
rounded up to a byte. A subclass says what the codes stand for, as data (`levels`).
"""

from __future__ import annotations

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region
from gqallreduce.coding.layout import Grid


class LevelCodec(FixedSizeCodec):
    """A subclass has `bits`, `bucket`, `norm` ("max" or "l2") and `levels` (a _kernels.Levels).

    Where the error is kept, a norm above 2^126 is refused as not finite: an error may reach twice the norm.
    """

    unbiased = batches = True

    def grid(self, columns: Grid) -> Grid:
        return Grid(self.bucket)

    def nbytes(self, region: Region) -> int:
        return _kernels.levels_nbytes(region.table, self.bits)

    def write(self, x, residual, new_residual, payload, region, stream):
        return self.arithmetic.levels_encode(
            x, residual, new_residual, payload, self.levels, self.norm == "l2", region, stream
        )

    def read(self, payload, y, region, scale, streaming):
        self.arithmetic.levels_decode(payload, y, self.levels, region, scale, add=False)

    def read_add(self, payload, y, region):
        self.arithmetic.levels_decode(payload, y, self.levels, region, 1.0, add=True)

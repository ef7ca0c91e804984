"""One sign bit per value and two means per column.

Wire, per column (or piece of a column): mean of the values >= 0 and mean of the values < 0 (float32 each, 0 if there
is none), then one bit per value, low bits first, 1 for >= 0; rounded up to a byte.
"""

from __future__ import annotations

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region, integer, register
from gqallreduce.coding.layout import MERGED_MOST, Grid


@register
class OneBit(FixedSizeCodec):
    """1-bit SGD: each value becomes the mean of the values of its sign in its column. Use it with error feedback.

    column
        shorter columns of a matrix are joined until they have so many elements; 1: each has means of its own.
    The means minimise the squared error of the column for these two regions. Zero counts as positive. A column whose
    values of each sign are equal is exact (to the rounding of one mean).
    Error: at most max|v| + |mean| per value; on N(0, s) the mean square is (1 - 2/pi) s^2 = 0.363 s^2.
    Cost: 1 bit per value + 8 bytes per column.
    Source: Seide, Fu, Droppo, Li and Yu, Interspeech 2014, section 2.2; Dryden et al., MLHPC 2016; differs: exact
    means (no sampling), float64 sums in a fixed order, columns as docs/codecs.md says.
    """

    column: int = 512

    name = "onebit"
    source = "Seide et al., 1-bit SGD, Interspeech 2014"
    example = "direct/onebit/ef"
    deterministic = batches = True
    omega = 1.0

    def __post_init__(self):
        integer(self, "column", 1, MERGED_MOST)

    def grid(self, columns: Grid) -> Grid:
        return columns.merged(self.column)

    def nbytes(self, region: Region) -> int:
        return _kernels.onebit_nbytes(region.table)

    def coder(self):
        return _kernels.onebit_coder()

    def write(self, x, residual, new_residual, payload, region, stream):
        return self.arithmetic.onebit_encode(x, residual, new_residual, payload, region)

    def read(self, payload, y, region, scale, streaming):
        self.arithmetic.onebit_decode(payload, y, region, scale, add=False)

    def read_add(self, payload, y, region):
        self.arithmetic.onebit_decode(payload, y, region, 1.0, add=True)

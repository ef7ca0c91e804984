"""The level codecs: a norm per bucket and, per value, the code of a level. One kernel pair serves them all.

Wire, per bucket (or piece of a bucket): its norm (float32), then one code of `bits` bits per value, low bits first,
rounded up to a byte. A subclass says what the codes stand for, as data (`levels`).
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region, choice, integer
from gqallreduce.coding.layout import Grid


class LevelCodec(FixedSizeCodec):
    """A subclass has the options `bits`, `bucket`, `norm` ("max" or "l2") and `zero_level`, and `levels`, a Levels of
    the kernels.

    Where the error is kept, a norm above 2^126 is refused as not finite: an error may reach twice the norm.
    """

    unbiased = batches = True
    most_bits: ClassVar[int] = 8

    def __post_init__(self):
        integer(self, "bits", 1, self.most_bits)
        integer(self, "bucket", 1, 2**31 - 1)
        choice(self, "norm", "max", "l2")
        choice(self, "zero_level", True, False)
        if self.bits == 1 and self.zero_level:
            raise ValueError(f"{self.name}: bits=1 leaves no code for a zero level; write zero_level=False")

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


class ExponentialCodec(LevelCodec):
    """Levels that are powers of two; `bits` are those of a code, sign included.

    With a zero level the magnitudes are 0 and 2^-j for j = 0 ... s - 1, s = 2^(bits-1) - 1 (the last code is unused and
    reads as the one below it); without, 2^-j for j = 0 ... 2^(bits-1) - 1.
    """

    most_bits = 4

    @cached_property
    def levels(self):
        below = 2 ** (self.bits - 1) - self.zero_level
        magnitudes = np.ldexp(np.float32(1), -np.arange(below))
        middle = np.zeros(int(self.zero_level), np.float32)
        return _kernels.Levels.table(self.bits, np.concatenate([-magnitudes, middle, magnitudes[::-1]]))

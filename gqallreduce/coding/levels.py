"""The level codecs: a scale per bucket and, per value, the code of a level. One kernel pair serves them all.

Wire with coding=fixed, per bucket (or piece of a bucket): its scale (float32, or one byte for a power of two), then one
code of `bits` bits per value, low bits first, rounded up to a byte. A subclass says what the codes stand for, as data
(`levels`). With another coding an entropy code writes the same codes: csrc/gq/coded_wire.hpp.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region, choice, integer
from gqallreduce.coding.error_bound import error_bound
from gqallreduce.coding.layout import Grid

ROTATED_MOST = 1 << 20  # values of a bucket that is rotated
CONTRACTED_ABOVE = 2.0  # with feedback, codecs with a larger omega get smaller scales


class LevelCodec(FixedSizeCodec):
    """A subclass has the options `bucket`, `rounding` ("stochastic" or "nearest"), `coding` and `rotate`, and
    `level_set`; and `scale`, if it is not a norm.

    Where the error is kept, a norm above 2^126 is refused as not finite: an error may reach twice the norm.

    contracted
        set by error feedback where omega is above 2: an error much larger than the values would come back in the next
        call, and grow. Each bucket's scale is then multiplied by a = <v, q> / <q, q>, at most 1, with q what the codes
        stand for, so that |v - a q| <= |v|, whatever the bits drawn; a scale that is a power of two, by the power of
        two from 2/3 a to 4/3 a. 1 / (1 + omega) would do too, but omega is for the worst bucket: at 2 bits and 512
        values 10.8, where that of normal values is 2.1.
    """

    batches = True
    norm: ClassVar[str] = "max"
    # what a bucket's scale is: see Levels.using
    scale: ClassVar[str] = "norm"

    @abstractmethod
    def level_set(self) -> _kernels.Levels:
        """What the codes stand for, however values are rounded and scaled."""

    @cached_property
    def levels(self) -> _kernels.Levels:
        return self._used(self.level_set())

    def _used(self, levels: _kernels.Levels) -> _kernels.Levels:
        return levels.using(self.nearest, self.scale, self.rotate, self.contracted)

    @cached_property
    def omega(self) -> float:
        found = self.level_set()
        levels = np.unique(found.values.astype(np.float64) / found.reach)
        most = {"norm": 1.0, "power above": 1.0, "power ocp": 1 / math.frexp(found.reach)[0]}[self.scale]
        least = 1.0 if self.scale == "norm" else most / 2
        l2 = self.norm == "l2"
        return error_bound(levels, self.bucket, l2=l2, nearest=self.nearest, least=least, most=most)

    def with_feedback(self):
        if self.omega <= CONTRACTED_ABOVE:
            return self
        made = self.knowing(contracted=True)
        vars(made).pop("levels", None)
        return made

    def __post_init__(self):
        integer(self, "bucket", 1, 2**31 - 1)
        choice(self, "rounding", "stochastic", "nearest")
        choice(self, "coding", "fixed", *_kernels.CODINGS)
        choice(self, "rotate", True, False)
        if self.rotate and self.bucket > ROTATED_MOST:
            option = "block" if "block" in self.options() else "bucket"
            raise ValueError(f"{self.name}: {option}={self.bucket} with rotate=True, expected at most {ROTATED_MOST}")

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic" and not self.contracted

    @property
    def deterministic(self) -> bool:
        return self.nearest and not self.rotate

    @property
    def nearest(self) -> bool:
        return self.rounding == "nearest"

    @property
    def fixed_size(self) -> bool:
        return self.coding == "fixed"

    @property
    def host_only(self) -> bool:
        return self.levels.host_only or not self.fixed_size

    def grid(self, columns: Grid) -> Grid:
        return Grid(self.bucket)

    def coder(self):
        return _kernels.levels_coder(self.levels, self.norm == "l2", self.coding)

    # --- codes of equal length ---

    def nbytes(self, region: Region) -> int:
        return _kernels.levels_nbytes(region.table, self.levels)

    def write(self, x, residual, new_residual, payload, region, stream):
        return self.arithmetic.levels_encode(
            x, residual, new_residual, payload, self.levels, self.norm == "l2", region, stream
        )

    def read(self, payload, y, region, scale, streaming):
        self.arithmetic.levels_decode(payload, y, self.levels, region, scale, add=False)

    def read_add(self, payload, y, region):
        self.arithmetic.levels_decode(payload, y, self.levels, region, 1.0, add=True)

    # --- an entropy code, on the host alone ---

    def nbytes_bound(self, regions: list[Region]) -> int:
        if self.fixed_size:
            return super().nbytes_bound(regions)
        return sum(_kernels.coded_bound(region.table, self.levels) for region in regions)

    def encode(self, x, residual, new_residual, wire, region, stream, selected=None):
        if self.fixed_size:
            return super().encode(x, residual, new_residual, wire, region, stream)
        return _kernels.coded_encode(
            x, residual, new_residual, wire, self.levels, self.coding, self.norm == "l2", region.table, stream
        )

    def decode(self, wire, y, region, scale=1.0, streaming=False):
        if self.fixed_size:
            return super().decode(wire, y, region, scale, streaming)
        return _kernels.coded_decode(wire, y, self.levels, self.coding, region.table, scale, add=False)

    def decode_add(self, wire, y, region):
        if self.fixed_size:
            return super().decode_add(wire, y, region)
        return _kernels.coded_decode(wire, y, self.levels, self.coding, region.table, 1.0, add=True)


class NormCodec(LevelCodec):
    """Levels in units of a norm. A subclass has the options `bits`, sign included, `bucket`, `norm` ("max" or "l2"),
    `zero_level`, `rounding`, `coding` and `rotate`.
    """

    def __post_init__(self):
        super().__post_init__()
        integer(self, "bits", 1, 8)
        choice(self, "norm", "max", "l2")
        choice(self, "zero_level", True, False)
        if self.bits == 1 and self.zero_level:
            raise ValueError(f"{self.name}: bits=1 leaves no code for a zero level; write zero_level=False")


class ExponentialCodec(NormCodec):
    """Levels that are powers of two.

    With a zero level the magnitudes are 0 and 2^-j for j = 0 ... s - 1, s = 2^(bits-1) - 1 (the last code is unused and
    reads as the one below it); without, 2^-j for j = 0 ... 2^(bits-1) - 1.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.bits == 8 and not self.zero_level:
            raise ValueError(
                f"{self.name}: bits=8 needs zero_level=True: without it the smallest level would be 2^-127"
            )

    def level_set(self):
        powers = 2 ** (self.bits - 1) - self.zero_level
        return _kernels.Levels.floating(self.bits, 0, 1 - powers, powers, self.zero_level)


class FormatCodec(LevelCodec):
    """Levels that are the numbers of a small format, written as its bits; `FORMATS` has those."""

    # name -> arguments of Levels.floating: bits, mantissa bits, exponent of the smallest normal number, how many
    # positive numbers
    FORMATS: ClassVar[dict[str, tuple[int, int, int, int]]]
    # of the formats that are integers
    INTEGERS: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        super().__post_init__()
        choice(self, "format", *self.FORMATS)

    def level_set(self):
        order = "two's complement" if self.format in self.INTEGERS else "sign and magnitude"
        return _kernels.Levels.floating(*self.FORMATS[self.format], order=order)

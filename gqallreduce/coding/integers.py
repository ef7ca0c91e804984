"""The codecs with integer sums: own values become whole multiples of a unit, once, and sums travel as those, exactly.

Wire, per region: the unit (float32), the sizes of all tiles in bytes (uint16), then the tiles, of 4096 integers each. A
tile's first byte says whether all are zero, or each has a code of the width that the largest needs, or only those that
are not zero have one, after the gaps between them. A subclass says what the unit is, and how a value becomes a multiple
of it: by threshold, `ternary` at random, or by steps of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.codec import Region, RegionCodec
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.preparing import LARGEST, Ask

ANY_UNIT = -1.0


@dataclass(frozen=True)
class IntegerCodec(RegionCodec):
    """Sums of up to `terms` multiples of `unit`: what `bind` and `prepare` add to the options.

    one_unit
        have all ranks the same, so that sums are multiples of it? Else partial sums are encoded as own values are.

    unit
        float32 that all ranks share, or an array of one per segment; ANY_UNIT where each message has its own.
    """

    terms: int = field(default=1, init=False, repr=False, compare=False)
    unit: float | np.ndarray = field(default=ANY_UNIT, init=False, repr=False, compare=False)

    ternary: ClassVar[bool]
    one_unit: ClassVar[bool] = True
    batches: ClassVar[bool] = True

    @property
    def unit_is_known(self) -> bool:
        return isinstance(self.unit, np.ndarray) or self.unit != ANY_UNIT

    @property
    def integer_sums(self) -> bool:
        return self.one_unit

    @property
    def sums_grow(self) -> bool:
        return self.one_unit

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec:
        return self.knowing(arithmetic=arithmetic, terms=size if self.one_unit else 1)

    def grid(self, columns: Grid) -> Grid:
        return Grid(1)

    def nbytes_bound(self, regions: list[Region]) -> int:
        return sum(_kernels.integers_bound(region.table, self.terms) for region in regions)

    def coder(self):
        return self.coder_of(self.unit) if self.one_unit and self.unit_is_known else None

    def coder_of(self, unit: float | np.ndarray):
        """The Coder for a unit that all ranks share: a float, or a float32 array of one per segment."""
        return _kernels.integers_coder(unit, self.ternary, self.terms)

    def unit_of(self, x, residual, region: Region):
        """The unit of a message of these own values, or one per region; not finite if a value is not."""
        return by_region(self.unit, region)

    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int:
        unit = self.unit_of(x, residual, region)
        return self.arithmetic.integers_encode_own(x, residual, new_residual, wire, unit, self.ternary, region, stream)

    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int:
        unit = by_region(self.unit, region)
        return self.arithmetic.integers_decode(wire, y, unit, self.terms, False, region, scale)

    def decode_add(self, wire, y, region: Region) -> int:
        unit = by_region(self.unit, region)
        return self.arithmetic.integers_decode(wire, y, unit, self.terms, False, region, add=True)

    @property
    def of_sums(self):
        return Sums(self.unit, self.terms, self.arithmetic) if self.one_unit else self

    def begin_sum(self, x, residual, new_residual, y, region: Region, stream, selected=None) -> bool:
        if not self.one_unit:
            return super().begin_sum(x, residual, new_residual, y, region, stream)
        unit = by_region(self.unit, region)
        return self.arithmetic.integers_quantize(x, residual, new_residual, y, unit, self.ternary, region, stream)

    def finish(self, y, region: Region) -> bool:
        return self.one_unit and self.arithmetic.integers_lower(y, by_region(self.unit, region), region)


@dataclass(frozen=True)
class Sums:
    """The codec of partial sums: integers in float32, to bytes and back without loss, so with no residual."""

    unit: float | np.ndarray
    terms: int
    arithmetic: object

    exact, prepares = True, False

    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int:
        """NOT_FINITE if a sum times the unit leaves float32."""
        return self.arithmetic.integers_encode(x, wire, by_region(self.unit, region), self.terms, region)

    def decode(self, wire, y, region: Region) -> int:
        return self.arithmetic.integers_decode(wire, y, by_region(self.unit, region), self.terms, True, region)

    def decode_add(self, wire, y, region: Region) -> int:
        unit = by_region(self.unit, region)
        return self.arithmetic.integers_decode(wire, y, unit, self.terms, True, region, add=True)


def agreed_scale(parts, measured, scale_of):
    """The largest scale of all ranks, of each tensor: a generator for `prepare`; float, or float32 by segment.

    measured
        of each region of the parts, in order; scale_of(those of a tensor) is a rank's own scale, a float32 number, inf
        if a value is not finite. That counts as 0: it comes out when the value is encoded.
    """
    of_tensor: dict[int, list] = {}
    if parts.whole is not None and len(parts.whole.regions) > 1:
        for segment, found in zip(parts.regions[0].table.segments.tolist(), measured, strict=True):
            of_tensor.setdefault(segment, []).append(found)
    else:
        of_tensor[0] = measured
    scales = np.array([scale_of(found) for found in of_tensor.values()])
    scales[scales == math.inf] = 0.0
    largest = yield Ask(LARGEST, scales)
    _kernels.require_scales(largest)
    if len(largest) == 1:
        return float(largest[0])
    by_segment = np.zeros(max(of_tensor) + 1, np.float32)
    by_segment[list(of_tensor)] = largest
    return by_segment


def by_region(unit, region: Region):
    """The one unit of all, or of an array by segment the unit of each region."""
    return unit[region.table.segments] if isinstance(unit, np.ndarray) else unit

"""Values rounded at random to a few steps of a scale that all ranks share, rotated first; sums travel as integers.

Wire: that of gqallreduce/coding/integers.py; the unit is one step. Rotated, integers are of rotated values.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic, layout
from gqallreduce.coding.arithmetic import scale_of
from gqallreduce.coding.codec import NOT_FINITE, SharedScale, choice, integer, register
from gqallreduce.coding.integers import IntegerCodec, agreed_scale, by_region
from gqallreduce.coding.levels import ROTATED_MOST
from gqallreduce.coding.preparing import Prepared
from gqallreduce.errors import WireError

_LARGEST = float(np.finfo(np.float32).max)


@register
class THC(IntegerCodec):
    """THC: a scale is agreed, each rank rounds its values once, and the integers are summed without being decoded.

    bits
        2 to 8 per value of a rank, sign included: the integers -s ... s, s = 2^(bits-1) - 1.
    clip
        the scale, that of the step s, is clip times the root mean square of a bucket, the largest of all buckets and
        ranks; what is beyond is cut off, and goes into the residual, or is lost without feedback. best: the clip with
        the least error for normal values, 1.02, 1.73, 2.27, 2.71, 3.10, 3.45, 3.77 with 2 to 8 bits. 0, for
        rotate=False: the scale is the largest magnitude of any rank, so that nothing is cut off.
    bucket
        values that are rotated together, at most 2^20: many, so that the norms of buckets differ little.
    rotate
        True: each bucket is rotated at random, all ranks alike, so that its values are about normal, and sums are
        rotated back in the end. False: QSGD with a shared scale; clip counts from the root mean square of the tensor.
    With feedback clip is at most s, or best if that is more (2 bits): a step is then at most the root mean square, 1.02
    times it with 2 bits, so that errors of rounding are at most about half of that (TernGrad).
    Variance: u^2 f (1 - f) per value (rotated or not), u being a step and f the value's place between two. Unbiased to
    2^-16 of u with clip=0. On normal values the squared error of a rank is 0.266, 0.0757, 0.0222, 0.00657, 0.00194,
    0.00057 and 0.00016 times the largest |v|^2 of any rank and bucket with 2 to 8 bits and clip=best; rotated values
    are nearly normal.
    A sum makes no error of its own, on any schedule; all schedules give the same bits if there are at least as many
    buckets as ranks. Rotated, a scale is at most 2^127 / (P sqrt(bucket)), and a bucket with a value above
    2^127 / sqrt(bucket) may be refused as not finite.
    Cost: `bits` bits per value, or 9 bits per value that is not zero where that is less; sums of P values up to
    log2(2 P s + 1) bits, rounded up; 4 bytes per block and at most 24 per 4096 values. Device arrays go through host
    memory.
    Source: Li et al., THC, NSDI 2024, algorithms 1 and 2; differs: steps are equal, where THC has a table of them
    (granularity 2^bits - 2 there); rotations of buckets, of any length (two windows), where THC pads a tensor to a
    power of two; the key of a rotation is the shared scale itself.
    """

    bits: int = 4
    clip: str | float = "best"
    bucket: int = 262144
    rotate: bool = True

    name = "thc"
    source = "Li et al., THC, NSDI 2024"
    example = "direct/thc(bits=4)"
    linear = host_only = True
    ternary = False
    # with the least error for normal values
    BEST: ClassVar[dict[int, float]] = {2: 1.02, 3: 1.73, 4: 2.27, 5: 2.71, 6: 3.10, 7: 3.45, 8: 3.77}

    def __post_init__(self):
        integer(self, "bits", 2, 8)
        integer(self, "bucket", 1, ROTATED_MOST)
        choice(self, "rotate", True, False)
        number = isinstance(self.clip, (int, float)) and not isinstance(self.clip, bool) and 0 <= self.clip < math.inf
        if self.clip != "best" and not number:
            raise ValueError(f"thc: clip={self.clip!r}, expected best, or a number >= 0")
        if number:
            object.__setattr__(self, "clip", float(self.clip))
        if self.rotate and self.clip == 0:
            raise ValueError("thc: clip=0 with rotate=True: rotated values have no largest one; write rotate=False")

    @property
    def unbiased(self) -> bool:
        return self._clip == 0

    def with_feedback(self):
        made = self.knowing(contracted=True)
        return self if made._clip == self._clip else made

    @property
    def steps(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def bind(self, form, size=1, arithmetic=arithmetic):
        return super().bind(form, size, arithmetic).knowing(terms=size * self.steps)

    def grid(self, columns: layout.Grid) -> layout.Grid:
        return layout.Grid(self.bucket if self.rotate else 1)

    # --- the unit ---

    def prepare(self, parts):
        return self._agree(parts)

    def _agree(self, parts):
        scale = yield from agreed_scale(parts, self._measured(parts), self._scale_of)
        return Prepared(self.knowing(unit=self.unit_of_scale(scale)))

    @property
    def shared_scale(self) -> SharedScale:
        return SharedScale(self._clip, self.rotate, self.steps, self._most)

    @property
    def _most(self) -> float:
        """Units are so small that no sum of rotated integers leaves float32."""
        return _LARGEST / (2 * self.terms * math.sqrt(self.bucket)) if self.rotate else math.inf

    @property
    def _clip(self) -> float:
        best = self.BEST[self.bits]
        clip = best if self.clip == "best" else self.clip
        most = max(best, float(self.steps))
        return min(clip or most, most) if self.contracted else clip

    def _measured(self, parts):
        """Of each region of the parts, for _scale_of."""
        if not self.rotate:
            return self.arithmetic.measure(parts, bool(self._clip))
        every = (_kernels.largest_deviation(x, e, self._clip, region.table) for region, x, e, _ in parts)
        return itertools.chain.from_iterable(every)

    def _scale_of(self, measured) -> float:
        if not self.rotate:
            return scale_of(measured, self._clip)
        largest = max(measured, default=0.0)
        return float(np.float32(min(largest, _LARGEST))) if largest < math.inf else largest

    def unit_of_scale(self, scale):
        """A step, for a scale or an array of them."""
        return _kernels.multiples_unit(scale, self.steps, self._most)

    def unit_of(self, x, residual, region):
        if self.unit_is_known:
            return super().unit_of(x, residual, region)
        return self.unit_of_scale([self._scale_of([one]) for one in self._measured([(region, x, residual, None)])])

    def coder_of(self, unit):
        return _kernels.multiples_coder(unit, self.steps, self.rotate, self.terms)

    # --- values to integers and back ---

    def encode(self, x, residual, new_residual, wire, region, stream, selected=None):
        integers, unit = np.empty(region.size, np.float32), self.unit_of(x, residual, region)
        if self._quantize(x, residual, new_residual, integers, unit, region, stream):
            return NOT_FINITE
        return self.arithmetic.integers_encode(integers, wire, unit, self.terms, region)

    def begin_sum(self, x, residual, new_residual, y, region, stream, selected=None):
        return self._quantize(x, residual, new_residual, y, by_region(self.unit, region), region, stream)

    def finish(self, y, region):
        return self._lower(y, by_region(self.unit, region), region)

    def decode(self, wire, y, region, scale=1.0, streaming=False):
        unit = by_region(self.unit, region)
        if not self.unit_is_known and len(region.table) > 1:
            return self._decode_each(wire, y, region, scale)
        used = self.arithmetic.integers_decode(wire, y, unit, self.terms, True, region)
        if not self.unit_is_known and used:  # a message by itself
            unit = float(wire[:4].view(np.float32)[0])
        if self._lower(y, unit, region):
            raise WireError("got integers that are too large for their unit")
        if scale != 1.0:
            np.multiply(y, np.float32(scale), out=y)
        return used

    def _decode_each(self, wire, y, region, scale) -> int:
        """Of regions with units of their own, as long as none is known."""
        used = at = 0
        for each in region.regions:
            used += self.decode(wire[used:], y[at : at + each.size], each, scale)
            at += each.size
        return used

    def decode_add(self, wire, y, region):
        values = np.empty(region.size, np.float32)
        used = self.decode(wire, values, region)
        y += values
        return used

    def _quantize(self, x, residual, new_residual, y, unit, region, stream) -> bool:
        """y := own values as multiples."""
        arrays = x, residual, new_residual, y
        return bool(_kernels.multiples_quantize(*arrays, unit, self.steps, self.rotate, region.table, stream))

    def _lower(self, y, unit, region) -> bool:
        """y := multiples as values; is one not finite?"""
        return bool(_kernels.multiples_lower(y, unit, self.rotate, region.table))

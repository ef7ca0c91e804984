"""Values rounded at random to -1, 0 or 1 times a scale; with a scale that all ranks share, sums travel as integers.

Wire: that of gqallreduce/coding/integers.py; the unit is the scale.
"""

from __future__ import annotations

import math

from gqallreduce import _kernels
from gqallreduce.coding import layout
from gqallreduce.coding.arithmetic import scale_of
from gqallreduce.coding.codec import SharedScale, choice, register
from gqallreduce.coding.integers import IntegerCodec, agreed_scale
from gqallreduce.coding.preparing import Prepared

CLIP_WITH_FEEDBACK = 1.0


@register
class TernGrad(IntegerCodec):
    """TernGrad: each value becomes its sign times a scale s with probability |v| / s, else zero.

    clip
        a rank's values are clipped to clip times their standard deviation about zero (root mean square); 0 or None for
        no clipping. What is cut off goes into the residual, or is lost without feedback: only clip=0 is unbiased.
    shared
        True: s is the largest magnitude of any rank, after clipping, agreed before the first message; a rank's own
        values are rounded once and their sums travel as exact integers, the same on every schedule. False: each message
        has its own scale (one per block of 2^18 values), and partial sums are rounded again.
    With feedback clip is at most 1: the scale is at most the root mean square of a rank's values plus their residual,
    the largest of all ranks if shared, so that errors of rounding are at most half of that. With a larger scale they
    would exceed the values, come back in the next call, and grow.
    Variance: |v| (s - |v|) per value of at most s, for each rounding: one per rank if shared. Unbiased to 2^-16 of s.
    Exact where all values have one magnitude (if shared, the same on all ranks), and for zeros.
    Cost: 2 bits per value, or 9 bits per value that is not zero where that is less; shared sums of P values up to
    log2(2P + 1) bits, rounded up; 4 bytes per block and at most 24 per 4096 values.
    Source: Wen et al., TernGrad, NeurIPS 2017, eq. 3, 5 and section 4; differs: the deviation is taken about zero,
    since about the mean it is zero for a single or a constant value, which would never be sent; where it exceeds the
    largest magnitude, that is the scale; a rank clips to the scale that is shared, not to a lower one of its own.
    """

    clip: float | None = 2.5
    shared: bool = True

    name = "terngrad"
    source = "Wen et al., TernGrad, NeurIPS 2017"
    example = "direct/terngrad(clip=2.5, shared=True)"
    ternary = True

    def __post_init__(self):
        choice(self, "shared", True, False)
        number = isinstance(self.clip, (int, float)) and not isinstance(self.clip, bool) and 0 <= self.clip < math.inf
        if not number and self.clip is not None:
            raise ValueError(f"terngrad: clip={self.clip!r}, expected a number >= 0, or None")
        object.__setattr__(self, "clip", float(self.clip or 0))

    @property
    def unbiased(self) -> bool:
        return not self._clip

    def with_feedback(self):
        return self if 0 < self.clip <= CLIP_WITH_FEEDBACK else self.knowing(contracted=True)

    @property
    def _clip(self) -> float:
        return CLIP_WITH_FEEDBACK if self.contracted else self.clip

    @property
    def shared_scale(self) -> SharedScale | None:
        return SharedScale(self._clip) if self.shared else None

    @property
    def linear(self) -> bool:
        return self.shared

    @property
    def one_unit(self) -> bool:
        return self.shared

    def grid(self, columns: layout.Grid) -> layout.Grid:
        return layout.Grid(1 if self.shared else layout.BLOCK)

    def unit_of(self, x, residual, region):
        if self.unit_is_known:
            return super().unit_of(x, residual, region)
        return self.arithmetic.own_unit(x, residual, region, self._clip)

    def coder(self):
        return super().coder() if self.shared else _kernels.ternary_coder(self._clip)

    def prepare(self, parts):
        return self._agree(parts) if self.shared else None

    def _agree(self, parts):
        measured = self.arithmetic.measure(parts, bool(self._clip))
        scale = yield from agreed_scale(parts, measured, lambda found: scale_of(found, self._clip))
        return Prepared(self.knowing(unit=scale))

"""Uniform levels, per bucket.

Wire: that of gqallreduce/coding/levels.py. With a zero level, code c stands for (c - s)/s times the norm,
s = 2^(bits-1) - 1 (the last code is unused and reads as the one below it); without, for (2c - m)/m times the norm,
m = 2^bits - 1.
"""

from __future__ import annotations

from gqallreduce import _kernels
from gqallreduce.coding.codec import register
from gqallreduce.coding.levels import NormCodec


@register
class QSGD(NormCodec):
    """QSGD: each value is rounded to one of two neighbouring levels of its bucket's norm.

    bits
        1 to 8 per value, sign included; 1 needs zero_level=False.
    bucket
        values that share a norm.
    norm
        max: the largest magnitude (QSGDinf; the default); l2: the Euclidean norm.
    zero_level
        True: levels -s/s ... 0 ... s/s; False: 2^bits levels without zero.
    rounding
        stochastic: at random, without bias; nearest: to the nearest level; ties to the even number of steps from
        zero.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each bucket is rotated at random, so that its values are about normal, before it is encoded.
    Variance: with u the distance of neighbouring levels and f the value's place between them (0 to 1), u^2 f (1 - f)
    per value, so at most u^2 / 4; with norm=l2 and s levels each side at most min(d/s^2, sqrt(d)/s) |v|^2 per bucket
    of d. Unbiased to 2^-16 of u, and float32 rounding.
    Error: at most u; with rounding=nearest u / 2.
    A bucket of one value, and values equal to +-max, are exact (norm=max); zeros are exact with a zero level.
    Cost: `bits` per value + 4 bytes per bucket.
    Source: Alistarh et al., QSGD, NeurIPS 2017, eq. 3 and section 4; differs: bits count the sign, norm=max default.
    """

    bits: int = 4
    bucket: int = 512
    norm: str = "max"
    zero_level: bool = True
    rounding: str = "stochastic"
    coding: str = "fixed"
    rotate: bool = False

    name = "qsgd"
    source = "Alistarh et al., QSGD, NeurIPS 2017"
    example = "direct/qsgd(bits=4, bucket=512)"

    def level_set(self):
        return _kernels.Levels.uniform(self.bits, self.zero_level)

"""Values rounded to powers of two.

Wire: that of gqallreduce/coding/levels.py. The scale is the exponent of a bucket's largest power of two, biased by 127;
a code is the sign in its top bit and, below, 0 for zero or the number of the power of two, of which 1 is the smallest.
"""

from __future__ import annotations

from gqallreduce import _kernels
from gqallreduce.coding.codec import integer, register
from gqallreduce.coding.levels import LevelCodec


@register
class Natural(LevelCodec):
    """Natural compression: each value becomes one of the two powers of two beside it, with its sign.

    bits
        2 to 8 per value, sign included: 2^(bits-1) - 1 powers of two and zero, counted down from the largest.
    bucket
        values that share the exponent of the largest power of two.
    rounding
        stochastic: at random, without bias to 2^-16 of their distance; nearest: to the nearer one, 3/2 upwards, and
        half of the smallest to zero.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each bucket is rotated at random, so that its values are about normal, before it is encoded.
    Variance: (|v| - a)(2a - |v|) per value between a and 2a, so at most |v|^2 / 8; below the smallest power of two l,
    which is that of the largest magnitude, rounded up, times 2^(2 - 2^(bits-1)): |v| (l - |v|).
    Zeros are exact, and powers of two from l on. The largest power of two is at least 2^-127. A magnitude above 2^127,
    which only a call without feedback may have, is encoded as 2^127. With feedback and few bits scales are halved
    where that makes the error smaller: docs/codecs.md.
    Cost: `bits` per value + 1 byte per bucket. Device arrays go through host memory.
    Source: Horvath et al., Natural compression for distributed deep learning, MSML 2022, C_nat;
    differs: exponents of 7 bits, counted from each bucket's largest, instead of 8, so that a code is a byte.
    """

    bits: int = 8
    bucket: int = 512
    rounding: str = "stochastic"
    coding: str = "fixed"
    rotate: bool = False

    name = "natural"
    source = "Horvath et al., Natural compression, MSML 2022"
    example = "direct/natural(bits=8, bucket=512)"
    scale = "power above"

    def __post_init__(self):
        super().__post_init__()
        integer(self, "bits", 2, 8)

    def level_set(self):
        powers = 2 ** (self.bits - 1) - 1
        return _kernels.Levels.floating(self.bits, 0, 1 - powers, powers, order="sign and magnitude")

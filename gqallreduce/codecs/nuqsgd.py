"""Levels that are powers of two, per bucket.

Wire: that of gqallreduce/coding/levels.py. Codes count the levels from -1 up.
"""

from __future__ import annotations

from gqallreduce.coding.codec import register
from gqallreduce.coding.levels import ExponentialCodec


@register
class NUQSGD(ExponentialCodec):
    """NUQSGD: each value is rounded to one of two neighbouring levels of its bucket's norm.

    bits
        1 to 8 per value, sign included; 1 needs zero_level=False, 8 zero_level=True.
    bucket
        values that share a norm.
    norm
        l2: the Euclidean norm, of which levels may leave a 16-bit buffer's range; max: the largest magnitude.
    zero_level
        True: levels 0, +-2^-(s-1) ... +-1/2, +-1, s = 2^(bits-1) - 1; False: +-2^-j for j = 0 ... 2^(bits-1) - 1.
    rounding
        stochastic: at random, without bias; nearest: to the nearest level; ties to the larger one, but half of the
        smallest to zero.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each bucket is rotated at random, so that its values are about normal, before it is encoded.
    Variance: (r - a)(c - r) norm^2 per value, r = v / norm between the levels a and c; with norm=l2, a zero level and
    d values in a bucket at most (1/8 + d l^2 / 4) |v|^2 where d < 4 / l^2, else (l sqrt(d) - 7/8) |v|^2, with l the
    smallest level above zero. Unbiased to 2^-16 of c - a, and float32
    rounding.
    Error: at most (c - a) norm; with rounding=nearest half of that.
    Values equal to a level times the norm are exact: zeros with a zero level, and with norm=max the largest magnitudes.
    Cost: `bits` per value + 4 bytes per bucket.
    Source: Ramezani-Kebrya et al., NUQSGD, JMLR 22 (2021), section 3; differs: bits count the sign; the authors' code
    has no zero level (zero_level=False).
    """

    bits: int = 4
    bucket: int = 512
    norm: str = "l2"
    zero_level: bool = True
    rounding: str = "stochastic"
    coding: str = "fixed"
    rotate: bool = False

    name = "nuqsgd"
    source = "Ramezani-Kebrya et al., NUQSGD, JMLR 22 (2021)"
    example = "direct/nuqsgd(bits=4, bucket=512)"

"""Levels that are powers of two, per bucket: as `nuqsgd`, by the largest magnitude.

Wire: that of gqallreduce/coding/levels.py. Codes count the levels from -1 up.
"""

from __future__ import annotations

from gqallreduce.coding.codec import register
from gqallreduce.coding.levels import ExponentialCodec


@register
class NaturalDithering(ExponentialCodec):
    """Natural dithering: the quantizer of `nuqsgd`, with the largest magnitude of a bucket as its norm by default.

    bits
        1 to 8 per value, sign included; 1 needs zero_level=False, 8 zero_level=True.
    bucket
        values that share a norm.
    norm
        max: the largest magnitude; l2: the Euclidean norm, of which levels may leave a 16-bit buffer's range.
    zero_level
        True: levels 0, +-2^(1-s) ... +-1/2, +-1, s = 2^(bits-1) - 1; False: +-2^-j for j = 0 ... 2^(bits-1) - 1.
    rounding
        stochastic: at random, without bias; nearest: to the nearest level; ties to the larger one, but half of the
        smallest to zero.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each bucket is rotated at random, so that its values are about normal, before it is encoded.
    Variance: (r - a)(c - r) norm^2 per value, r = v / norm between the levels a and c; with a zero level and d values
    in a bucket at most (1/8 + q min(1, q)) |v|^2, q = sqrt(d) 2^(1-s). Unbiased to 2^-16 of c - a, and float32
    rounding.
    Error: at most (c - a) norm; with rounding=nearest half of that.
    Values equal to a level times the norm are exact: zeros with a zero level, and with norm=max the largest magnitudes.
    Cost: `bits` per value + 4 bytes per bucket.
    Source: Horvath et al., Natural compression for distributed deep learning, MSML 2022, definition of D_nat^(p,s);
    differs: p is 2 or infinity; bits count the sign.
    """

    bits: int = 4
    bucket: int = 512
    norm: str = "max"
    zero_level: bool = True
    rounding: str = "stochastic"
    coding: str = "fixed"
    rotate: bool = False

    name = "natural_dithering"
    source = "Horvath et al., Natural compression, MSML 2022"
    example = "direct/natural_dithering(bits=4, bucket=512)"

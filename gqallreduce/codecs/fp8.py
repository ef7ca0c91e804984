"""Eight-bit floating-point numbers with a float32 scale per bucket.

Wire: that of gqallreduce/coding/levels.py. A code is the bits of a number of the format; times the scale, it is the
value.
"""

from __future__ import annotations

from typing import ClassVar

from gqallreduce.coding.codec import register
from gqallreduce.coding.levels import FormatCodec


@register
class FP8(FormatCodec):
    """FP8: each value as a number of an 8-bit floating-point format, times the scale of its bucket.

    format
        e4m3: 3 mantissa bits, to 448, smallest 2^-9; e5m2: 2 mantissa bits, to 57344, smallest 2^-16.
    bucket
        values that share a scale: their largest magnitude over the largest number of the format.
    rounding
        nearest: to the nearest number, ties to the even one; stochastic: at random to one of the two numbers beside it,
        without bias to 2^-16 of their distance, and float32 rounding.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each bucket is rotated at random, so that its values are about normal, before it is encoded.
    Error: with rounding=nearest at most 2^-4 |v| (e4m3) or 2^-3 |v| (e5m2), or half the smallest number times the scale
    where that is more; stochastic, twice that.
    Variance: (v - a)(c - v) per value between the numbers a and c times the scale.
    Zeros are exact; the largest magnitudes to 2^-22. All this where the scale is a normal number: from norms of 2^-117
    (e4m3) or 2^-110 (e5m2) on; below, the scale has fewer bits.
    Cost: 8 bits per value + 4 bytes per bucket. Device arrays go through host memory.
    Source: Micikevicius et al., FP8 formats for deep learning, arXiv 2209.05433, section 3; differs: codes of NaN and
    infinity are never written and read as the largest number.
    """

    format: str = "e4m3"
    bucket: int = 256
    rounding: str = "nearest"
    coding: str = "fixed"
    rotate: bool = False

    name = "fp8"
    source = "Micikevicius et al., FP8 formats for deep learning, arXiv 2209.05433"
    example = "direct/fp8(format=e4m3, bucket=256)"
    FORMATS: ClassVar = {"e4m3": (8, 3, -6, 126), "e5m2": (8, 2, -14, 123)}

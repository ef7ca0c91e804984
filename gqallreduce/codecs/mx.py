"""The OCP microscaling formats: small numbers with a power of two per block.

Wire: that of gqallreduce/coding/levels.py. The scale is the byte E8M0, a code is the bits of an element; scale times
element is the value.
"""

from __future__ import annotations

from typing import ClassVar

from gqallreduce.coding.codec import register
from gqallreduce.coding.levels import FormatCodec


@register
class MX(FormatCodec):
    """MX: each value as an element of an OCP microscaling format, times the power of two of its block.

    format
        fp4 (e2m1: to 6), fp6_e3m2 (to 28), fp6_e2m3 (to 7.5), fp8_e4m3 (to 448), fp8_e5m2 (to 57344) or int8 (steps of
        2^-6, to 127/64).
    block
        values that share a scale.
    rounding
        nearest: the scale is the largest power of two in the block's largest magnitude over that of the format, values
        are rounded to the nearest element, ties to the even one, and what lies above the largest element becomes it.
        stochastic: the smallest power of two by which no value lies above the largest element; then at random to one
        of the two elements beside a value, without bias to 2^-16 of their distance. In a float16 buffer the element
        above a magnitude from 57344 on (fp4: 49152) is 65536, an overflow.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each block is rotated at random, so that its values are about normal, before it is encoded.
    Error: with rounding=nearest at most 2^-(m+1) |v|, m the mantissa bits, or half the smallest element times the scale
    where that is more, and for values above the largest element what they exceed it by: less than a quarter of them
    (fp4, e4m3: 1/4, 1/8 of them).
    Variance: with rounding=stochastic (v - a)(c - v) per value between the elements a and c times the scale.
    Zeros are exact.
    Cost: 4, 6 or 8 bits per value + 1 byte per block. Device arrays go through host memory.
    Source: Open Compute Project, OCP Microscaling Formats (MX) v1.0, 2023, sections 5 and 6.3; differs: the stochastic
    rounding is not in it, codes of NaN and infinity are never written and read as the largest element, and of int8 the
    code -128 as -127.
    """

    format: str = "fp4"
    block: int = 32
    rounding: str = "nearest"
    coding: str = "fixed"
    rotate: bool = False

    name = "mx"
    source = "Open Compute Project, OCP Microscaling Formats (MX) v1.0, 2023"
    example = "direct/mx(format=fp4, block=32)"
    FORMATS: ClassVar = {
        "fp4": (4, 1, 0, 7),
        "fp6_e3m2": (6, 2, -2, 31),
        "fp6_e2m3": (6, 3, 0, 31),
        "fp8_e4m3": (8, 3, -6, 126),
        "fp8_e5m2": (8, 2, -14, 123),
        "int8": (8, 6, 0, 127),
    }
    INTEGERS = ("int8",)

    @property
    def bucket(self) -> int:
        return self.block

    @property
    def scale(self) -> str:
        return "power ocp" if self.nearest else "power above"

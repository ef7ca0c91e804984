"""Half the bytes: each value rounded to IEEE half precision when it is sent."""

from __future__ import annotations

from gqallreduce.coding.codec import register
from gqallreduce.coding.dtypes import FORMATS
from gqallreduce.coding.plain import NarrowCodec


@register
class Float16(NarrowCodec):
    """Each value rounded to the nearest float16, ties to even; additions are in float32.

    For gradients that are scaled to its range: what rounds beyond 65504 is reported, never sent as an infinity.

    Error: at most 2^-11 |v|, or 2^-25 where |v| < 2^-14.
    Source: IEEE 754-2019, binary16; Micikevicius et al., ICLR 2018; differs: overflow is an error, sums are float32.
    """

    name = "float16"
    source = "IEEE 754-2019, binary16; Micikevicius et al., ICLR 2018"
    example = "direct/float16/ef"
    format = FORMATS["float16"]

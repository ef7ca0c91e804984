"""Half the bytes: the upper half of each float32, rounded, when it is sent."""

from __future__ import annotations

from gqallreduce.coding.codec import register
from gqallreduce.coding.dtypes import FORMATS
from gqallreduce.coding.plain import NarrowCodec


@register
class Bfloat16(NarrowCodec):
    """Each value rounded to the nearest bfloat16, ties to even; additions are in float32.

    The range of float32 with 8 significant bits; what rounds beyond 3.39e38 is reported, never sent as an infinity.

    Error: at most 2^-8 |v|, or 2^-134 where |v| < 2^-126.
    Source: Kalamkar et al., arXiv:1905.12322; differs: overflow is an error, denormals are kept, sums are float32.
    """

    name = "bfloat16"
    source = "Kalamkar et al., A study of bfloat16 for deep learning training, arXiv:1905.12322"
    example = "direct/bfloat16/ef"
    format = FORMATS["bfloat16"]

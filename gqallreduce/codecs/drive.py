"""One bit per value: the sign after a random rotation. Wire: that of eden with one bit."""

from __future__ import annotations

from typing import ClassVar

from gqallreduce.coding.codec import register
from gqallreduce.coding.rotated import EdenCodec


@register
class DRIVE(EdenCodec):
    """DRIVE: the sign of each value after its bucket was rotated at random, and a scale that makes it unbiased.

    bucket
        as that of eden.
    Variance: of a bucket pi / 2 - 1 = 0.571 times |v|^2, whatever the values are. It is eden(bits=1): unbiased as that.
    Cost: 1 bit per value + 4 bytes per stretch + 8 per block. Device arrays go through host memory.
    Source: Vargaftik et al., DRIVE: One-bit distributed mean estimation, NeurIPS 2021, algorithm 1 with the unbiased
    scale; differs: as eden.
    """

    bucket: int = 1024

    name = "drive"
    source = "Vargaftik et al., DRIVE, NeurIPS 2021"
    example = "direct/drive(bucket=1024)"
    bits: ClassVar[int] = 1

"""Values rotated at random, so that they are normally distributed, and rounded to the levels that are best for that.

Wire, per region: the 64-bit key of its rotations, then per stretch of a bucket (or piece of one) a float32 scale and
one code of `bits` bits per value, low bits first; of fewer than 32 values these themselves, as float32.
"""

from __future__ import annotations

from gqallreduce.coding.codec import integer, register
from gqallreduce.coding.rotated import EdenCodec


@register
class EDEN(EdenCodec):
    """EDEN: each bucket is rotated at random, rounded to the best levels for normal values, and scaled to be unbiased.

    bits
        1 to 4 per value, sign included.
    bucket
        values in stretches that are rotated together and share a scale: powers of two, from the largest down to 32;
        what is left, fewer than 32, is sent as it is.
    Every message has rotations of its own, so that errors of ranks and hops are independent and average out.
    Variance: of a bucket 0.571, 0.133, 0.0358 or 0.0096 times |v|^2 with 1 to 4 bits, whatever the values are, that is
    1 / (1 - D) - 1 with D the distortion of the levels; a little less in short stretches. Unbiased over rotations: no
    bias above 2 percent of |v| was found.
    A stretch of n values is refused as not finite if 2 sqrt(n) times its scale times the largest level leaves float32.
    Cost: `bits` per value + 4 bytes per stretch + 8 per block. Device arrays go through host memory.
    Source: Vargaftik et al., EDEN, ICML 2022; levels: Lloyd 1982, Max 1960; differs: a rotation is two rounds of signs
    and Hadamard transforms (four below 256 values), since one is biased where few values are not zero; nothing is
    padded; no fractions of bits.
    """

    bits: int = 4
    bucket: int = 1024

    name = "eden"
    source = "Vargaftik et al., EDEN, ICML 2022"
    example = "direct/eden(bits=4, bucket=1024)"

    def __post_init__(self):
        super().__post_init__()
        integer(self, "bits", 1, 4)

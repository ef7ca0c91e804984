"""Levels that are powers of a multiplier fitted to the values.

Wire: that of gqallreduce/coding/levels.py. Codes count the levels from -1 up.
"""

from __future__ import annotations

from gqallreduce.coding.codec import integer, register
from gqallreduce.coding.learned import MultiplierCodec


@register
class AMQ(MultiplierCodec):
    """AMQ: levels 0 (with a zero level) and +-p^j, whose multiplier p is learned for the least variance.

    With a zero level j = 0 ... s - 1, s = 2^(bits-1) - 1; without, j = 0 ... 2^(bits-1) - 1. p^j is at least 2^-60.
    Options: those of `alq`, but for `solver`.
    Variance: that of `alq`, for any levels. Cost: that of `alq`; an update takes one rank some 20 ms.
    Source: Faghri et al., Adaptive gradient quantization for data-parallel SGD, NeurIPS 2020, section 3 and appendix G;
    differs: p is found by golden sections beside the best of 250 values; the objective includes the intervals next to
    zero, which the authors' choice among their results leaves out.
    """

    weight: int = 2

    name = "amq"
    source = "Faghri et al., Adaptive gradient quantization, NeurIPS 2020"
    example = "direct/amq(bits=4, bucket=512)"

    def __post_init__(self):
        super().__post_init__()
        integer(self, "weight", 1, 2)

"""ALQ for normalized values.

Wire: that of gqallreduce/coding/levels.py. Codes count the levels from -1 up.
"""

from __future__ import annotations

from gqallreduce.coding.codec import register
from gqallreduce.coding.learned import FittedCodec


@register
class ALQN(FittedCodec):
    """ALQ-N: as `alq`, with levels for the least variance of v / norm: all buckets count alike, whatever their norm.

    Options: those of `alq`, but for `weight`.
    Variance: that of `alq`, for any levels. Cost: that of `alq`.
    Source: Faghri et al., Adaptive gradient quantization for data-parallel SGD, NeurIPS 2020, section 3, ALQ-N;
    differs: as `alq`.
    """

    name = "alq_n"
    source = "Faghri et al., Adaptive gradient quantization, NeurIPS 2020"
    example = "direct/alq_n(bits=4, bucket=512)"

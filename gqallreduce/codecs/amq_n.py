"""AMQ for normalized values.

Wire: that of gqallreduce/coding/levels.py. Codes count the levels from -1 up.
"""

from __future__ import annotations

from gqallreduce.coding.codec import register
from gqallreduce.coding.learned import MultiplierCodec


@register
class AMQN(MultiplierCodec):
    """AMQ-N: as `amq`, with a multiplier for the least variance of v / norm: all buckets count alike.

    Options: those of `amq`, but for `weight`.
    Variance: that of `alq`, for any levels. Cost: that of `amq`.
    Source: Faghri et al., Adaptive gradient quantization for data-parallel SGD, NeurIPS 2020, section 3, AMQ-N;
    differs: as `amq`.
    """

    name = "amq_n"
    source = "Faghri et al., Adaptive gradient quantization, NeurIPS 2020"
    example = "direct/amq_n(bits=4, bucket=512)"

"""Levels fitted to the values, coordinate by coordinate.

Wire: that of gqallreduce/coding/levels.py. Codes count the levels from -1 up.
"""

from __future__ import annotations

from gqallreduce.coding.codec import integer, register
from gqallreduce.coding.learned import FittedCodec


@register
class ALQ(FittedCodec):
    """ALQ: each value is rounded to one of the two levels around it; levels are learned for the least variance.

    bits
        1 to 8 per value, sign included; 1 needs zero_level=False.
    bucket
        values that share a norm.
    norm
        max: the largest magnitude; l2: the Euclidean norm.
    zero_level
        True: 2^bits - 1 levels, one of them 0; False: 2^bits levels.
    rounding
        stochastic: at random, without bias; nearest: to the nearest level, ties to the greater one.
    coding
        fixed: codes of equal length; huffman, rans or elias: an entropy code, the same values in fewer bytes.
    rotate
        True: each bucket is rotated at random, so that its values are about normal, before it is encoded.
    solver
        optimal: an exact dynamic programme over 300 to 350 places, then coordinate descent; coordinate: that in closed
        form, from four starts; gradient: the published gradient steps, from the same.
    fit
        histogram: levels are fitted to a histogram of v / norm in 770 bins; normal: to the normal distribution of its
        mean and variance, cut off at -1 and 1.
    weight
        a bucket counts by its norm to this power: 2 is its share of the variance; 1, as the authors' code has it.
    updates
        numbers of calls of a key that begin with an update of the levels, from 0; calls that failed, and dense ones
        that `auto/` chose, do not count.
    every
        there is an update too in every so-manyth call; 0: none.
    samples
        levels are fitted to the call of an update and those before it, so many in all, since the last update.
    share
        key: every key has levels of its own; group: keys that are updated in one call of a group get the same.
    Variance: (v - a)(c - v) per value v between a and c, the levels beside it times the norm; unbiased to 2^-16 of
    c - a, and float32 rounding. Error: at most c - a; with rounding=nearest half of that.
    Exact are zeros with a zero level, and with norm=max the largest magnitudes.
    Cost: `bits` per value + 4 bytes per bucket. An update: P - 1 times 6160 bytes per rank, as much memory, log2(P)
    rounds, and as many for the levels; one rank takes 5 to 20 ms with up to 16 levels, 0.1 s with 255, and up to
    10 times as long with fit=normal. The gathering passes of a device array are made on the host.
    Source: Faghri et al., Adaptive gradient quantization for data-parallel SGD, NeurIPS 2020, section 3; differs: see
    gqallreduce/coding/fitting.py; values are gathered from the calls themselves, and their histogram is exact where the
    authors fit a mixture of normal distributions.
    """

    weight: int = 2

    name = "alq"
    source = "Faghri et al., Adaptive gradient quantization, NeurIPS 2020"
    example = "direct/alq(bits=4, bucket=512)"

    def __post_init__(self):
        super().__post_init__()
        integer(self, "weight", 1, 2)

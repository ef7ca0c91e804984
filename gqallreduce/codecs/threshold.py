"""Every value from a threshold on is sent as the threshold; sums of them travel as integers.

Wire: that of gqallreduce/coding/integers.py; the unit is tau.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.coding.codec import register
from gqallreduce.coding.integers import IntegerCodec
from gqallreduce.rounding import usual_arithmetic


@register
class Threshold(IntegerCodec):
    """Send the sign of every value of at least tau, as +-tau, and nothing of the others. Use it with error feedback.

    tau
        the threshold, a positive number within float32; about as large as the values that are to be sent. The default
        is that of LBANN in 2016.
    A sum is an exact multiple of tau, the same on every schedule: only a rank's own values are quantized, once, and
    the error goes into that rank's residual. A rank sends at most tau per value and step; what a gradient has beyond
    that stays in the residual.
    Error: v where it is not sent, |v| - tau where it is; with feedback and |gradient| < tau the residual stays below
    tau, but for rounding.
    Cost: 9 bits per sent value, or 2 bits per value where that is less; sums of P values up to log2(2P + 1) bits,
    rounded up; 4 bytes per block and at most 24 per 4096 values.
    Source: Strom, Scalable distributed DNN training using commodity GPU cloud computing, Interspeech 2015;
    differs: sums are not thresholded again, so that nothing is lost between ranks; gaps of a byte, not 31-bit indices.
    """

    tau: float = 0.01

    name = "threshold"
    source = "Strom, Interspeech 2015"
    example = "direct/threshold(tau=1.5)/ef"
    deterministic = True
    linear = True
    ternary = False

    def __post_init__(self):
        number = isinstance(self.tau, (int, float)) and not isinstance(self.tau, bool)
        with usual_arithmetic():
            unit = float(np.float32(self.tau)) if number else 0.0
        if not 0 < unit < np.inf:
            raise ValueError(f"threshold: tau={self.tau!r}, expected a positive number within float32")
        object.__setattr__(self, "unit", unit)

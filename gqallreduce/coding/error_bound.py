"""How large the error of rounding to levels may be: the least omega with E|Q(v) - v|^2 <= omega |v|^2 for every bucket.

For n values v in units of the norm, each between two neighbouring levels a and b, the expected squared error of a value
is (v - a)(b - v), or with nearest rounding at most ((b - a) / 2)^2. By Lagrange's method only the m(omega) = max over v
of error(v) - omega v^2 is needed:
- max norm: one value is 1 and exact, so n - 1 values may have m(omega) <= omega / (n - 1);
- l2 norm: sum of v^2 = 1, so omega = min over t >= 0 of t + n m(t).
"""

from __future__ import annotations

import numpy as np

_HALVINGS = 100


def error_bound(levels, n: int, *, l2=False, nearest=False, least=1.0, most=1.0) -> float:
    """omega for buckets of up to n values.

    levels
        float64, ascending, from -1 to 1.
    least, most
        the range of a bucket's largest magnitude, in the same units: 1, 1 if it is always a level. What is above 1
        becomes 1.
    """
    a, b = levels[:-1], levels[1:]

    def excess(omega):
        v = (a + b) / 2 if nearest else np.clip((a + b) / (2 * (1 + omega)), a, b)
        error = (v - a) * (b - v) - omega * v * v
        return max(0.0, error.max(), (most - 1) ** 2 - omega * most**2)

    if l2:
        return _least(lambda t: t + n * excess(t), n * excess(0.0))
    others = n - 1 if least == 1 else n
    return _first(lambda omega: others * excess(omega) <= omega * least**2)


def _first(holds) -> float:
    """The smallest number >= 0 from which on `holds`, rounded up."""
    if holds(0.0):
        return 0.0
    high = 1.0
    while not holds(high):
        high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _least(convex, high: float) -> float:
    """The minimum in [0, high]."""
    low = 0.0
    for _ in range(_HALVINGS):
        third = (high - low) / 3
        if convex(low + third) <= convex(high - third):
            high -= third
        else:
            low += third
    return float(convex(high))

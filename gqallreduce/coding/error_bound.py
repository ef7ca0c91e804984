"""How large the error of rounding to levels may be: the least omega with E|Q(v) - v|^2 <= omega |v|^2 for every bucket.

For n values v in units of the norm, each between two neighbouring levels a and b, the expected squared error of a value
is (v - a)(b - v), or with nearest rounding at most ((b - a) / 2)^2. By Lagrange's method only the m(omega) = max over v
of error(v) - omega v^2 is needed:
- max norm: (n - 1) m(omega) and error(v) - omega v^2 of the largest value add up to 0 at most; that is 1, which is
  exact, or where scales are powers of two anything from `least` to `most`;
- l2 norm: sum of v^2 = 1, so omega = min over t >= 0 of t + n m(t).
"""

from __future__ import annotations

import numpy as np

_HALVINGS = 100


def error_bound(levels, n: int, *, l2=False, nearest=False, least=1.0, most=1.0) -> float:
    """omega for buckets of up to n values.

    levels
        float64, ascending, from -1 to 1, alike for both signs.
    least, most
        the range of a bucket's largest magnitude, in the same units: 1, 1 if it is always a level. What is above 1
        becomes 1.
    """

    def excess(omega, low=0.0, high=most):
        """The largest error(v) - omega v^2 of values from low to high."""
        within = (levels[1:] >= low) & (levels[:-1] <= high)
        a, b = levels[:-1][within], levels[1:][within]
        begin, end = np.clip(a, low, min(high, 1.0)), np.clip(b, low, min(high, 1.0))
        middle = (a + b) / 2 if nearest else (a + b) / (2 * (1 + omega))
        v = np.concatenate([begin, end, np.clip(middle, begin, end)])
        below, above = np.abs(v - np.tile(a, 3)), np.abs(np.tile(b, 3) - v)
        error = np.minimum(below, above) ** 2 if nearest else below * above
        beyond = [(v - 1) ** 2 - omega * v * v for v in (max(low, 1.0), high) if v > 1]
        return max([(error - omega * v * v).max(), *beyond])

    if l2:
        return _least(lambda t: t + n * excess(t), n * excess(0.0))
    return _first(lambda omega: (n - 1) * max(0.0, excess(omega)) + excess(omega, least) <= 0)


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

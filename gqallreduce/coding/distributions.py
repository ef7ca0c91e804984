"""How the values of buckets lie between -1 and 1, in units of their norms: what levels are fitted to.

A distribution F has `moments(x)`: the integrals of 1, r and r^2 over dF(r) from 0 to x, float64[3, ...], negative below
0 for even powers; and `quantile(mass, low, high)`: for each of these, the x in [low, high] with moments(x)[0] = mass.
Moments are counted from 0, where most values lie, so that those of short intervals there are not lost.
"""

from __future__ import annotations

import math

import numpy as np

from gqallreduce import _kernels

_SIDE = _kernels.SPREAD_BINS // 2
# of the bins of _kernels.levels_spread that are not negative: 0, 2^-24, then 16 steps per power of two up to 1
_BITS = np.arange(127 * 16 - _SIDE + 1, 127 * 16 + 1, dtype=np.uint32) << 19
_ABOVE = np.concatenate([[0.0], _BITS.view(np.float32)])
EDGES = np.concatenate([-_ABOVE[:0:-1], _ABOVE])

_STEPS, _NO_DENSITY = 20, 1e-300  # of Newton's method
_erf = np.vectorize(math.erf, otypes=[np.float64])


class Histogram:
    """Of `weight`, as _kernels.levels_spread counts it; within a bin all values are equally likely."""

    def __init__(self, weight: np.ndarray):
        density = weight / weight.sum() / np.diff(EDGES)
        self._table = np.zeros((3, EDGES.size))
        for power, edges in enumerate(_antiderivatives(EDGES)):
            part = density * np.diff(edges)
            self._table[power, _SIDE + 1 :] = np.cumsum(part[_SIDE:])
            self._table[power, :_SIDE] = -np.cumsum(part[_SIDE - 1 :: -1])[::-1]
        self._density = density

    def moments(self, x) -> np.ndarray:
        x = np.asarray(x, np.float64)
        bin = np.clip(np.searchsorted(EDGES, x, side="right") - 1, 0, self._density.size - 1)
        # from the edge nearer to 0, which is exact there
        near = np.where(x < 0, bin + 1, bin)
        return self._table[:, near] + self._density[bin] * (_antiderivatives(x) - _antiderivatives(EDGES[near]))

    def quantile(self, mass, low, high) -> np.ndarray:
        return np.clip(np.interp(mass, self._table[0], EDGES), low, high)

    def normal(self) -> Normal:
        """The normal distribution with this one's mean and variance."""
        _, mean, square = self.moments(1.0) - self.moments(-1.0)
        return Normal(mean, math.sqrt(square - mean * mean))


def _antiderivatives(x) -> np.ndarray:
    """Of 1, x and x^2. Without NumPy's power, whose bits depend on the CPU."""
    return np.array([x, x * x / 2, x * x * x / 3])


class Normal:
    """The normal distribution of this mean and deviation (before it is cut off), cut off at -1 and 1."""

    def __init__(self, mean: float, deviation: float):
        self._mean, self._deviation = mean, deviation
        below, above = self._phi(np.array([-1.0, 1.0]))[0]
        self._whole, self._zero = above - below, self._phi(np.array(0.0))
        self._masses = self.moments(EDGES)[0]

    def _phi(self, x):
        """(distribution function less a half, density) before the cut."""
        t = (x - self._mean) / self._deviation
        density = np.exp(-0.5 * t * t) / (math.sqrt(2 * math.pi) * self._deviation)
        return 0.5 * _erf(t / math.sqrt(2)), density

    def moments(self, x) -> np.ndarray:
        x = np.asarray(x, np.float64)
        (half, density), (half_zero, density_zero) = self._phi(x), self._zero
        variance = self._deviation**2
        zeroth = half - half_zero
        first = self._mean * zeroth - variance * (density - density_zero)
        second = self._mean * first + variance * (zeroth - x * density)
        return np.array([zeroth, first, second]) / self._whole

    def quantile(self, mass, low, high) -> np.ndarray:
        """By Newton's method within the bin, halved where that leaves it."""
        above = np.clip(np.searchsorted(self._masses, mass), 1, EDGES.size - 1)
        begin, end = np.clip(EDGES[above - 1], low, high), np.clip(EDGES[above], low, high)
        x = (begin + end) / 2
        for _ in range(_STEPS):
            half, density = self._phi(x)
            beyond = half - self._zero[0] - mass * self._whole
            begin, end = np.where(beyond < 0, x, begin), np.where(beyond < 0, end, x)
            moved = x - beyond / np.maximum(density, _NO_DENSITY)
            x = np.where((moved >= begin) & (moved <= end), moved, (begin + end) / 2)
        return x

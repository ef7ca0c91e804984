"""Levels that lose least of values of one distribution, rounded at random to the two levels around them.

The objective is the expected variance, Psi(levels) = sum over neighbours a < c of the integral of (r - a)(c - r) dF(r).
Levels ascend from -1 to 1, both of which stay; with a level at zero that stays too, and there are as many on both sides
of it. All is computed in float64.

Source: Faghri et al., Adaptive gradient quantization for data-parallel SGD, NeurIPS 2020, section 3 (coordinate descent
in closed form, gradient, multiplier); Ben-Basat et al., arXiv 2402.03158 (the exact dynamic programme). Differs: every
second level is moved at once, then the others, which depend on them alone; the multiplier is found by search on the
whole objective, the cells beside zero included, where the authors' choice among gradient descents leaves those out.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from gqallreduce.coding.distributions import EDGES

SOLVERS = ("coordinate", "gradient", "optimal")

_SWEEPS = 200
_ENOUGH = 1e-8  # sweeps end when one makes the objective smaller by less, relatively
_EMPTY = 1e-12  # of all values: an interval with so few has no centre of its own
_RATE, _EPOCHS = 0.1, 30  # of the gradient variant, as published
_PLACES = 256  # of levels, among which the dynamic programme chooses
_LEAST_LEVEL = 2.0**-60  # of a multiplier's powers: level codecs need neighbours 2^-100 apart
_MINIMA = 3  # of Psi over the multiplier are looked at closely
_GOLDEN = (5**0.5 - 1) / 2


def objective(distribution, levels) -> float:
    """Psi."""
    return float(_cells(distribution, levels).sum())


def _cells(distribution, levels) -> np.ndarray:
    a, c = levels[:-1], levels[1:]
    zeroth, first, second = np.diff(distribution.moments(levels), axis=1)
    return np.maximum((a + c) * first - a * c * zeroth - second, 0.0)


def fit(distribution, count: int, zero_level: bool, solver: str = "optimal") -> np.ndarray:
    """float64[count] levels; `count` is odd with a level at zero, else even."""
    if solver == "optimal":
        best = _on_both_sides(partial(_programme, distribution), count, zero_level)
        return _descend(distribution, best, zero_level, _centre)
    move = _centre if solver == "coordinate" else _step
    found = [_descend(distribution, levels, zero_level, move) for levels in _starts(distribution, count, zero_level)]
    return min(found, key=lambda levels: objective(distribution, levels))


def multiplied(count: int, zero_level: bool, multiplier: float) -> np.ndarray:
    """The levels +-multiplier^j, and zero if it is one."""
    powers = np.cumprod([1.0] + [multiplier] * ((count - zero_level) // 2 - 1))
    return np.concatenate([-powers, [0.0] * zero_level, powers[::-1]])


def fit_multiplier(distribution, count: int, zero_level: bool) -> np.ndarray:
    """The levels +-p^j (and zero) with the least Psi that golden sections find beside the best of 250 multipliers."""
    powers = (count - zero_level) // 2 - 1
    if powers == 0:
        return multiplied(count, zero_level, 0.5)

    def cost(p):
        return objective(distribution, multiplied(count, zero_level, p))

    tried = np.concatenate([np.linspace(0.005, 0.995, 199), np.cumprod([0.004] + [0.5] * 50)])
    tried = np.sort(tried[[multiplied(count, zero_level, p)[-powers - 1] >= _LEAST_LEVEL for p in tried]])
    costs = [cost(p) for p in tried]
    beside = np.concatenate([[np.inf], costs, [np.inf]])
    minima = [at for at in np.argsort(costs) if costs[at] <= min(beside[at], beside[at + 2])][:_MINIMA]
    found = [_golden(cost, tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)]) for at in minima]
    return multiplied(count, zero_level, min([*found, tried[minima[0]]], key=cost))


def _golden(cost, low: float, high: float) -> float:
    """Where cost has its minimum between these, by golden sections."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    costs = cost(left), cost(right)
    for _ in range(30):
        if costs[0] <= costs[1]:
            high, right = right, left
            left = high - _GOLDEN * (high - low)
            costs = cost(left), costs[0]
        else:
            low, left = left, right
            right = low + _GOLDEN * (high - low)
            costs = costs[1], cost(right)
    return (low + high) / 2


# --- descent from a start ---


def _descend(distribution, levels, zero_level: bool, move) -> np.ndarray:
    """Sweeps of `move` over the inner levels until the objective stays."""
    levels = np.array(levels, np.float64)
    inner = np.arange(1, levels.size - 1)
    if zero_level:
        inner = inner[inner != levels.size // 2]
    halves = [inner[inner % 2 == 1], inner[inner % 2 == 0]]
    last = objective(distribution, levels)
    for _ in range(_SWEEPS if move is _centre else _EPOCHS):
        for which in halves:
            if which.size:
                levels[which] = move(distribution, levels[which - 1], levels[which], levels[which + 1])
        now = objective(distribution, levels)
        if last - now <= _ENOUGH * last:
            break
        last = now
    return levels


def _centre(distribution, a, b, c):
    """Where the levels b between a and c lose least: F(c) - F(b) is the mean of (r - a) / (c - a) over (a, c)."""
    from_a, to_c = distribution.moments(a), distribution.moments(c)
    zeroth, first = to_c[0] - from_a[0], to_c[1] - from_a[1]
    found = distribution.quantile(to_c[0] - (first - a * zeroth) / (c - a), a, c)
    found = np.where(zeroth < _EMPTY, (a + c) / 2, found)
    margin = 2.0**-12 * (c - a)
    return np.clip(found, a + margin, c - margin)


def _step(distribution, a, b, c):
    """One step against the gradient, at most half of the way to a neighbour."""
    low, middle, high = (distribution.moments(x) for x in (a, b, c))
    below, above = middle - low, high - middle
    gradient = (below[1] - a * below[0]) - (c * above[0] - above[1])
    most = np.minimum(b - a, c - b) / 2
    return b - np.clip(_RATE * gradient, -most, most)


def _starts(distribution, count: int, zero_level: bool):
    """Levels with as many values between any two; as dense as the cube root of the density; equal steps; powers."""
    for power in (1.0, 1 / 3):
        yield _on_both_sides(partial(_dense, distribution, power), count, zero_level)
    yield np.linspace(-1, 1, count)
    yield multiplied(count, zero_level, initial_multiplier(count, zero_level))


def initial_multiplier(count: int, zero_level: bool) -> float:
    """1/2, or more if the smallest of so many levels would be less than 2^-16."""
    powers = (count - zero_level) // 2 - 1
    return max(0.5, 2.0 ** (-16 / powers)) if powers else 0.5


def _dense(distribution, power: float, edges, points: int) -> np.ndarray:
    """Points from the first edge to the last, as dense as a power, 1 or 1/3, of the density.

    1/3 is best for many levels, whose cells are short. A little of equal steps keeps the points apart.
    """
    mass, width = np.maximum(np.diff(distribution.moments(edges)[0]), 0), np.diff(edges)
    weight = mass if power == 1 else _cube_root(mass * width * width)
    share = np.concatenate([[0.0], np.cumsum(weight)])
    even = np.linspace(edges[0], edges[-1], points)
    found = np.interp(np.linspace(0, share[-1], points), share, edges) if share[-1] > 0 else even
    found[[0, -1]] = edges[[0, -1]]
    return found + 2.0**-10 * (even - found)


def _cube_root(x) -> np.ndarray:
    """Of numbers that are not negative, by Newton's method: unlike NumPy's, alike on every CPU."""
    part, exponent = np.frexp(x)
    left = exponent % 3
    part = np.ldexp(part, left)
    root = np.ones_like(x)
    for _ in range(8):
        root = (2 * root + part / (root * root)) / 3
    return np.where(x > 0, np.ldexp(root, (exponent - left) // 3), 0.0)


def _on_both_sides(make, count: int, zero_level: bool) -> np.ndarray:
    """make(edges, points) from -1 to 1; with a level at zero, from -1 to 0 and from 0 to 1."""
    if not zero_level:
        return make(EDGES, count)
    middle = EDGES.size // 2
    halves = [make(edges, count // 2 + 1) for edges in (EDGES[: middle + 1], EDGES[middle:])]
    return np.concatenate([halves[0][:-1], halves[1]])


# --- the exact optimum among many places ---


def _programme(distribution, edges, points: int) -> np.ndarray:
    """The path over places from the first to the last, in `points` - 1 cells, that loses least.

    least[j] = min over k of least[k] + cost(k, j), cell by cell. Places are every eighth edge, and _PLACES as dense as
    the cube root of the density.
    """
    places = np.union1d(edges[::8], _dense(distribution, 1 / 3, edges, _PLACES))
    a, c = places[:, None], places[None, :]
    zeroth, first, second = distribution.moments(places)
    cost = np.subtract.outer(second, second)  # step by step in one array, which is what an update takes of memory
    cost += (a + c) * -np.subtract.outer(first, first)
    cost -= a * c * -np.subtract.outer(zeroth, zeroth)
    np.maximum(cost, 0.0, out=cost)
    cost[a >= c] = np.inf
    least, came = cost[0], []
    for _ in range(points - 2):
        total = least[:, None] + cost
        came.append(total.argmin(axis=0))
        least = total.min(axis=0)
    path = [places.size - 1]
    for before in reversed(came):
        path.append(int(before[path[-1]]))
    return places[[0, *path[::-1]]]

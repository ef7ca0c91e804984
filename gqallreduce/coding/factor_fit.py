"""Numbers for the codes of two matrices, by which their product is nearest to that of the exact ones.

Let f and g be the matrices, a row for each sample, F and G what their codes stand for. Where G = sum over codes r of
b_r H_r, and H_r has the row's scale where the code is r, the b that minimise |f^T g - F^T G|^2 solve M b = e, with
M_rs = <F^T H_r, F^T H_s> and e_r = <F^T H_r, f^T g>. For F the same holds with the two exchanged.

Source: Abdi and Fekri, AAAI 2020, equation 6 and algorithm 1; differs: zeros have a code of their own that stays zero,
rows may have scales, samples may have gains, and the sums go over samples or over the gradient, what is less work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gqallreduce.coding.outer import Factors

_RIDGE = 1e-6  # of the mean of the diagonal, where gains are sought


@dataclass
class Coded:
    """A matrix of which the codes are decided.

    codes
        uint8.
    scales
        of each row, float64.
    numbers
        of each code, float64.
    first
        the first code whose number is sought; that of one before is zero.
    """

    codes: np.ndarray
    scales: np.ndarray
    numbers: np.ndarray
    first: int

    @property
    def values(self) -> np.ndarray:
        return self.numbers[self.codes] * self.scales[:, None]

    def indicators(self):
        """H_r of each code whose number is sought."""
        for code in range(self.first, len(self.numbers)):
            yield (self.codes == code) * self.scales[:, None]


@lru_cache(maxsize=16)
def lloyd_max(count: int) -> tuple[float, ...]:
    """`count` numbers for a magnitude that is half-normal with mean square 1: each the mean of what is nearest to it.

    Source: Lloyd, 1957, and Max, 1960.
    """
    numbers = (np.arange(count) + 0.5) * (3.0 / count)
    for _ in range(1000):
        ends = [0.0, *(numbers[1:] + numbers[:-1]) / 2, math.inf]
        share = np.diff([math.erf(end / math.sqrt(2)) for end in ends]) * math.sqrt(math.pi / 2)
        numbers = -np.diff([math.exp(-end * end / 2) for end in ends]) / share
    return tuple(numbers.tolist())


def coded(x: np.ndarray, bits: int, by_row: bool) -> Coded:
    """Each value by the code whose number is nearest, in units of the root mean square of the row, or of all rows.

    Zeros do not count, and have code 0. Each sign has half of the other codes; with one bit there is no code for zero.
    """
    signed = bool(x.min() < 0)
    count = 2**bits - 1 if not signed else max(1, 2 ** (bits - 1) - 1)
    numbers, axis = np.array(lloyd_max(count)), 1 if by_row else None
    squares, there = np.sum(x * x, axis=axis), np.count_nonzero(x, axis=axis)
    scales = np.sqrt(squares / np.maximum(there, 1)) * np.ones(len(x))
    if signed and bits == 1:
        return Coded((x >= 0).astype(np.uint8), scales, np.array([-numbers[0], numbers[0]]), 0)
    units = np.abs(x) / np.where(scales > 0, scales, 1)[:, None]
    codes = (np.searchsorted((numbers[1:] + numbers[:-1]) / 2, units) + 1 + count * (x < 0)).astype(np.uint8)
    codes[x == 0] = 0
    found = np.zeros(2**bits)
    found[1 : count + 1] = numbers
    if signed:
        found[count + 1 : 2 * count + 1] = -numbers
    return Coded(codes, scales, found, 1)


def fit(factors: Factors, x, delta, x_coded: Coded, delta_coded: Coded, sweeps: int, balanced: bool) -> None:
    """Set the numbers of both matrices' codes: those of delta, then those of x, in so many sweeps.

    balanced
        with the sum over the gradient as it is.
    """
    spread_x, spread_delta = factors.spread_x, factors.spread_delta
    f, g = spread_x(x), spread_delta(delta)
    for _ in range(sweeps):
        delta_coded.numbers[delta_coded.first :] = _solved(
            f, g, spread_x(x_coded.values), map(spread_delta, delta_coded.indicators()), balanced
        )
        x_coded.numbers[x_coded.first :] = _solved(
            g, f, spread_delta(delta_coded.values), map(spread_x, x_coded.indicators()), balanced
        )


def gains(factors: Factors, x, delta, x_coded: Coded, delta_coded: Coded, balanced: bool) -> None:
    """Multiply each sample's scale of delta by what makes the product nearest."""
    f, g = factors.spread_x(x), factors.spread_delta(delta)
    fixed, free = factors.spread_x(x_coded.values), factors.spread_delta(delta_coded.values)
    samples = len(x)
    by_sample = (each.reshape(samples, -1, each.shape[1]) for each in (fixed, free))
    if len(fixed) == samples:
        matrix = (fixed @ fixed.T) * (free @ free.T)
        right = np.sum((fixed @ f.T @ g) * free, axis=1)
        sums = fixed.sum(axis=1) * free.sum(axis=1)
    else:
        products = np.stack([(one.T @ other).reshape(-1) for one, other in zip(*by_sample, strict=True)])
        matrix, right, sums = products @ products.T, products @ (f.T @ g).reshape(-1), products.sum(axis=1)
    matrix = matrix + np.eye(samples) * (_RIDGE * np.trace(matrix) / samples)
    found = _least_squares(matrix, right, sums, np.sum(f.sum(axis=1) * g.sum(axis=1)) if balanced else None)
    delta_coded.scales *= found


def _solved(f, g, fixed, indicators, balanced: bool) -> np.ndarray:
    """The numbers of G's codes, where `fixed` is F."""
    every, rows = list(indicators), len(f)
    if rows * (f.shape[1] + g.shape[1]) < f.shape[1] * g.shape[1]:
        square, target = fixed @ fixed.T, fixed @ f.T @ g
        ours, others = [square @ each for each in every], every
    else:
        ours = others = [fixed.T @ each for each in every]
        target = f.T @ g
    matrix = np.array([[np.vdot(one, other) for other in others] for one in ours])
    right = np.array([np.vdot(each, target) for each in others])
    sums = np.array([np.vdot(fixed.sum(axis=1), each.sum(axis=1)) for each in every])
    return _least_squares(matrix, right, sums, np.sum(f.sum(axis=1) * g.sum(axis=1)) if balanced else None)


def _least_squares(matrix, right, sums, total: float | None) -> np.ndarray:
    """Of matrix b = right the shortest b; with a total the one whose sums, times b, are that."""
    size = len(right)
    if total is not None:
        scale = math.sqrt(np.trace(matrix) / size) or 1.0  # so that rounding does not hide one equation in the others
        matrix = np.block([[matrix, sums[:, None] * scale], [sums[None] * scale, np.zeros((1, 1))]])
        right = np.append(right, total * scale)
    return np.linalg.lstsq(matrix, right, rcond=1e-12)[0][:size]

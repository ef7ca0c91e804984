"""The order in which a sum is added up (csrc/gq/sum.hpp), seen where it decides a bit of the float32 that travels.

2^54 + 2^30 is half-way between two float32s, and a float64 of that size takes in nothing below 2. So a one that is
added to it by itself is lost, and ones that were added to each other before are not: they round the sum up.
"""

import itertools

import numpy as np
import pytest
from plain import every_level, mean, same_bits, sum_rule, table, units, using

from gqallreduce import _kernels

f32 = np.float32
# (elements, start, run, parts): a few rows, columns that begin anywhere in a row, blocks of 4096
GRIDS = [(64, 0, 64, 1), (70, 0, 70, 1), (264, 7, 33, 1), (450, 13, 100, 2), (9001, 0, 9001, 1), (9001, 5, 4500, 1)]
SEEDS = range(30)
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)


def close_calls(seed, grid, large, most, rest):
    """In each column the `large` values and ones at random places, `most` in all if it is so long; else `rest`."""
    rng = np.random.default_rng(seed)
    v = np.full(grid[0], rest, f32)
    for begin, end in units(*grid):
        count = min(most, 1 << (end - begin).bit_length() - 1)  # a mean's divisor: a power of two rounds nothing
        places = begin + rng.permutation(end - begin)[:count]
        v[places] = 1.0
        v[places[: len(large)]] = large[:count]
    return v


def sums(seed, grid):
    return close_calls(seed, grid, [2.0**54, 2.0**30], 8, -1.0)


def squares(seed, grid):
    """Their squares add up to (2^27 + 2^3)^2, which is half-way between two squares of float32s, and some ones."""
    return close_calls(seed, grid, [2.0**27, 2.0**15, 2.0**15, 2.0**3], 12, 0.0)


def norm(v):
    return f32(np.sqrt(sum_rule(v.astype(np.float64) ** 2)))


def test_the_order_does_decide():
    """Else what follows would tell nothing: the same values in other places round the other way."""
    for grid in ((64, 0, 64, 1), (9001, 0, 9001, 1)):
        assert len({mean(v, v > 0) for v in (sums(seed, grid) for seed in SEEDS)}) == 2
        assert len({norm(squares(seed, grid)) for seed in SEEDS}) == 2


@every_level
@every_grid
@pytest.mark.parametrize("sign", [1, -1])
def test_the_means_of_onebit_are_added_in_the_order_of_the_rule(level, grid, sign):
    for seed, feedback in itertools.product(SEEDS, (False, True)):
        v = f32(sign) * sums(seed, grid)
        n, regions = grid[0], table(*grid)
        wire, at = np.zeros(_kernels.onebit_nbytes(regions), np.uint8), 0
        e = np.zeros(n, f32) if feedback else None
        with using(level):
            assert _kernels.onebit_encode(v, e, None if e is None else e.copy(), wire, regions) == 0
        for begin, end in units(*grid):
            column = v[begin:end]
            expected = np.array([mean(column, column >= 0), mean(column, column < 0)])
            assert same_bits(wire[at : at + 8].view(f32), expected), (seed, begin)
            at += 8 + (end - begin + 7) // 8


@every_level
@every_grid
def test_the_means_of_adaptive_are_added_in_the_lanes_of_the_column(level, grid):
    for seed in SEEDS:
        v = sums(seed, grid)
        n = grid[0]
        index, counts = np.arange(n, dtype=np.uint32), np.array([n])
        columns = units(*grid)
        wire = np.zeros(12 * len(columns) + 4 + 2 * n, np.uint8)
        with using(level):
            assert _kernels.adaptive_encode(index, v, counts, None, wire, table(*grid)) == wire.size
        for number, (begin, end) in enumerate(columns):
            column = v[begin:end]
            expected = np.array([mean(column, column > 0), mean(column, column < 0)])
            assert same_bits(wire[12 * number + 4 : 12 * number + 12].view(f32), expected), (seed, begin)


@every_level
@every_grid
def test_a_norm_is_added_in_the_order_of_the_rule(level, grid):
    n, start, run, _ = grid
    regions = table(n, start, run)
    levels, stream = _kernels.Levels.uniform(4, True), _kernels.Stream(1, 2, 3, 4)
    for seed, feedback in itertools.product(SEEDS, (False, True)):
        v = squares(seed, (n, start, run, 1))
        wire, at = np.zeros(_kernels.levels_nbytes(regions, levels), np.uint8), 0
        with using(level):
            e = np.zeros(n, f32) if feedback else None
            assert _kernels.levels_encode(v, e, None, wire, levels, True, regions, stream) == 0
            assert _kernels.measure(v, e, True, regions)[1] == sum_rule(v.astype(np.float64) ** 2)
        for begin, end in units(n, start, run, 1):
            assert same_bits(wire[at : at + 4].view(f32)[0], norm(v[begin:end])), (seed, begin)
            at += 4 + (end - begin + 1) // 2

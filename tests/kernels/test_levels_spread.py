"""How values lie in units of their norms: the histogram to which levels are fitted."""

import itertools

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from level_oracles import f32, sum_of_squares, units
from plain import table as in_buckets
from simd import on_every_level, threads

from gqallreduce import _kernels
from gqallreduce.coding.distributions import EDGES

BINS = _kernels.SPREAD_BINS


def spread(x, e=None, *, l2=False, power=2, start=0, bucket=64):
    weight = np.zeros(BINS)
    _kernels.levels_spread(x, e, l2, power, in_buckets(x.size, start, bucket), weight)
    return weight


def oracle(x, e, l2, power, start, bucket):
    """With a search of the edges, value by value."""
    weight, v = np.zeros(BINS), x if e is None else x + e
    for begin, end in units(start, v.size, bucket):
        part = v[begin:end]
        with np.errstate(over="ignore", invalid="ignore"):
            norm = f32(np.sqrt(sum_of_squares(part))) if l2 else np.abs(part).max()
        if not (np.isfinite(norm) and norm > 0):
            continue
        for value in part:
            ratio = min(float(f32(abs(value)) / norm), 1 - 2.0**-24)
            above = np.searchsorted(EDGES[BINS // 2 :], ratio, side="right") - 1
            weight[BINS // 2 - 1 - above if np.signbit(value) else BINS // 2 + above] += float(norm) ** power
    return weight


def test_the_edges_are_16_to_a_power_of_two():
    above = EDGES[BINS // 2 :]
    assert len(EDGES) == BINS + 1
    np.testing.assert_array_equal(EDGES, -EDGES[::-1])
    assert (above[0], above[1], above[-1]) == (0, 2.0**-24, 1)
    for low, high in itertools.pairwise(2.0 ** np.arange(-24, 1)):
        np.testing.assert_array_equal(above[(above >= low) & (above <= high)], np.linspace(low, high, 17))


@examples(60)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 2), st.integers(1, 700), st.booleans())
def test_every_instruction_set_counts_as_the_definition_says(seed, l2, power, bucket, fed):
    rng = np.random.default_rng(seed)
    n, start = int(rng.integers(0, 1500)), int(rng.integers(0, 1000))
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-30, 30, n)).astype(f32)
    x[rng.random(n) < 0.1] = 0
    e = rng.standard_normal(n).astype(f32) if fed else None
    expected = oracle(x, e, l2, power, start, bucket).tobytes()
    given = {"l2": l2, "power": power, "start": start, "bucket": bucket}
    assert set(on_every_level(lambda: spread(x, e, **given).tobytes()).values()) == {expected}


def test_buckets_without_a_norm_are_left_out_and_several_calls_add_up():
    x = np.ones(40, f32)
    x[:10], x[10], x[20] = 0, np.nan, np.inf
    weight = spread(x, bucket=10)
    assert weight[-1] == weight.sum() == 10
    for _ in range(2):
        _kernels.levels_spread(2 * x, None, False, 2, in_buckets(40, 0, 10), weight)
    assert weight[-1] == weight.sum() == 10 + 2 * 40


def test_the_number_of_threads_changes_nothing():
    x = np.random.default_rng(1).standard_normal(300_000).astype(f32)
    found = set()
    for count in (1, 2, 3):
        with threads(count):
            found.add(spread(x, l2=True, bucket=1000).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(("bins", "power"), [(BINS - 1, 2), (BINS, 3), (BINS, -1)])
def test_what_it_cannot_do_is_refused(bins, power):
    with pytest.raises(ValueError, match=r"expected (770|0, 1 or 2)"):
        _kernels.levels_spread(np.zeros(3, f32), None, False, power, in_buckets(3, 0, 2), np.zeros(bins))

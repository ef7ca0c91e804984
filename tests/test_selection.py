"""Exactly the k largest, whatever the blocks, the signs and the ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemes import PARTICULARS
from simd import threads

from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding.layout import Grid, Region
from gqallreduce.coding.selection import Parts, drained, select_largest

largest = PARTICULARS["adaptive"].largest

VALUES = st.lists(
    st.sampled_from([0.0, -0.0, 1, -1, 1, 2, -2, 1e-45, -1e-45, 3e38, -3e38, 0.1]) | st.floats(-9, 9, width=32),
    max_size=60,
)


def chosen(v, pi, separate, lengths, owed=None, owing=None):
    """Places kept of a vector that comes in blocks of these lengths; and every Kept."""
    regions, at = [], 0
    for length in [*lengths, len(v)]:
        size = min(length, len(v) - at)
        if size:
            regions.append(Region(at, size, Grid(16), len(v)))
        at += size

    def load(region):
        span = slice(region.start, region.start + region.size)
        return tuple(None if each is None else each[span] for each in (v, owed, owing))

    kept = drained(select_largest(Parts(regions, load), pi, separate, Workspace()))
    places = [region.start + each.index.astype(int) for region, each in zip(regions, kept, strict=True)]
    return np.concatenate([np.zeros(0, int), *places]), kept


@given(VALUES, st.integers(1, 70), st.booleans(), st.lists(st.integers(1, 20), max_size=5))
@settings(max_examples=400, deadline=None)
def test_any_small_vector(values, pi, separate, lengths):
    v = np.array(values, np.float32)
    places, kept = chosen(v, pi, separate, lengths)
    np.testing.assert_array_equal(places, largest(v, max(1, len(v) // pi) if len(v) else 0, separate))
    np.testing.assert_array_equal(np.concatenate([np.zeros(0), *(each.value for each in kept)]), v[places])


@given(VALUES, st.integers(1, 70), st.booleans())
@settings(max_examples=100, deadline=None)
def test_with_feedback_v_is_left_in_owing(values, pi, separate):
    x = np.array(values, np.float32)
    owed, owing = np.roll(x, 1) * np.float32(1e-3), np.full(len(x), 7, np.float32)
    places, _ = chosen(x, pi, separate, [7, 7], owed, owing)
    np.testing.assert_array_equal(owing, x + owed)
    np.testing.assert_array_equal(places, largest(x + owed, max(1, len(x) // pi) if len(x) else 0, separate))


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("pi", [1, 2, 10, 1000])
def test_any_spread_and_number_of_threads(separate, count, pi):
    rng = np.random.default_rng(pi)
    v = rng.standard_normal(100_003).astype(np.float32)
    v[70_000:] *= 1e6
    with threads(count):
        places, _ = chosen(v, pi, separate, [40_000, 50_000])
    k = max(1, len(v) // pi)
    if not separate:
        expected = np.sort(np.argsort(-np.abs(v), kind="stable")[:k])
    else:
        expected = PARTICULARS["adaptive"].separate_in_bulk(v, k)
    np.testing.assert_array_equal(places, expected)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("number", [1, 500, 30_000])
def test_a_part_that_is_not_finite_says_so_and_nothing_is_kept(separate, value, number):
    v = np.random.default_rng(1).standard_normal(30_000).astype(np.float32)
    v[10_000 : 10_000 + number] = value
    _, kept = chosen(v, 50, separate, [10_000, 10_000])
    bad = [not np.isfinite(part).all() for part in (v[:10_000], v[10_000:20_000], v[20_000:])]
    assert [not each.finite for each in kept] == bad
    assert not any(len(each.index) for each in kept)

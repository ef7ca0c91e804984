"""Exactly the k largest, whatever the blocks, the signs and the ties, by whichever way they are found."""

import itertools
from unittest import mock

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import floats, same_bits
from schemes import PARTICULARS
from simd import threads

from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import selection
from gqallreduce.coding.layout import Grid, Region, Span
from gqallreduce.coding.preparing import Parts, alone
from gqallreduce.coding.selection import select_largest

largest = PARTICULARS["adaptive"].largest

VALUES = st.lists(
    st.sampled_from([0.0, -0.0, 1, -1, 1, 2, -2, 1e-45, -1e-45, 3e38, -3e38, 0.1]) | st.floats(-9, 9, width=32),
    max_size=60,
)


def chosen(v, pi, separate, lengths, residual=None, new_residual=None):
    """Places kept of a vector that comes in blocks of these lengths; and every Kept, alike by either way."""
    places, kept = found_in_general(v, pi, separate, lengths, residual, new_residual)
    left = None if new_residual is None else new_residual.copy()
    one = Span(regions_of(v, lengths) or [Region(0, 0, Grid(16), 0)])
    (short,) = alone(select_largest(Parts([one], lambda _: (v, residual, new_residual), Workspace()), pi, separate))
    if len(v) <= selection.SMALL:
        assert new_residual is None or same_bits(new_residual, left)
        assert short.finite == all(each.finite for each in kept)
        for name in ("index", "value", "counts"):
            together = [getattr(each, name) for each in kept] or [getattr(short, name)]
            assert same_bits(getattr(short, name), np.concatenate(together)), name
    return places, kept


def regions_of(v, lengths):
    regions, at = [], 0
    for length in [*lengths, len(v)]:
        size = min(length, len(v) - at)
        if size:
            regions.append(Region(at, size, Grid(16), len(v)))
        at += size
    return regions


def found_in_general(v, pi, separate, lengths, residual, new_residual):
    def load(region):
        span = slice(region.start, region.start + region.size)
        return tuple(None if each is None else each[span] for each in (v, residual, new_residual))

    regions = regions_of(v, lengths)
    with mock.patch.object(selection, "SMALL", -1):
        kept = alone(select_largest(Parts(regions, load, Workspace()), pi, separate))
    places = [region.start + each.index.astype(int) for region, each in zip(regions, kept, strict=True)]
    return np.concatenate([np.zeros(0, int), *places]), kept


@given(VALUES, st.integers(1, 70), st.booleans(), st.lists(st.integers(1, 20), max_size=5))
@examples(400)
def test_any_small_vector(values, pi, separate, lengths):
    v = np.array(values, np.float32)
    places, kept = chosen(v, pi, separate, lengths)
    np.testing.assert_array_equal(places, largest(v, max(1, len(v) // pi) if len(v) else 0, separate))
    np.testing.assert_array_equal(np.concatenate([np.zeros(0), *(each.value for each in kept)]), v[places])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", ["normal", "steps", "denormal", "huge", "one sign", "few"])
def test_a_short_range_of_any_size(separate, kind):
    for n in (*range(70), 100, 255, 256, 257, 1000, 2000, 32767):
        v = floats(n, n, "normal" if kind in ("one sign", "few") else kind)
        if kind == "one sign":
            v = np.abs(v)
        if kind == "few":
            v[np.random.default_rng(n).random(n) < 0.9] = 0
        for pi in (1, 2, 7, 64, 5000):
            chosen(v, pi, separate, [n // 3])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("pi", [1, 2, 64])
def test_a_value_that_is_not_finite_in_a_short_range(separate, value, pi):
    for n, feedback in itertools.product((1, 2, 7, 300, 5000), (False, True)):
        for place in {0, n // 2, n - 1}:
            v = np.abs(floats(n, n))
            v[place] = value
            residual, new_residual = (np.zeros(n, np.float32), np.full(n, 7, np.float32)) if feedback else (None, None)
            places, (kept,) = chosen(v, pi, separate, [], residual, new_residual)
            assert (kept.finite, len(places), kept.counts.tolist()) == (False, 0, [0])


@given(VALUES, st.integers(1, 70), st.booleans())
@examples(100)
def test_with_feedback_v_is_left_in_the_new_residual(values, pi, separate):
    x = np.array(values, np.float32)
    residual, new_residual = np.roll(x, 1) * np.float32(1e-3), np.full(len(x), 7, np.float32)
    places, _ = chosen(x, pi, separate, [7, 7], residual, new_residual)
    np.testing.assert_array_equal(new_residual, x + residual)
    np.testing.assert_array_equal(places, largest(x + residual, max(1, len(x) // pi) if len(x) else 0, separate))


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


@pytest.mark.parametrize("seed", range(5))
def test_a_guess_has_room_for_what_it_lets_through(seed, monkeypatch):
    """Where a sample holds few of the k values the guess is that much lower, and no second pass is needed."""
    monkeypatch.setattr(selection, "_SAMPLE", 1 << 10)
    v, k = np.random.default_rng(seed).standard_normal(1 << 20).astype(np.float32), 1000
    parts = Parts([Region(0, v.size, Grid(1), v.size)], lambda _: (v, None, None), Workspace())
    with mock.patch.object(selection, "_exact_floor", side_effect=AssertionError("a second pass")):
        (kept,) = alone(selection.select_most(parts, k))
    np.testing.assert_array_equal(kept.index, np.sort(np.argsort(-np.abs(v), kind="stable")[:k]))

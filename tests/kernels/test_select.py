"""Selection: sorting is the oracle of what never sorts."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, SIZES, every_level, floats, same_bits, using

from gqallreduce import _kernels


def bits(v):
    return np.asarray(v, np.float32).view(np.uint32) & 0x7FFFFFFF


def collect(x, e, floor, capacity, keep=True):
    """(count, index, value, r)"""
    index, value = np.full(capacity, 2**32 - 1, np.uint32), np.zeros(capacity, np.float32)
    r = np.full(x.size + 1, 7, np.float32)[1:] if keep else None
    return _kernels.collect(x, e, r, floor, index, value), index, value, r


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [*SIZES, 70001])
def test_collect_finds_what_a_comparison_finds(level, threads, kind, n):
    x, e = floats(n, n, kind), floats(n + 1, n, kind)
    for error in (None, e):
        v = x if error is None else x + error
        ordered = np.sort(bits(v))
        for floor in {1, int(ordered[n // 2]) if n else 5, int(ordered[-1]) if n else 6, 0x7FFFFFFF}:
            floor = max(floor, 1)
            expected = np.flatnonzero(bits(v) >= floor)
            for keep in (True, False):
                with using(level, threads):
                    count, index, value, r = collect(x, error, floor, n, keep)
                assert count == expected.size
                assert same_bits(index[:count], expected.astype(np.uint32))
                assert same_bits(value[:count], v[expected])
                assert r is None or same_bits(r, v)


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("begin", [0, 33000, 69000])
def test_collect_fills_all_the_room_however_unevenly_the_values_lie(level, threads, begin):
    x = floats(1, 70001) * np.float32(1e-3)
    x[begin : begin + 1000] = 7
    for capacity in (1000, 1001, 999):
        with using(level, threads):
            count, index, value, r = collect(x, None, int(np.float32(7).view(np.uint32)), capacity)
        assert count == 1000
        assert same_bits(r, x)
        if capacity >= count:
            assert same_bits(index[:1000], np.arange(begin, begin + 1000, dtype=np.uint32))
            assert same_bits(value[:1000], x[begin : begin + 1000])


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_collect_says_that_the_room_was_too_small_and_still_forms_v(level, threads):
    x, e = floats(1, 100000), floats(2, 100000)
    for capacity in (0, 1, 17, 99998):
        with using(level, threads):
            count, index, _, r = collect(x, e, 1, capacity)
        assert count > capacity
        assert same_bits(r, x + e)
        if threads == 1:
            assert same_bits(index, np.arange(capacity, dtype=np.uint32))


@every_level
def test_collect_keeps_what_is_not_finite(level):
    x = floats(1, 1000)
    x[[3, 500, 999]] = np.nan, -np.inf, np.inf
    with using(level):
        count, index, value, _ = collect(x, None, 0x7F800000, 10)
    assert (count, index[:3].tolist()) == (3, [3, 500, 999])
    assert not np.isfinite(value[:3]).any()


@every_level
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", [*SIZES, 70001])
def test_the_histogram_counts_the_upper_twelve_bits(level, threads, n):
    for kind in KINDS:
        x, e = floats(n, n, kind), floats(n + 1, n, kind)
        for error in (None, e):
            counts = np.arange(4096, dtype=np.int64)
            with using(level, threads):
                _kernels.histogram(x, error, counts)
            v = x if error is None else x + error
            expected = np.bincount(bits(v) >> 19, minlength=4096)
            assert (counts - np.arange(4096) == expected).all()


def ranked(v, sign):
    chosen = v[v != 0] if sign == 0 else v[v * np.sign(sign) > 0]
    return np.sort(bits(chosen))[::-1]


@every_level
@pytest.mark.parametrize("sign", [0, 1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_kth_is_what_sorting_finds(level, sign, kind):
    for n in (1, 2, 9, 100, 5003):
        v = floats(n, n, kind)
        order = ranked(v, sign)
        for k in {1, 2, order.size // 2, order.size - 1, order.size} - {0, -1}:
            with using(level):
                if k > order.size:
                    with pytest.raises(ValueError, match=f"no {k}-th"):
                        _kernels.kth(v, k, sign)
                else:
                    assert _kernels.kth(v, k, sign) == (order[k - 1], (order > order[k - 1]).sum())


@every_level
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50), st.sampled_from([0, 1, -1]))
@examples(100)
def test_kth_of_any_list_is_what_sorting_finds(level, values, sign):
    v = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        order = ranked(v, sign)
    with using(level):
        for k in range(1, order.size + 1):
            assert _kernels.kth(v, k, sign) == (order[k - 1], (order > order[k - 1]).sum())


def test_kth_of_nothing_is_refused():
    for v in (np.zeros(0, np.float32), np.zeros(4, np.float32)):
        for k in (0, 1):
            with pytest.raises(ValueError, match=f"no {k}-th"):
                _kernels.kth(v, k, 0)


@every_level
@given(
    st.lists(st.integers(-4, 4), max_size=60),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 9),
    st.integers(0, 9),
    st.booleans(),
)
@examples(150)
def test_keep_keeps_the_order_and_gives_ties_away_one_by_one(level, values, positive, negative, up, down, joint):
    value = np.array(values, np.float32)
    index = np.arange(value.size, dtype=np.uint32) * 3
    ties = np.array([up, down], np.int64)
    left, expected = [up, down], []
    for i, v in enumerate(values):
        threshold = negative if v < 0 else positive
        side = 1 if v < 0 and not joint else 0
        if abs(v) > threshold:
            expected.append(i)
        elif abs(v) == threshold and left[side] > 0:
            left[side] -= 1
            expected.append(i)
    got_index, got_value = index.copy(), value.copy()
    with using(level):
        count = _kernels.keep(got_index, got_value, value.size, int(bits(positive)), int(bits(negative)), ties, joint)
    assert count == len(expected)
    assert same_bits(got_index[:count], index[expected])
    assert same_bits(got_value[:count], value[expected])
    assert ties.tolist() == left


@every_level
@pytest.mark.parametrize("n", SIZES)
def test_signs_are_counted(level, n):
    for kind in KINDS:
        v = floats(n, n, kind)
        with using(level):
            assert _kernels.count_signs(v) == ((v > 0).sum(), (v < 0).sum())


def test_wrong_arguments_are_refused():
    x, index = np.zeros(3, np.float32), np.zeros(3, np.uint32)
    with pytest.raises(ValueError, match="floor_bits"):
        _kernels.collect(x, None, None, 0, index, x.copy())
    with pytest.raises(ValueError, match="value_out: got 2, expected 3"):
        _kernels.collect(x, None, None, 1, index, x[:2])
    with pytest.raises(ValueError, match="counts: got 9, expected 4096"):
        _kernels.histogram(x, None, np.zeros(9, np.int64))
    with pytest.raises(ValueError, match="count: got 4, expected at most 3"):
        _kernels.keep(index, x, 4, 1, 1, np.zeros(2, np.int64), True)
    with pytest.raises(ValueError, match="ties: got 1, expected 2"):
        _kernels.keep(index, x, 3, 1, 1, np.zeros(1, np.int64), True)

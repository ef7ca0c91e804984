"""Adaptive: selection by column, the message of compressed sparse columns, and what a decoder must refuse."""

import contextlib

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, LEVELS, every_level, floats, largest, mean, regions, same_bits, table, units, using

from gqallreduce import _kernels
from gqallreduce.errors import WireError


def expected_columns(v, grid, pi, separate):
    places = [
        begin + largest(v[begin:end], max(1, (end - begin) // pi), separate) for begin, end in units(v.size, *grid)
    ]
    return np.concatenate([np.zeros(0, np.int64), *places]).astype(np.uint32)


def select(x, e, grid, pi, separate, keep=True):
    """(count, index, value, r)"""
    bound = _kernels.adaptive_select_bound(table(x.size, *grid), pi)
    index, value, counts = np.zeros(bound, np.uint32), np.zeros(bound, np.float32), np.zeros(1, np.int64)
    r = np.full(x.size + 1, 7, np.float32)[1:] if keep else None
    count = _kernels.adaptive_select_columns(x, e, r, index, value, counts, table(x.size, *grid), pi, separate)
    assert counts[0] == max(count, 0)
    return count, index[: max(count, 0)], value[: max(count, 0)], r


def check_selection(x, e, grid, pi, separate):
    v = x if e is None else x + e
    expected = expected_columns(v, grid, pi, separate)
    for keep in (True, False):
        count, index, value, r = select(x, e, grid, pi, separate, keep)
        assert count == expected.size
        assert same_bits(index, expected)
        assert same_bits(value, v[expected])
        assert r is None or same_bits(r, v)


@every_level
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", [(0, 1, 1), (3, 33, 1), (0, 4096, 1), (100, 1000, 3), (0, 32767, 1), (7, 128, 1)])
def test_each_column_keeps_its_largest(level, separate, kind, grid):
    n = min(9001, 300 * grid[1])
    with using(level):
        for pi in (1, 7, 64):
            check_selection(floats(1, n, kind), floats(2, n, kind) if pi == 7 else None, grid, pi, separate)


@every_level
@given(regions(), st.integers(0, 99), st.sampled_from(KINDS), st.integers(1, 50), st.booleans(), st.booleans())
@examples(100)
def test_any_region_keeps_the_largest_of_its_columns(level, region, seed, kind, pi, separate, with_error):
    n, *grid = region
    with using(level):
        check_selection(
            floats(seed, n, kind), floats(seed + 1, n, kind) if with_error else None, tuple(grid), pi, separate
        )


@every_level
@given(st.lists(st.integers(-3, 3), max_size=70), st.integers(1, 40), st.integers(1, 9), st.booleans())
@examples(200)
def test_ties_and_lopsided_columns_go_by_memory_order(level, values, run, pi, separate):
    with using(level):
        check_selection(np.array(values, np.float32), None, (0, run, 1), pi, separate)


@every_level
@pytest.mark.parametrize("separate", [False, True])
def test_columns_of_very_different_scale_defeat_the_guess_but_not_the_result(level, separate):
    x = floats(1, 64 * 500)
    x *= np.repeat(np.exp2(np.random.default_rng(2).integers(-60, 60, 500)), 64).astype(np.float32)
    x[64 * 100 : 64 * 120] = 0
    with using(level):
        check_selection(x, None, (0, 64, 1), 8, separate)


@every_level
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_selection_reports_a_value_that_is_not_finite(level, separate, value):
    for n, run, pi in [(1, 1, 1), (40, 40, 40), (300, 33, 5), (9000, 4097, 64)]:
        for place in {0, n // 2, n - 1}:
            for base in (floats(1, n), -np.abs(floats(1, n)), np.zeros(n, np.float32)):
                x = base.copy()
                x[place] = value
                with using(level):
                    assert select(x, None, (0, run, 1), pi, separate)[0] == -1
    payload = np.full(100, 0x7FFFFFFF, np.uint32).view(np.float32)
    with using(level):
        assert select(payload, None, (0, 50, 1), 5, separate)[0] == -1


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("separate", [False, True])
def test_threads_do_not_change_the_selection(level, threads, separate):
    x, e = floats(1, 100003), floats(2, 100003)
    x[20000:60000] = 0
    e[20000:60000] = 0
    for grid in [(17, 4096, 1), (3, 33, 1), (0, 200000, 9)]:
        with using("scalar"):
            expected = select(x, e, grid, 64, separate)
        with using(level, threads):
            got = select(x, e, grid, 64, separate)
        assert got[0] == expected[0]
        assert all(same_bits(a, b) for a, b in zip(got[1:], expected[1:], strict=True))


def expected_message(index, value, n, grid):
    """(wire, decoded)"""
    columns = units(n, *grid)
    v = np.zeros(n, np.float32)
    v[index] = value
    headers, entries, decoded = b"", np.zeros(0, np.uint16), np.zeros(n, np.float32)
    for begin, end in columns:
        rows = index[(index >= begin) & (index < end)].astype(np.int64) - begin
        column = v[begin:end]
        means = mean(column, column > 0), mean(column, column < 0)
        headers += np.uint32(entries.size).tobytes() + np.array(means, np.float32).tobytes()
        entries = np.concatenate([entries, (rows << 1 | (column[rows] > 0)).astype(np.uint16)])
        decoded[begin:end] = np.where(column > 0, means[0], np.where(column < 0, means[1], np.float32(0)))
    return np.frombuffer(headers + np.uint32(entries.size).tobytes() + entries.tobytes(), np.uint8), decoded


def encode(index, value, v, grid):
    """(wire, r)"""
    wire = np.zeros(12 * len(units(v.size, *grid)) + 4 + 2 * index.size + 1, np.uint8)[1:]
    r = v.copy()
    assert _kernels.adaptive_encode(index, value, np.array([index.size]), r, wire, table(v.size, *grid)) == wire.size
    return wire, r


def check_message(v, chosen, grid):
    index = np.flatnonzero(chosen & (v != 0)).astype(np.uint32)
    wire, decoded = expected_message(index, v[index], v.size, grid)
    got, r = encode(index, v[index], v, grid)
    assert same_bits(got, wire)
    error = v.copy()
    error[index] -= decoded[index]
    assert same_bits(r, error)
    assert (
        _kernels.adaptive_encode(index, v[index], np.array([index.size]), None, got, table(v.size, *grid)) == got.size
    )
    longer = np.concatenate([got, np.full(5, 255, np.uint8)])
    for message in (got, longer):
        y = np.full(v.size, np.nan, np.float32)
        assert _kernels.adaptive_decode(message, y, table(v.size, *grid)) == got.size
        assert same_bits(y, decoded)
        _kernels.adaptive_decode(message, y, table(v.size, *grid), 0.3)
        assert same_bits(y, decoded * np.float32(0.3))
        y[:] = v
        assert _kernels.adaptive_decode_add(message, y, table(v.size, *grid)) == got.size
        expected = v.copy()
        expected[index] += decoded[index]
        assert same_bits(y, expected)


@every_level
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", [(0, 1, 1), (3, 33, 1), (0, 4096, 1), (100, 1000, 3), (0, 32767, 1), (0, 60000, 2)])
def test_a_message_is_what_the_plain_version_writes(level, kind, grid):
    v = floats(1, min(9001, 300 * grid[1]), kind)
    rng = np.random.default_rng(7)
    with using(level):
        for density in (0, 0.0005, 0.02, 0.5, 1):
            check_message(v, rng.random(v.size) < density, grid)


@every_level
@given(regions(), st.integers(0, 99), st.sampled_from(KINDS), st.floats(0, 1))
@examples(80)
def test_a_message_of_any_region_is_what_the_plain_version_writes(level, region, seed, kind, density):
    n, *grid = region
    with using(level):
        check_message(floats(seed, n, kind), np.random.default_rng(seed).random(n) < density, tuple(grid))


@every_level
def test_the_blocks_of_a_tall_column_are_added_in_order(level):
    v = floats(3, 32767, "wide")
    with using(level):
        check_message(v, np.ones(v.size, bool), (0, 32767, 1))
        check_message(v, np.arange(v.size) % 5000 < 3, (0, 32767, 1))


def test_a_message_of_two_columns_has_these_bytes():
    # Columns of 4 rows: 5, 0, -2, 3 | 0, -4, 0, 0; kept: 5, -2, 3 and -4.
    v = np.array([5, 0.25, -2, 3, 0, -4, 0.5, 0], np.float32)
    index = np.array([0, 2, 3, 5], np.uint32)
    wire, r = encode(index, v[index], v, (0, 4, 1))
    column_0 = "00000000 00008040 000000c0"  # offset 0, mean 4, mean -2
    column_1 = "03000000 00000000 000080c0"  # offset 3, no positive value, mean -4
    entries = "0100 0400 0700 0200"  # rows 0+, 2-, 3+, 1-
    assert wire.tobytes() == bytes.fromhex(column_0 + column_1 + "04000000" + entries)
    assert r.tolist() == [1, 0.25, 0, -1, 0, 0, 0.5, 0]
    y = np.full(8, 9, np.float32)
    assert _kernels.adaptive_decode(wire, y, table(8, 0, 4)) == wire.size
    assert y.tolist() == [4, 0, -2, 4, 0, -4, 0, 0]


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_what_is_decoded(level, threads):
    v = floats(1, 100003)
    chosen = np.abs(v) > 1.5
    with using(level, threads):
        check_message(v, chosen, (17, 4096, 1))
        check_message(v[:40000], chosen[:40000], (5, 31, 1))


@every_level
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_encoder_reports_a_value_that_is_not_finite(level, value):
    for count in (1, 2, 5):
        v = np.arange(1, 6, dtype=np.float32)[:count]
        v[count - 1] = value
        with using(level):
            index = np.arange(count, dtype=np.uint32)
            assert (
                _kernels.adaptive_encode(index, v, np.array([count]), None, np.zeros(99, np.uint8), table(5, 0, 5))
                == -1
            )


def lawful():
    """A message of columns of 4 rows over 8 elements, as its parts."""
    return {"offsets": [0, 2, 3], "means": [1.0, -1.0, 2.0, -2.0], "entries": [0 << 1, 3 << 1 | 1, 2 << 1], "cut": 0}


def message(offsets, means, entries, cut):
    header = b"".join(
        np.uint32(offset).tobytes() + np.array(means[2 * i : 2 * i + 2], np.float32).tobytes()
        for i, offset in enumerate(offsets)
    )
    wire = np.frombuffer(header + np.array(entries, np.uint16).tobytes(), np.uint8)
    return wire[: wire.size - cut]


MALFORMED = [
    {"offsets": [1, 2, 3]},  # does not begin with 0
    {"offsets": [0, 3, 2]},  # falls
    {"offsets": [0, 4, 3]},
    {"offsets": [0, 2, 4]},  # more entries than bytes
    {"offsets": [0, 2, 2**32 - 1]},
    {"offsets": [0, 0, 3]},  # all in column 1, where rows fall
    {"means": [np.nan, -1.0, 2.0, -2.0]},
    {"means": [1.0, -1.0, 2.0, np.inf]},
    {"entries": [0, 4 << 1, 2 << 1]},  # row 4 of 4
    {"entries": [0, 0xFFFF, 2 << 1]},
    {"entries": [3 << 1, 3 << 1 | 1, 2 << 1]},  # a row twice
    {"entries": [3 << 1, 1 << 1, 2 << 1]},  # rows fall
    {"cut": 1},
    {"cut": 6},
    {"cut": 7},
    {"cut": 34},
]


@every_level
def test_the_lawful_message_of_these_tests_decodes(level):
    y = np.full(8, 9, np.float32)
    with using(level):
        assert _kernels.adaptive_decode(message(**lawful()), y, table(8, 0, 4)) == 34
    assert y.tolist() == [-1, 0, 0, 1, 0, 0, -2, 0]


@pytest.mark.parametrize("change", MALFORMED)
@every_level
def test_a_malformed_message_is_refused(level, change):
    wire = message(**(lawful() | change))
    y = np.zeros(8, np.float32)
    with using(level):
        for decode in (_kernels.adaptive_decode, _kernels.adaptive_decode_add):
            with pytest.raises(WireError):
                decode(wire, y, table(8, 0, 4))


@given(st.binary(max_size=80), st.integers(0, 12), st.integers(1, 9))
@examples(300)
def test_any_bytes_are_decoded_alike_or_refused_by_all_levels(data, n, run):
    wire = np.frombuffer(data, np.uint8)
    results = []
    for level in LEVELS:
        guarded = np.full(n + 64, 7, np.float32)
        y = guarded[32 : 32 + n]
        with using(level):
            try:
                used = _kernels.adaptive_decode(wire, y, table(n, 0, run))
            except WireError:
                used = -1
        results.append((used, y.tobytes() if used >= 0 else b""))
        assert (guarded[:32] == 7).all()
        assert (guarded[32 + n :] == 7).all()
    assert all(result == results[0] for result in results)


@given(st.lists(st.tuples(st.integers(0, 33), st.integers(0, 255)), max_size=3))
@examples(300)
def test_a_message_with_changed_bytes_never_writes_elsewhere(changes):
    wire = message(**lawful()).copy()
    for place, byte in changes:
        wire[place] = byte
    for level in LEVELS:
        guarded = np.full(8 + 70000, 7, np.float32)
        with using(level), contextlib.suppress(WireError):
            _kernels.adaptive_decode(wire, guarded[35000:35008], table(8, 0, 4))
        assert (guarded[:35000] == 7).all()
        assert (guarded[35008:] == 7).all()


def test_an_empty_region_is_an_empty_message():
    wire = np.full(4, 9, np.uint8)
    nothing, empty = np.zeros(0, np.float32), table(0, 3, 4)
    assert _kernels.adaptive_encode(np.zeros(0, np.uint32), nothing, np.zeros(1, np.int64), nothing, wire, empty) == 4
    assert wire.tolist() == [0, 0, 0, 0]
    assert _kernels.adaptive_decode(wire, nothing, empty) == 4
    with pytest.raises(WireError):
        _kernels.adaptive_decode(wire[:3], nothing, empty)
    with pytest.raises(WireError):
        _kernels.adaptive_decode(np.array([1, 0, 0, 0, 0, 0], np.uint8), nothing, empty)
    assert select(nothing, None, (3, 4, 1), 64, False)[0] == 0


def test_wrong_arguments_are_refused():
    x, index = np.zeros(8, np.float32), np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="got 32768, expected at most 32767"):
        _kernels.adaptive_decode(np.zeros(16, np.uint8), x, table(8, 0, 65536, 2))
    with pytest.raises(ValueError, match="got 1, expected at least 2"):
        _kernels.adaptive_select_columns(
            x, None, None, index[:1], x[:1], np.zeros(1, np.int64), table(8, 0, 4), 64, False
        )
    with pytest.raises(ValueError, match="pi: got 0"):
        _kernels.adaptive_select_bound(table(8, 0, 4), 0)
    with pytest.raises(ValueError, match="bytes of wire: got 31, expected at least 32"):
        _kernels.adaptive_encode(index, x[:2], np.array([2]), None, np.zeros(31, np.uint8), table(8, 0, 4))

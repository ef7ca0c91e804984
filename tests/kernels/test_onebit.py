"""One bit: the wire and the error as a plain NumPy version makes them; every level the same bytes."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, LEVELS, SIZES, every_level, floats, mean, regions, same_bits, table, units, using

from gqallreduce import _kernels
from gqallreduce.errors import WireError


def expected_message(v, grid):
    """(wire, decoded)"""
    wire, decoded = [], np.zeros(v.size, np.float32)
    for begin, end in units(v.size, *grid):
        column = v[begin:end]
        positive = column >= 0
        means = mean(column, positive), mean(column, ~positive)
        wire.append(np.array(means, np.float32).tobytes() + np.packbits(positive, bitorder="little").tobytes())
        decoded[begin:end] = np.where(positive, *means)
    return np.frombuffer(b"".join(wire), np.uint8), decoded


def encode(x, e, grid, keep=True):
    """(wire, r), starting at odd addresses."""
    wire = np.full(_kernels.onebit_nbytes(table(x.size, *grid)) + 1, 255, np.uint8)[1:]
    r = np.full(x.size + 1, 7, np.float32)[1:] if keep else None
    assert _kernels.onebit_encode(x, e, r, wire, table(x.size, *grid)) == 0
    return wire, r


def check(x, e, grid):
    v = x if e is None else x + e
    wire, decoded = expected_message(v, grid)
    got, r = encode(x, e, grid)
    assert same_bits(got, wire)
    assert same_bits(r, v - decoded)
    assert same_bits(encode(x, e, grid, keep=False)[0], wire)
    y = np.full(x.size, np.nan, np.float32)
    _kernels.onebit_decode(got, y, table(y.size, *grid))
    assert same_bits(y, decoded)
    _kernels.onebit_decode(got, y, table(y.size, *grid), 0.3)
    assert same_bits(y, decoded * np.float32(0.3))
    y[:] = x
    _kernels.onebit_decode_add(got, y, table(y.size, *grid))
    with np.errstate(over="ignore"):
        assert same_bits(y, x + decoded)


@every_level
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_one_column_agrees_with_the_plain_version(level, kind, n):
    with using(level):
        check(floats(n, n, kind), None, (0, max(n, 1), 1))
        check(floats(n, n, kind), floats(n + 1, n, kind), (0, max(n, 1), 1))


@every_level
@pytest.mark.parametrize("run", [1, 5, 31, 32, 33, 64, 1000, 4097])
def test_columns_and_cut_off_columns_agree_with_the_plain_version(level, run):
    with using(level):
        check(floats(1, 9001), floats(2, 9001), (run // 3, run, 1))
        check(floats(1, 9001), None, (5, run, max(1, run // 7)))


@every_level
@given(regions(), st.integers(0, 99), st.sampled_from(KINDS), st.booleans())
@examples(60)
def test_any_region_agrees_with_the_plain_version(level, region, seed, kind, with_error):
    n, *grid = region
    with using(level):
        check(floats(seed, n, kind), floats(seed + 1, n, kind) if with_error else None, tuple(grid))


@pytest.mark.parametrize("threads", [1, 2, 3])
@every_level
def test_threads_do_not_change_a_byte(level, threads):
    x, e = floats(1, 100003), floats(2, 100003)
    for grid in [(17, 4096, 1), (3, 33, 1), (0, 200000, 1), (9, 1000, 3)]:
        with using("scalar"):
            decoded = np.zeros_like(x)
            expected = (*encode(x, e, grid), decoded)
            _kernels.onebit_decode(expected[0], decoded, table(decoded.size, *grid))
        with using(level, threads):
            wire, r = encode(x, e, grid)
            y, z = np.zeros_like(x), x.copy()
            _kernels.onebit_decode(wire, y, table(y.size, *grid), 0.5)
            _kernels.onebit_decode_add(wire, z, table(z.size, *grid))
        assert same_bits(wire, expected[0])
        assert same_bits(r, expected[1])
        assert same_bits(y * 2, expected[2])
        assert same_bits(z, x + expected[2])


@every_level
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(level, value):
    for n, run in [(1, 1), (40, 40), (5000, 4097), (9000, 9000)]:
        for place in {0, n // 2, n - 1}:
            x = floats(1, n)
            x[place] = value
            wire = np.zeros(_kernels.onebit_nbytes(table(n, 0, run, 1)), np.uint8)
            with using(level):
                assert _kernels.onebit_encode(x, None, None, wire, table(x.size, 0, run, 1)) == 1
                assert _kernels.onebit_encode(x, x, x.copy(), wire, table(x.size, 0, run, 1)) == 1


@every_level
def test_a_sum_beyond_float32_is_refused_but_a_column_of_huge_values_is_not(level):
    x = np.full(100, 3e38, np.float32)
    wire = np.zeros(_kernels.onebit_nbytes(table(100, 0, 100, 1)), np.uint8)
    with using(level):
        assert _kernels.onebit_encode(x, x, None, wire, table(x.size, 0, 100, 1)) == 1
        assert _kernels.onebit_encode(x, None, None, wire, table(x.size, 0, 100, 1)) == 0


def test_a_column_of_three_has_these_bytes():
    x = np.array([1.0, -3.0, 2.0], np.float32)
    wire, r = encode(x, None, (0, 3, 1))
    assert wire.tobytes() == bytes.fromhex("0000c03f 000040c0 05")
    assert r.tolist() == [-0.5, 0.0, 0.5]


def test_negative_zero_counts_as_positive_and_an_empty_side_has_mean_zero():
    wire, _ = encode(np.full(9, -0.0, np.float32), None, (0, 9, 1))
    assert wire.tobytes() == bytes.fromhex("00000000 00000000 ff01")


@every_level
def test_any_bytes_decode_alike_or_are_refused(level):
    rng = np.random.default_rng(5)
    for n, grid in [(0, (0, 4, 1)), (3, (0, 9, 1)), (100, (7, 33, 2)), (70, (0, 33, 1))]:
        wire = rng.integers(0, 256, _kernels.onebit_nbytes(table(n, *grid))).astype(np.uint8)
        y = np.zeros(n, np.float32)
        with using(level):
            try:
                _kernels.onebit_decode(wire, y, table(y.size, *grid))
            except WireError:
                continue
        z = np.zeros(n, np.float32)
        with using("scalar"):
            _kernels.onebit_decode(wire, z, table(z.size, *grid))
        assert same_bits(y, z)


def test_malformed_messages_are_refused():
    y = np.zeros(33, np.float32)
    for level in LEVELS:
        with using(level):
            for size in (0, 12, 14):
                with pytest.raises(WireError, match=f"got {size} bytes, expected 13"):
                    _kernels.onebit_decode(np.zeros(size, np.uint8), y, table(33, 0, 33))
            for place in (0, 4):
                for bad in (np.nan, np.inf):
                    wire = np.zeros(13, np.uint8)
                    wire[place : place + 4] = np.array([bad], np.float32).view(np.uint8)
                    with pytest.raises(WireError, match="not finite"):
                        _kernels.onebit_decode(wire, y, table(33, 0, 33))
                    with pytest.raises(WireError, match="not finite"):
                        _kernels.onebit_decode_add(wire, y, table(33, 0, 33))


def test_wrong_arguments_are_refused():
    x, wire = np.zeros(33, np.float32), np.zeros(13, np.uint8)
    with pytest.raises(ValueError, match="bytes of wire: got 12, expected 13"):
        _kernels.onebit_encode(x, None, None, wire[:12], table(x.size, 0, 33, 1))
    with pytest.raises(ValueError, match="elements of r: got 32, expected 33"):
        _kernels.onebit_encode(x, None, x[:32], wire, table(x.size, 0, 33, 1))
    with pytest.raises(ValueError, match="cannot have 0 parts"):
        _kernels.onebit_nbytes(table(33, 0, 33, 0))
    with pytest.raises(ValueError, match="cannot have 34 parts"):
        _kernels.onebit_nbytes(table(33, 0, 33, 34))


@given(regions(most=2000))
@examples(200)
def test_the_size_is_that_of_the_units(region):
    n, *grid = region
    expected = sum(8 + (end - begin + 7) // 8 for begin, end in units(n, *grid))
    assert _kernels.onebit_nbytes(table(n, *grid)) == expected


@every_level
@pytest.mark.parametrize("grid", [(0, 17, 2), (3, 17, 2), (5, 25, 3), (1000, 33, 4), (11, 257, 8)])
def test_the_taller_columns_of_a_cut_run_take_a_byte_more(level, grid):
    for n in (1, 50, 2000):
        expected = sum(8 + (end - begin + 7) // 8 for begin, end in units(n, *grid))
        assert _kernels.onebit_nbytes(table(n, *grid)) == expected
        with using(level):
            check(floats(1, n), None, grid)

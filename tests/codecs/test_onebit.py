"""Particulars of one-bit: two exact means per column, one bit per value."""

import itertools

import numpy as np
import pytest
from contract import KINDS, PLACES, cuts, decode, encode, formed, region, vector
from plain import sum_rule

from gqallreduce import Scheme
from gqallreduce.coding.layout import Grid, Region, columns

ONEBIT = Scheme.parse("onebit(column=1)").codec
VARIANTS = ["onebit(column=1)"]


def oracle(v, ends):
    """(wire, decoded) by the definition."""
    wire, decoded = b"", np.zeros_like(v)
    for begin, end in itertools.pairwise(ends):
        column = v[begin:end]
        up = column >= 0
        means = [mean(column, up), mean(column, ~up)]
        wire += np.array(means, np.float32).tobytes() + np.packbits(up, bitorder="little").tobytes()
        decoded[begin:end] = np.where(up, *means)
    return wire, decoded


def mean(column, where) -> np.float32:
    total = sum_rule(np.where(where, column, np.float32(0)).astype(np.float64))
    return np.float32(total / where.sum() if where.any() else 0)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_message_is_that_of_the_definition(place, kind):
    found = region(ONEBIT, place)
    x, residual = vector(ONEBIT, 1, found.size, kind), vector(ONEBIT, 2, found.size, "ties")
    for given in (None, residual):
        wire, _ = encode(ONEBIT, x, given, found)
        expected, decoded = oracle(formed(ONEBIT, x, given), cuts(found))
        assert wire.tobytes() == expected
        np.testing.assert_array_equal(decode(ONEBIT, wire, found), decoded)


@pytest.mark.parametrize(("start", "size", "run"), [(0, 1, 32), (0, 64, 32), (5, 64, 32), (0, 8193, 4096), (31, 2, 32)])
def test_bytes_are_a_bit_per_value_rounded_up_per_column_and_two_means(start, size, run):
    found = Region(start, size, Grid(run), 10**6)
    ends = cuts(found)
    expected = sum(8 + -(-(end - begin) // 8) for begin, end in itertools.pairwise(ends))
    assert ONEBIT.nbytes_bound([found]) == expected


def test_no_other_pair_of_values_has_a_smaller_error():
    found = region(ONEBIT, (Grid(100), 0, 300, 300))
    v = vector(ONEBIT, 3, 300)
    decoded = decode(ONEBIT, encode(ONEBIT, v, None, found)[0], found).astype(np.float64)
    for begin in (0, 100, 200):
        column = v[begin : begin + 100].astype(np.float64)
        for region_of_sign in (column >= 0, column < 0):
            values, mean_sent = column[region_of_sign], decoded[begin : begin + 100][region_of_sign]
            best = ((values - mean_sent) ** 2).sum()
            for nudge in (1e-3, -1e-3, 0.1, -0.1):
                assert ((values - mean_sent - nudge) ** 2).sum() > best


@pytest.mark.parametrize("magnitude", [1.0, 0.3, 1e-40, 3.3e38])
def test_two_values_are_exact(magnitude):
    """Rademacher data: LBANN's own exactness test."""
    found = region(ONEBIT, (Grid(33), 5, 700, 1000))
    v = np.where(np.random.default_rng(1).random(700) < 0.5, magnitude, -magnitude).astype(np.float32)
    wire, new_residual = encode(ONEBIT, v, None, found)
    np.testing.assert_array_equal(decode(ONEBIT, wire, found), v)
    assert not new_residual.any()


def test_zero_of_either_sign_is_positive():
    found = region(ONEBIT, (Grid(33), 0, 4, 4))
    wire, _ = encode(ONEBIT, np.array([0.0, -0.0, -3, 6], np.float32), None, found)
    np.testing.assert_array_equal(decode(ONEBIT, wire, found), [2, 2, -3, 2])
    assert wire[8] == 0b1011


def test_a_missing_sign_has_mean_zero_and_tail_bits_are_zero():
    found = region(ONEBIT, (Grid(33), 0, 9, 9))
    wire, _ = encode(ONEBIT, np.full(9, 5, np.float32), None, found)
    assert wire.tobytes() == np.array([5, 0], np.float32).tobytes() + b"\xff\x01"


def test_the_error_on_normal_data_is_the_known_one():
    found = region(ONEBIT, (Grid(4096), 0, 4096 * 8, 4096 * 8))
    _, new_residual = encode(ONEBIT, vector(ONEBIT, 4, found.size), None, found)
    assert abs((new_residual**2).mean() - (1 - 2 / np.pi)) < 0.01


def test_one_bit_has_no_options():
    with pytest.raises(ValueError, match="no option"):
        Scheme.parse("onebit(bits=1)")


@pytest.mark.parametrize("column", [0, -1, 1.5, True, 2**14 + 1])
@pytest.mark.parametrize("name", ["onebit", "adaptive"])
def test_columns_have_a_least_length_in_a_range(name, column):
    with pytest.raises(ValueError, match=f"{name}: column="):
        Scheme.parse(f"{name}(column={column})")


@pytest.mark.parametrize("name", ["onebit", "adaptive(pi=64)"])
def test_short_columns_are_joined_and_long_ones_stay(name):
    codec = Scheme.parse(name).codec
    assert codec.column == {"onebit": 512, "adaptive": 1024}[codec.name]
    narrow, tall = columns((784, 128), "C"), columns((784, 4000), "C")
    assert codec.grid(narrow) == Grid(codec.column)  # 4 or 8 columns of 128
    assert codec.grid(tall) == tall
    assert codec.make({"column": 1}).grid(narrow) == narrow == Grid(128)
    assert codec.make({"column": 129}).grid(narrow) == Grid(256)
    size = 784 * 128
    joined, single = (
        each.nbytes_bound([Region(0, size, each.grid(narrow), size)]) for each in (codec, codec.make({"column": 1}))
    )
    per_column = 8 if codec.name == "onebit" else 12
    assert single - joined == per_column * (784 - 784 * 128 // codec.column)

"""Particulars of natural: powers of two beside the value, the exponent that a bucket shares, the bound of 1/8."""

import levelled
import numpy as np
import pytest
from contract import decode, encode, region, scatters, vector
from levelled import spread as spread
from levelled import variance as variance

from gqallreduce import Scheme
from gqallreduce.coding.layout import Grid

VARIANTS = [
    "natural(bits=4, bucket=33)",
    "natural(bits=8, bucket=100, rounding=nearest)",
    "natural(bits=5, bucket=1000, coding=rans, rounding=nearest, rotate=True)",
]

WHOLE = []


def natural(**options):
    return Scheme.parse("natural").codec.make(options)


@pytest.mark.parametrize("bits", range(2, 9))
def test_outcomes_are_the_powers_of_two_beside_the_value(bits):
    codec = natural(bits=bits, bucket=37)
    found = region(codec, (Grid(33), 5, 400, 500))
    v = vector(codec, 2, 400)
    got = decode(codec, encode(codec, v, None, found)[0], found)
    mantissa, _ = np.frexp(got[got != 0])
    assert (np.abs(mantissa) == 0.5).all()
    below, above = levelled.neighbours(codec, v, found)
    assert ((got == below) | (got == above)).all()


def test_eight_bits_hold_every_power_of_two_within_2_to_the_126_of_the_largest():
    codec = natural()
    found = region(codec, (Grid(33), 0, 127, 127))
    for top in (0, 60, 125):
        v = np.ldexp(np.float32(1), np.arange(top, top - 127, -1))
        np.testing.assert_array_equal(decode(codec, encode(codec, v, None, found)[0], found), v)
        np.testing.assert_array_equal(decode(codec, encode(codec, -v, None, found)[0], found), -v)


def test_the_variance_is_at_most_an_eighth_of_the_square():
    codec, size = natural(), 3000
    found = region(codec, (Grid(33), 0, size, size))
    for kind in ("normal", "ties", "constant", "one hot"):
        v = vector(codec, 3, size, kind)
        squares = v.astype(np.float64) ** 2
        assert (variance(codec, v, found) <= squares / 8 * (1 + 1e-9)).all(), kind
    worst = np.full(size, 4 / 3, np.float32)
    scatters(codec, worst, found, 300, (worst.astype(np.float64) ** 2).sum() / 8)


def test_to_the_nearest_three_halves_go_up():
    codec = natural(bits=8, bucket=8, rounding="nearest")
    found = region(codec, (Grid(33), 0, 8, 8))
    v = np.float32([1.5, 1.4999999, 3, -0.75, -0.7, 2.9, 0, 1e-20])
    got = decode(codec, encode(codec, v, None, found)[0], found)
    np.testing.assert_array_equal(got, np.float32([2, 1, 4, -1, -0.5, 2, 0, 2.0**-67]))


@pytest.mark.parametrize("options", ["bits=1", "bits=9", "bucket=0", "rounding=up", "norm=max", "zero_level=True"])
def test_options_out_of_range_are_refused_where_they_are_written(options):
    with pytest.raises(ValueError, match="natural"):
        Scheme.parse(f"natural({options})")


def test_these_are_the_bytes_of_two_buckets():
    codec = natural(bits=8, bucket=3)
    found = region(codec, (Grid(33), 0, 5, 5))
    v = np.array([8, 0, -4, 1, -1 / 64], np.float32)  # exponents 3 and 0 in the scales; 127 is the largest power
    wire, _ = encode(codec, v, None, found)
    assert wire.tobytes() == bytes([130, 127, 0, 128 + 126, 127, 127, 128 + 121])

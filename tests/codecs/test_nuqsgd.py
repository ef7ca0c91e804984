"""Particulars of codecs whose levels are powers of two: nuqsgd and natural_dithering."""

import levelled
import numpy as np
import pytest
from contract import decode, encode, region, scatters, vector
from levelled import spread as spread
from levelled import variance as variance

from gqallreduce import Scheme, _kernels
from gqallreduce.coding.layout import Grid

VARIANTS = [
    "nuqsgd(bits=2, zero_level=False, bucket=33)",
    "nuqsgd(bits=3, norm=max, bucket=100)",
    "nuqsgd(bits=8, norm=max, bucket=64)",
    "nuqsgd(bits=5, zero_level=False, rounding=nearest)",
]
WHOLE = VARIANTS[:2]
BOTH = pytest.mark.parametrize("name", ["nuqsgd", "natural_dithering"])
WIDTHS = [(bits, zero) for bits in range(1, 9) for zero in (False, True) if zero < bits < 8 + zero]
every_width = pytest.mark.parametrize(("bits", "zero"), WIDTHS)


def made(name="nuqsgd", **options):
    return Scheme.parse(name).codec.make(options)


@BOTH
@every_width
def test_the_levels_are_powers_of_two(name, bits, zero):
    codec = made(name, bits=bits, zero_level=zero)
    expected = levelled.levels(codec)
    assert expected.size == 2**bits - zero
    np.testing.assert_array_equal(codec.levels.values[: expected.size].astype(np.float64), expected)
    assert codec.levels.count == expected.size


def test_these_are_the_published_levels():
    """Three bits: the code of NUQSGD's authors has no zero; natural dithering with s = 3 has."""
    with_zero, without = made(bits=3).levels, made(bits=3, zero_level=False).levels
    np.testing.assert_array_equal(with_zero.values[: with_zero.count], [-1, -1 / 2, -1 / 4, 0, 1 / 4, 1 / 2, 1])
    np.testing.assert_array_equal(without.values, [-1, -1 / 2, -1 / 4, -1 / 8, 1 / 8, 1 / 4, 1 / 2, 1])


def test_they_differ_in_the_norm_alone():
    v = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    one, two = Scheme.parse("nuqsgd(norm=max)"), Scheme.parse("natural_dithering")
    three, four = Scheme.parse("nuqsgd"), Scheme.parse("natural_dithering(norm=l2)")
    assert one.encode(v, step=3)[32:] == two.encode(v, step=3)[32:]  # behind the header
    assert three.encode(v, step=3)[32:] == four.encode(v, step=3)[32:]


@every_width
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_every_outcome_is_one_of_the_two_levels_beside_the_value(bits, zero, norm):
    codec = made(bits=bits, bucket=37, norm=norm, zero_level=zero)
    found = region(codec, (Grid(33), 5, 400, 500))
    v = vector(codec, 2, 400)
    got = decode(codec, encode(codec, v, None, found)[0], found)
    below, above = levelled.neighbours(codec, v, found)
    nearest = np.where(np.abs(got - below) <= np.abs(got - above), below, above)
    np.testing.assert_allclose(got, nearest, rtol=1e-6, atol=0)


@BOTH
@every_width
def test_what_lies_on_a_level_is_exact(name, bits, zero):
    codec = made(name, bits=bits, bucket=256, norm="max", zero_level=zero)
    found = region(codec, (Grid(33), 0, 256, 256))
    known = levelled.levels(codec).astype(np.float32)
    v = np.resize(known, 256) * np.float32(6.1)
    v[0] = 6.1
    np.testing.assert_array_equal(decode(codec, encode(codec, v, None, found)[0], found), v)


@pytest.mark.parametrize("bits", [2, 3, 4, 6])
@pytest.mark.parametrize("size", [3, 16, 300, 3000])
def test_the_variance_stays_below_the_stated_bounds(bits, size):
    """(rho - 1)^2 / (4 rho) = 1/8 between powers of two, and what values below the smallest level add."""
    smallest = 2.0 ** (2 - 2 ** (bits - 1))
    first = 1 / 8 + size * smallest**2 / 4 if size < 4 / smallest**2 else smallest * np.sqrt(size) - 7 / 8
    q = np.sqrt(size) * smallest
    for norm, bound in (("l2", first), ("max", 1 / 8 + q * min(1, q)), ("l2", 1 / 8 + q * min(1, q))):
        codec = made(bits=bits, bucket=size, norm=norm)
        found = region(codec, (Grid(33), 0, size, size))
        for kind in ("normal", "constant", "one hot", "ties", "wide"):
            v = vector(codec, 3, size, kind)
            closed = variance(codec, v, found).sum()
            assert closed <= bound * (v.astype(np.float64) ** 2).sum() * (1 + 1e-6), (norm, kind)
    codec = made(bits=bits, bucket=size)
    v = vector(codec, 4, size)
    scatters(codec, v, found, 300, variance(codec, v, found).sum())


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        "bits=0", "bits=9", "bits=4.0", "bits=True", "bits=1", "bits=8, zero_level=False", "bucket=0",
        "bucket=4294967296", "norm=l1", "norm=2", "zero_level=1", "level=3", "rounding=up", "rounding=True",
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_where_they_are_written(name, options):
    with pytest.raises(ValueError, match=name):
        Scheme.parse(f"{name}({options})")


def test_these_are_the_bytes_of_two_buckets():
    codec = made(bits=4, bucket=3, norm="max")
    found = region(codec, (Grid(33), 0, 5, 5))
    v = np.array([8, 0, -4, 1, -1 / 64], np.float32)  # exact levels: codes 14 7 1 | 14 6
    wire, _ = encode(codec, v, None, found, _kernels.Stream(0, 0, 0, 0))
    assert wire.tobytes() == np.float32(8).tobytes() + b"\x7e\x01" + np.float32(1).tobytes() + b"\x6e"

"""Particulars of qsgd: its levels, its variance, what is exact, what is refused."""

import dataclasses
import itertools

import levelled
import numpy as np
import pytest
from contract import cuts, decode, encode, region, sampled, scatters, vector

from gqallreduce import Scheme, _kernels
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Grid, Region

VARIANTS = [
    "qsgd(bits=1, zero_level=False, bucket=7)",
    "qsgd(bits=2, bucket=33)",
    "qsgd(bits=3, bucket=2)",
    "qsgd(bits=4, norm=l2, bucket=64)",
    "qsgd(bits=5, zero_level=False, norm=l2, bucket=100)",
    "qsgd(bits=6, bucket=4097)",
    "qsgd(bits=7, zero_level=False)",
    "qsgd(bits=8, bucket=48)",
    "qsgd(bits=4, bucket=32, rounding=nearest)",
    "qsgd(bits=3, zero_level=False, rounding=nearest)",
    "qsgd(bits=3, bucket=100, coding=huffman)",
    "qsgd(bits=4, bucket=1000, norm=l2, coding=elias)",
    "qsgd(bits=4, bucket=60, rotate=True)",
]
WHOLE = [VARIANTS[0], VARIANTS[8], VARIANTS[-3], VARIANTS[-1]]
WIDTHS = [(bits, zero) for bits in range(1, 9) for zero in (False, True) if bits > 1 or not zero]
every_width = pytest.mark.parametrize(("bits", "zero"), WIDTHS)


def steps(codec) -> int:
    """Distances of neighbouring levels between -1 and 1."""
    return 2 * (2 ** (codec.bits - 1) - 1) if codec.zero_level else 2**codec.bits - 1


def norms(codec, v, found) -> np.ndarray:
    """Per element, the norm of its bucket, in float64."""
    found_norms, v = np.empty(v.size), v.astype(np.float64)
    ends = cuts(found)
    for begin, end in itertools.pairwise(ends):
        part = v[begin:end]
        found_norms[begin:end] = np.sqrt((part**2).sum()) if codec.norm == "l2" else np.abs(part).max(initial=0)
    return found_norms


def variance(codec, v, found) -> np.ndarray:
    """u^2 f (1 - f), as the docstring says; of rotated values, on average over rotations."""
    if codec.rotate:
        plain = dataclasses.replace(codec, rotate=False)
        return levelled.over_rotations(lambda turned: variance(plain, turned, found), v, found)
    u = spread(codec, v, found)
    place = np.divide(v + norms(codec, v, found), u, out=np.zeros(v.size), where=u > 0)
    f = place - np.floor(place)
    return u**2 * f * (1 - f)


def spread(codec, v, found) -> np.ndarray:
    """The distance of neighbouring levels; times sqrt(d) in a bucket of d that is rotated, with at most its norm."""
    if codec.rotate:
        lengths = norms(dataclasses.replace(codec, norm="l2"), v, found)
        return lengths * 2 / steps(codec) * np.sqrt(levelled.heights(found))
    return norms(codec, v, found) * 2 / steps(codec)


def qsgd(**options):
    return Scheme.parse("qsgd").codec.make(options)


@every_width
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_every_outcome_is_one_of_the_two_levels_beside_the_value(bits, zero, norm):
    codec = qsgd(bits=bits, bucket=37, norm=norm, zero_level=zero)
    found = region(codec, (Grid(33), 5, 400, 500))
    v = vector(codec, 2, 400)
    u, low = spread(codec, v, found), norms(codec, v, found)
    got = decode(codec, encode(codec, v, None, found)[0], found)
    place = (got + low) / u
    np.testing.assert_allclose(place, np.round(place), atol=steps(codec) * 1e-6)
    assert (np.abs(got - v) <= u * (1 + 1e-5)).all()


@every_width
@pytest.mark.parametrize("bucket", [1, 3, 512, 1000])
def test_bytes_are_bits_per_value_rounded_up_per_bucket_and_a_norm(bits, zero, bucket):
    codec = qsgd(bits=bits, bucket=bucket, zero_level=zero)
    for start, size in [(0, 1), (0, 3 * bucket), (1, 2 * bucket), (2 * bucket - 1, 2)]:
        found = Region(start, size, codec.grid(Grid(33)), 10**6)
        ends = cuts(found)
        expected = sum(4 + -(-(end - begin) * bits // 8) for begin, end in itertools.pairwise(ends))
        assert codec.nbytes_bound([found]) == expected


@every_width
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_a_bucket_of_one_value_is_exact(bits, zero, norm):
    codec = qsgd(bits=bits, bucket=1, norm=norm, zero_level=zero)
    found = region(codec, (Grid(33), 3, 200, 300))
    for kind in ("normal", "huge", "wide", "denormal"):
        v = vector(codec, 1, 200, kind)
        got = decode(codec, encode(codec, v, None, found, feedback=False)[0], found)
        if norm == "max" or kind in ("normal", "huge"):
            np.testing.assert_array_equal(got, v)


@every_width
def test_a_norm_above_2_to_126_is_refused_where_its_error_must_be_kept(bits, zero):
    codec = qsgd(bits=bits, bucket=50, zero_level=zero)
    found = region(codec, (Grid(33), 0, 50, 50))
    v = np.linspace(-1, 1, 50).astype(np.float32)
    for norm, refused in ((2.0**126, False), (2.0**126 * 1.001, True), (3.3e38, True)):
        assert (encode(codec, v * np.float32(norm), None, found)[0] is NOT_FINITE) == refused
        assert encode(codec, v * np.float32(norm), None, found, feedback=False)[0] is not NOT_FINITE


@every_width
def test_the_largest_magnitudes_are_exact(bits, zero):
    codec = qsgd(bits=bits, bucket=50, zero_level=zero)
    found = region(codec, (Grid(33), 0, 500, 500))
    v = vector(codec, 1, 500)
    v[::7] = 6.1
    v[3::7] = -6.1
    got = decode(codec, encode(codec, v, None, found)[0], found)
    np.testing.assert_array_equal(got[::7], v[::7])
    np.testing.assert_array_equal(got[3::7], v[3::7])


@every_width
def test_a_norm_reaches_the_last_level_whatever_is_drawn(bits, zero):
    """Where steps / norm is rounded down, norm * (steps / norm) is an ulp short of the last level: one draw in 2^16."""
    codec, size = qsgd(bits=bits, zero_level=zero), 1 << 20
    found, s = region(codec, (Grid(4096), 0, size, size)), np.float32(2 ** (bits - 1) - 1 if zero else steps(codec) / 2)
    norms = np.random.default_rng(bits).uniform(1, 2, 1000).astype(np.float32)
    short = norms[(s / norms) * norms < s]
    for norm in [*short[:2], norms[0]]:
        v = np.full(size, norm, np.float32)
        np.testing.assert_array_equal(decode(codec, encode(codec, v, None, found)[0], found), v)


@every_width
def test_zeros_are_exact_where_there_is_a_level_for_them(bits, zero):
    codec = qsgd(bits=bits, bucket=50, zero_level=zero)
    found = region(codec, (Grid(33), 0, 500, 500))
    v = vector(codec, 1, 500)
    v[::2] = 0
    got = decode(codec, encode(codec, v, None, found)[0], found)
    assert zero == (not got[::2].any())
    silent, _ = encode(codec, np.zeros(500, np.float32), None, found)
    assert not decode(codec, silent, found).any()


@every_width
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_to_the_nearest_no_level_is_nearer_than_the_one_that_is_sent(bits, zero, norm):
    codec = qsgd(bits=bits, bucket=37, norm=norm, zero_level=zero, rounding="nearest")
    found = region(codec, (Grid(33), 5, 400, 500))
    for kind in ("normal", "ties", "constant", "one hot"):
        v = vector(codec, 2, 400, kind)
        got = decode(codec, encode(codec, v, None, found)[0], found)
        assert (np.abs(got - v) <= spread(codec, v, found) / 2 * (1 + 1e-5)).all(), kind
        opposite = decode(codec, encode(codec, -v, None, found)[0], found)
        np.testing.assert_array_equal(opposite, -got)


def test_to_the_nearest_ties_go_to_the_even_multiple():
    codec = qsgd(bits=4, bucket=8, rounding="nearest")
    found = region(codec, (Grid(33), 0, 8, 8))
    v = np.array([7, 0.5, 1.5, 2.5, -0.5, -1.5, 6.5, -6.5], np.float32)
    got = decode(codec, encode(codec, v, None, found)[0], found)
    np.testing.assert_array_equal(got, np.float32([7, 0, 2, 2, 0, -2, 6, -6]) * np.float32(1 / 7) * 7)


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [16, 100, 900])
def test_l2_variance_stays_below_the_published_bound(bits, size):
    """E|Q(v) - v|^2 <= min(d/s^2, sqrt(d)/s) |v|^2 (QSGD, lemma 3.1), and equals the closed form."""
    codec = qsgd(bits=bits, bucket=size, norm="l2")
    found = region(codec, (Grid(33), 0, size, size))
    s, trials = 2 ** (bits - 1) - 1, 400
    for kind in ("normal", "constant", "one hot", "ties"):
        v = vector(codec, 3, size, kind)
        closed = variance(codec, v, found).sum()
        bound = min(size / s**2, np.sqrt(size) / s) * (v.astype(np.float64) ** 2).sum()
        assert closed <= bound * (1 + 1e-6)
        scatters(codec, v, found, trials, closed)


def test_roundings_of_neighbours_are_independent():
    codec = qsgd(bits=2, bucket=64)
    found = region(codec, (Grid(33), 0, 64, 64))
    v = np.full(64, 0.5, np.float32)
    v[0] = 1
    up = sampled(codec, v, found, 2000)[:, 1:] - 0.5
    together = (up.T @ up) / len(up) / 0.25
    np.fill_diagonal(together, 0)
    assert np.abs(together).max() < 7 / np.sqrt(len(up))


@pytest.mark.parametrize(
    "options",
    [
        "bits=0", "bits=9", "bits=4.0", "bits=True", "bits='4'", "bits=1", "bucket=0", "bucket=-1", "bucket=2**3",
        "bucket=4294967296", "norm=l1", "norm=2", "zero_level=1", "zero_level=0", "zero_level=maybe", "level=3",
        "bits=None", "rounding=away", "rounding=False",
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_where_they_are_written(options):
    with pytest.raises(ValueError, match="qsgd"):
        Scheme.parse(f"qsgd({options})")


def test_a_code_above_the_last_level_reads_as_the_last():
    codec = qsgd(bits=4, bucket=8)
    found = region(codec, (Grid(33), 0, 2, 2))
    y = np.zeros(2, np.float32)
    codec.decode(np.frombuffer(np.float32(3).tobytes() + b"\xef", np.uint8), y, found)
    np.testing.assert_array_equal(y, [3, 3])


def test_these_are_the_bytes_of_two_buckets():
    codec = qsgd(bits=4, bucket=3)
    found = region(codec, (Grid(33), 0, 5, 5))
    v = np.array([7, 0, -7, 1, -1], np.float32)  # exact levels: codes 14 7 0 | 14 0
    wire, _ = encode(codec, v, None, found, _kernels.Stream(0, 0, 0, 0))
    assert wire.tobytes() == np.float32(7).tobytes() + b"\x7e\x00" + np.float32(1).tobytes() + b"\x0e"

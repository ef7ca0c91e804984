"""Particulars of fp8: numbers and bits of the two formats, the scale, errors."""

import levelled
import numpy as np
import pytest
from contract import decode, encode, region, vector
from levelled import spread as spread
from levelled import variance as variance

from gqallreduce import Scheme
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Grid

VARIANTS = ["fp8(format=e5m2, bucket=1000)", "fp8(bucket=100, rounding=stochastic)"]
WHOLE = VARIANTS[1:]
FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
every_format = pytest.mark.parametrize("name", FORMATS)
every_rounding = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


def fp8(**options):
    return Scheme.parse("fp8").codec.make(options)


@every_format
@every_rounding
def test_a_code_is_the_bits_of_the_format(name, rounding):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, FORMATS[name])).astype(np.float32)
    values = fp8(format=name, rounding=rounding).levels.values
    known = np.isfinite(expected)
    np.testing.assert_array_equal(values[known], expected[known])
    largest = np.float32(levelled.FORMATS[f"fp8_{name}"][2])
    np.testing.assert_array_equal(np.abs(values[~known]), largest)
    np.testing.assert_array_equal(np.signbit(values), np.arange(256) >= 128)


@every_format
def test_to_the_nearest_as_the_format_rounds(name):
    """A scale of 1, from a largest magnitude that is the format's: then codes are ml_dtypes' casts, bit by bit."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codec, largest = fp8(format=name, bucket=5000), levelled.FORMATS[f"fp8_{name}"][2]
    known = np.array(levelled.of_format(f"fp8_{name}"))
    middles = (known[1:] + known[:-1]) / 2
    rng = np.random.default_rng(3)
    v = np.concatenate([known, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9), rng.uniform(0, 500, 999)])
    v = (np.minimum(v, largest) * rng.choice([-1, 1], v.size)).astype(np.float32)
    v[:2] = largest, -0.0
    found = region(codec, (Grid(33), 0, v.size, v.size))
    wire, _ = encode(codec, v, None, found)
    assert wire[:4].tobytes() == np.float32(1).tobytes()
    np.testing.assert_array_equal(wire[4:], v.astype(getattr(ml_dtypes, FORMATS[name])).view(np.uint8))


@every_format
@every_rounding
def test_the_error_is_at_most_as_stated(name, rounding):
    codec = fp8(format=name, rounding=rounding, bucket=50)
    found = region(codec, (Grid(33), 5, 900, 1000))
    part = (2.0**-4 if name == "e4m3" else 2.0**-3) * (2 if rounding == "stochastic" else 1)
    smallest = 2.0**-9 if name == "e4m3" else 2.0**-16
    for kind in ("normal", "ties", "constant", "wide", "one hot"):
        v = vector(codec, 7, 900, kind)
        wire, _ = encode(codec, v, None, found, feedback=False)
        allowed = np.maximum(part * np.abs(v), levelled.scales(codec, v, found) * smallest * (2 * part / part) / 2)
        if rounding == "stochastic":
            allowed = np.maximum(allowed, levelled.scales(codec, v, found) * smallest)
        assert (np.abs(decode(codec, wire, found) - v) <= allowed * (1 + 1e-5)).all(), kind


@every_format
@every_rounding
def test_zeros_are_exact_and_the_largest_magnitudes_nearly(name, rounding):
    codec = fp8(format=name, rounding=rounding, bucket=50)
    found = region(codec, (Grid(33), 0, 500, 500))
    v = vector(codec, 1, 500)
    v[::7], v[3::7], v[5::7] = 6.1, -6.1, 0
    got = decode(codec, encode(codec, v, None, found)[0], found)
    np.testing.assert_allclose(got[::7], 6.1, rtol=2.0**-22)
    np.testing.assert_allclose(got[3::7], -6.1, rtol=2.0**-22)
    assert not got[5::7].any()
    assert not decode(codec, encode(codec, np.zeros(500, np.float32), None, found)[0], found).any()


@every_format
def test_a_value_that_would_decode_to_an_infinity_is_refused(name):
    codec = fp8(format=name, bucket=8)
    found = region(codec, (Grid(33), 0, 8, 8))
    for value in np.nextafter(np.float32(np.inf), np.float32(0), dtype=np.float32) * np.float32([1, 1 - 2e-7, 0.99]):
        wire, _ = encode(codec, np.full(8, value, np.float32), None, found, feedback=False)
        assert wire is NOT_FINITE or np.isfinite(decode(codec, wire, found)).all()


@pytest.mark.parametrize("options", ["format=e3m4", "format=fp8", "bucket=0", "rounding=up", "bits=8", "block=32"])
def test_options_out_of_range_are_refused_where_they_are_written(options):
    with pytest.raises(ValueError, match="fp8"):
        Scheme.parse(f"fp8({options})")


def test_these_are_the_bytes_of_two_buckets():
    codec = fp8(bucket=3)
    found = region(codec, (Grid(33), 0, 5, 5))
    v = np.array([448, -1, 0, 896, -2], np.float32)  # scales 1 and 2; -1 is 1 | 0111 | 000
    wire, _ = encode(codec, v, None, found)
    assert wire.tobytes() == np.float32(1).tobytes() + b"\x7e\xb8\x00" + np.float32(2).tobytes() + b"\x7e\xb8"

"""Particulars of mx: elements and scales as OCP MX 1.0 has them, what is cut off, errors."""

import levelled
import numpy as np
import pytest
from contract import decode, encode, region, vector
from levelled import spread as spread
from levelled import variance as variance

from gqallreduce import Scheme, WireError, _kernels
from gqallreduce.coding.layout import Grid

VARIANTS = [
    "mx(format=fp6_e3m2, block=16)",
    "mx(format=fp8_e5m2, rounding=stochastic)",
    "mx(format=int8, block=33)",
    "mx(format=fp4, block=100, rounding=stochastic)",
    "mx(format=int8, coding=elias)",
]
WHOLE = VARIANTS[1:3]
# names of ml_dtypes, bits of a code
FORMATS = {
    "fp4": ("float4_e2m1fn", 4),
    "fp6_e3m2": ("float6_e3m2fn", 6),
    "fp6_e2m3": ("float6_e2m3fn", 6),
    "fp8_e4m3": ("float8_e4m3fn", 8),
    "fp8_e5m2": ("float8_e5m2", 8),
}
every_format = pytest.mark.parametrize("name", levelled.FORMATS)
every_float = pytest.mark.parametrize("name", FORMATS)
every_rounding = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


def mx(**options):
    return Scheme.parse("mx").codec.make(options)


def codes_of(wire, count, bits):
    """The codes of one block, behind its scale."""
    stream = np.unpackbits(wire[1:], bitorder="little")[: count * bits].reshape(count, bits)
    return stream @ (1 << np.arange(bits))


@every_float
def test_a_code_is_the_bits_of_the_format(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype, bits = FORMATS[name]
    expected = np.arange(2**bits, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)
    values, known = mx(format=name).levels.values, np.isfinite(expected)
    np.testing.assert_array_equal(values[known], expected[known])
    assert (np.abs(values[~known]) == levelled.FORMATS[name][2]).all()


def test_a_code_of_int8_is_an_integer_times_two_to_the_minus_six():
    codes = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)
    np.testing.assert_array_equal(mx(format="int8").levels.values, np.maximum(codes, -127) / 64)


def ocp(v, name):
    """(scale byte, elements in units of the scale) of one block: OCP MX 1.0, section 6.3, in float64."""
    largest, norm = levelled.FORMATS[name][2], float(np.abs(v).max())
    exponent = -127 if norm == 0 else int(max(np.floor(np.log2(norm)) - np.floor(np.log2(largest)), -127))
    ratio = np.clip(v.astype(np.float64) / 2.0**exponent, -largest, largest)
    return exponent + 127, ratio


@every_format
@pytest.mark.parametrize("kind", ["normal", "wide", "ties", "constant", "zero", "one hot", "denormal"])
def test_to_the_nearest_is_the_conversion_of_the_text(name, kind):
    codec = mx(format=name)
    found = region(codec, (Grid(33), 0, 32, 32))
    for seed in range(40):
        v = vector(codec, seed, 32, kind)
        wire, _ = encode(codec, v, None, found, feedback=False)
        scale, ratio = ocp(v, name)
        assert wire[0] == scale
        if name == "int8":
            expected = np.rint(ratio * 64).astype(np.int8).view(np.uint8)
            np.testing.assert_array_equal(wire[1:], expected)
        else:
            ml_dtypes = pytest.importorskip("ml_dtypes")
            dtype, bits = FORMATS[name]
            expected = ratio.astype(np.float32).astype(getattr(ml_dtypes, dtype)).view(np.uint8)
            np.testing.assert_array_equal(codes_of(wire, 32, bits), expected)


@every_format
def test_every_middle_between_two_elements_goes_to_the_even_one(name):
    codec, known = mx(format=name, block=1000), np.array(levelled.of_format(name))
    middles = (known[1:] + known[:-1]) / 2
    v = np.float32([*middles, *np.nextafter(middles, 0), *np.nextafter(middles, 1e9), *-middles])[:999]
    v = np.append(v, np.float32(2.0 ** np.floor(np.log2(known[-1]))))  # so that the scale is 1
    found = region(codec, (Grid(33), 0, v.size, v.size))
    got = decode(codec, encode(codec, v, None, found)[0], found).astype(np.float64)
    above = np.clip(np.searchsorted(known, np.abs(v)), 1, known.size - 1)
    low, high = known[above - 1], known[above]
    even = np.where(above % 2 == 0, high, low)
    v64 = np.abs(v.astype(np.float64))
    expected = np.where(v64 - low == high - v64, even, np.where(v64 - low < high - v64, low, high))
    np.testing.assert_array_equal(np.abs(got), expected)


@every_format
def test_nearest_cuts_off_less_than_stated_and_stochastic_nothing(name):
    largest = levelled.FORMATS[name][2]
    for top in np.linspace(1, 2, 65)[:-1].astype(np.float32):
        v = np.full(32, top, np.float32)
        for rounding in ("nearest", "stochastic"):
            codec = mx(format=name, rounding=rounding)
            found = region(codec, (Grid(33), 0, 32, 32))
            wire, _ = encode(codec, v, None, found)
            reach = largest * 2.0 ** (int(wire[0]) - 127)
            assert (top - reach) / top < (0.25 if rounding == "nearest" else 1e-12)
            assert rounding == "nearest" or reach < 2 * top
            assert np.abs(decode(codec, wire, found) / top - 1).max() <= 0.5


@every_format
def test_the_error_is_at_most_as_stated(name):
    codec, mantissa = mx(format=name), levelled.FORMATS[name][0]
    found = region(codec, (Grid(33), 5, 900, 1000))
    for kind in ("normal", "ties", "constant", "wide", "one hot"):
        v = vector(codec, 7, 900, kind)
        got = decode(codec, encode(codec, v, None, found, feedback=False)[0], found)
        unit, known = levelled.scales(codec, v, found), levelled.magnitudes(codec)
        allowed = np.maximum(2.0 ** -(mantissa + 1) * np.abs(v), unit * known[1] / 2)
        allowed = np.maximum(allowed, np.abs(v) - unit * known[-1])
        assert (np.abs(got - v) <= allowed).all(), kind


@every_format
@every_rounding
def test_bytes_are_a_scale_and_the_codes(name, rounding):
    bits = {**{each: FORMATS[each][1] for each in FORMATS}, "int8": 8}[name]
    codec = mx(format=name, rounding=rounding)
    assert codec.nbytes_bound([region(codec, (Grid(33), 0, 1000, 1000))]) == 31 * (1 + 4 * bits) + 1 + bits


def test_a_scale_that_is_no_number_is_refused():
    codec = mx()
    found = region(codec, (Grid(33), 0, 40, 40))
    wire, _ = encode(codec, vector(codec, 1, 40), None, found)
    wire[17] = 255
    with pytest.raises(WireError, match="scale"):
        codec.decode(wire, np.zeros(40, np.float32), found)


@pytest.mark.parametrize("options", ["format=e4m3", "format=fp6", "block=0", "rounding=up", "bucket=32", "bits=4"])
def test_options_out_of_range_are_refused_where_they_are_written(options):
    with pytest.raises(ValueError, match="mx"):
        Scheme.parse(f"mx({options})")


def test_these_are_the_bytes_of_two_blocks():
    codec = mx(block=3)
    found = region(codec, (Grid(33), 0, 5, 5))
    v = np.array([6, -1.5, 0, 0.75, -0.5], np.float32)  # scales 2^0 and 2^-3: codes 7 b 0 | 7 e
    wire, _ = encode(codec, v, None, found)
    assert wire.tobytes() == b"\x7f\xb7\x00" + b"\x7c\xe7"


@pytest.mark.parametrize("name", levelled.FORMATS)
def test_a_rotated_block_is_encoded_as_its_rotated_values_are(name):
    plain, rotated = (Scheme.parse(f"mx(format={name}{more})").codec for more in ("", ", rotate=True"))
    v = np.random.default_rng(3).standard_normal(320).astype(np.float32)
    found = region(rotated, (Grid(33), 0, 320, 320))
    wire, _ = encode(rotated, v, None, found)
    turned = np.empty_like(v)
    _kernels.rotate(v, turned, 0, 32, int(wire[:8].view(np.uint64)[0]))
    assert np.array_equal(wire[8:], encode(plain, turned, None, found)[0])

"""Casts and elementwise kernels: NumPy is the oracle, every level gives the same bytes."""

import ctypes
import sys

import ml_dtypes
import numpy as np
import pytest
from float_control import ARM
from plain import KINDS, SIZES, every_level, floats, same_bits, using

from gqallreduce import _kernels
from gqallreduce.errors import WireError

FORMATS = {0: np.dtype(np.float16), 1: np.dtype(ml_dtypes.bfloat16), 2: np.dtype(np.float64)}
every_format = pytest.mark.parametrize("format", FORMATS)


def narrow(x, format):
    target = np.zeros(x.size * FORMATS[format].itemsize, np.uint8)
    return _kernels.narrow(x, target, format), target


def widen(source, format):
    y = np.zeros(source.size // FORMATS[format].itemsize, np.float32)
    return _kernels.widen(source, y, format), y


@every_level
@pytest.mark.parametrize("format", [0, 1])
def test_every_16_bit_number_widens_as_numpy_says(level, format):
    numbers = np.arange(65536, dtype=np.uint16).view(FORMATS[format])
    expected = numbers.astype(np.float32)
    with using(level):
        bad, y = widen(numbers.view(np.uint8), format)
    assert bad == 1
    nan = np.isnan(expected)
    assert same_bits(y[~nan], expected[~nan])
    assert np.isnan(y[nan]).all()


@every_level
@pytest.mark.parametrize("format", [0, 1])
def test_every_boundary_between_16_bit_numbers_rounds_to_even(level, format):
    bits = np.arange(65536, dtype=np.uint16)
    numbers = bits.view(FORMATS[format]).astype(np.float32)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middle = ((numbers[:-1].astype(np.float64) + numbers[1:]) / 2).astype(np.float32)
    x = np.concatenate([middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf), numbers, -numbers])
    x = x.astype(np.float32)
    with using(level), np.errstate(over="ignore"):
        _, target = narrow(x, format)
        assert same_bits(target, x.astype(FORMATS[format]).view(np.uint8))


@every_level
@every_format
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_narrow_and_widen_agree_with_numpy(level, format, kind, n):
    x = floats(n, n, kind)
    with np.errstate(over="ignore"):
        expected = x.astype(FORMATS[format])
    with using(level):
        bad, target = narrow(x, format)
        assert same_bits(target, expected.view(np.uint8))
        assert bad == (not np.isfinite(expected).all())
        bad, y = widen(target, format)
        assert same_bits(y, expected.astype(np.float32))
        assert bad == (not np.isfinite(expected).all())


@every_level
@every_format
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 8, 70, 76, 5000])
def test_a_value_that_is_not_finite_is_reported_and_stays_so(level, format, value, place):
    x = floats(1, 5001)
    x[place] = value
    with using(level):
        bad, target = narrow(x, format)
        assert bad == 1
        bad, y = widen(target, format)
    assert bad == 1
    assert np.isnan(y[place]) if np.isnan(value) else y[place] == value


@every_level
def test_nan_payloads_are_the_same_bytes_on_every_level(level):
    payloads = np.random.default_rng(3).integers(1, 1 << 23, 1001).astype(np.uint32)
    x = (payloads | 0x7F800000 | (payloads & 1) << 31).view(np.float32)
    for format in (0, 1):
        with using("scalar"):
            expected = narrow(x, format)[1]
        with using(level):
            assert same_bits(narrow(x, format)[1], expected)
            assert np.isnan(expected.view(FORMATS[format]).astype(np.float32)).all()


@every_level
def test_a_float64_beyond_float32_becomes_infinite_and_is_reported(level):
    with using(level):
        bad, y = widen(np.array([1e39, -1.0, 1e-46, 5e-46]).view(np.uint8), 2)
    assert bad == 1
    assert y.tolist() == [np.inf, -1.0, 0.0, 0.0]
    with using(level):
        bad, y = widen(np.array([3.4028235e38, 1e-45]).view(np.uint8), 2)
    assert (bad, y[1]) == (0, np.float32(1e-45))


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("n", [*SIZES, 100003])
def test_the_elementwise_kernels_do_what_numpy_does(level, threads, n):
    x, e = floats(1, n), floats(2, n)
    wire = np.zeros(4 * n + 1, np.uint8)[1:]
    y = np.zeros(n, np.float32)
    with using(level, threads):
        assert _kernels.add_finite(x, e, wire) == 0
        assert same_bits(wire, (x + e).view(np.uint8))
        assert _kernels.add_finite(x, None, y) == 0
        assert same_bits(y, x)
        _kernels.add_wire(wire, y)
        assert same_bits(y, x + (x + e))
        _kernels.add(e, y)
        assert same_bits(y, (x + (x + e)) + e)
        expected = y * np.float32(0.3)
        assert _kernels.scale(y, 0.3) == 0
        assert same_bits(y, expected)
        assert _kernels.all_finite(y)


@every_level
@pytest.mark.parametrize("threads", [1, 3])
def test_overflow_is_found_wherever_it_is(level, threads):
    for n in (1, 33, 50001):
        for place in {0, n // 2, n - 1}:
            x = floats(4, n)
            x[place] = 3e38
            e = x.copy()
            y = np.zeros(n, np.float32)
            with using(level, threads):
                assert _kernels.add_finite(x, e, y) == 1
                assert not _kernels.all_finite(y)
                assert _kernels.add_finite(x, None, y) == 0
                assert _kernels.all_finite(y)
                assert _kernels.scale(y, 2.0) == 1


@every_level
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="calls fesetround of glibc")
def test_the_callers_rounding_mode_neither_matters_nor_changes(level):
    libm, to_nearest, upward = ctypes.CDLL("libm.so.6"), 0, 0x400000 if ARM else 0x800
    x, e = floats(1, 1001), floats(2, 1001, "wide")
    expected, y = x + e, np.zeros(1001, np.float32)
    with using(level):
        assert libm.fesetround(upward) == 0
        try:
            _kernels.add_finite(x, e, y)
            after = libm.fegetround()
        finally:
            libm.fesetround(to_nearest)
    assert after == upward
    assert same_bits(y, expected)


def test_wrong_sizes_are_refused():
    three, four = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="got 7, expected 6"):
        _kernels.narrow(three, np.zeros(7, np.uint8), 0)
    with pytest.raises(ValueError, match="got 8, expected 12"):
        _kernels.add_finite(three, None, np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="format"):
        _kernels.narrow(three, np.zeros(6, np.uint8), 3)
    with pytest.raises(ValueError, match="elements of e: got 4, expected 3"):
        _kernels.add_finite(three, four, three.copy())
    with pytest.raises(ValueError, match="elements of a"):
        _kernels.add(four, three)
    with pytest.raises(WireError):
        _kernels.add_wire(np.zeros(11, np.uint8), three)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("rest", [-1, 0, 1, 64])
def test_threads_leave_no_element_over(count, rest):
    """Each takes whole cache lines: here as many of them as there are, and a rest."""
    x = np.ones(count * (1 << 14) + rest, np.float32)
    with using(threads=count):
        assert not _kernels.scale(x, 3.0)
    assert (x == 3).all()

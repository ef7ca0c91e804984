"""Streaming stores: the same values at any address, and nothing written outside the array."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import every_level, floats, regions, same_bits, table, using

import gqallreduce as gq
from gqallreduce import _kernels

OFFSETS = [0, 4, 16, 32, 60, 64]  # bytes from a cache line on
SIZES = [0, 1, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1500, 40000]
GUARD = 32


class Guarded:
    """n floats that begin `offset` bytes after a cache line, between elements that must stay as they are."""

    def __init__(self, n, offset):
        buffer = np.full(n + 2 * GUARD + 32, 7, np.float32)
        begin = GUARD + (-buffer[GUARD:].ctypes.data % 64 + offset) // 4
        self.array, self._outside = buffer[begin : begin + n], (buffer[:begin], buffer[begin + n :])
        assert n == 0 or self.array.ctypes.data % 64 == offset % 64

    def untouched(self):
        return all((outside == 7).all() for outside in self._outside)


def collect(x, e, r, streaming):
    index, value = np.zeros(x.size, np.uint32), np.zeros(x.size, np.float32)
    floor = int(np.float32(1.5).view(np.uint32))
    count = _kernels.collect(x, e, r, floor, index, value, streaming)
    return index[:count], value[:count]


def check_collect(n, offset):
    x, e = floats(n, n, "wide"), floats(n + 1, n)
    for residual in (None, e):
        expected, r = np.full(n, np.nan, np.float32), Guarded(n, offset)
        listed = collect(x, residual, expected, False)
        for got, wanted in zip(collect(x, residual, r.array, True), listed, strict=True):
            assert same_bits(got, wanted)
        assert same_bits(r.array, expected)
        assert r.untouched()
        for got, wanted in zip(collect(x, residual, None, True), listed, strict=True):
            assert same_bits(got, wanted)


def check_decode(decode, n, offset):
    """`decode(y, streaming)`"""
    expected, y = np.full(n, np.nan, np.float32), Guarded(n, offset)
    decode(expected, False)
    decode(y.array, True)
    assert same_bits(y.array, expected)
    assert y.untouched()


def check_plain(n, offset):
    for number_format, itemsize in ((0, 2), (1, 2), (3, 4)):
        wire = np.empty(n * itemsize, np.uint8)
        assert _kernels.plain_encode(floats(n, n), None, None, wire, number_format) == 0

        def decode(y, streaming, wire=wire, number_format=number_format):
            _kernels.plain_decode(wire, y, number_format, 0.3, False, streaming)

        check_decode(decode, n, offset)
        y, z = floats(1, n), floats(1, n)
        _kernels.plain_decode(wire, y, number_format, 1.0, True, False)
        _kernels.plain_decode(wire, z, number_format, 1.0, True, True)
        assert same_bits(y, z)


@every_level
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize(
    ("number_format", "infinity"), [(0, np.float16(np.inf)), (1, np.uint16(0x7F80)), (3, np.float32(np.inf))]
)
def test_a_plain_number_that_is_not_finite_is_found_wherever_it_is(level, offset, number_format, infinity):
    """In the part of a line before the first whole one, in a line, and behind the last."""
    n, y = 100, Guarded(100, offset)
    with using(level):
        for place in (0, 1, 15, 16, 50, n - 2, n - 1):
            wire = np.zeros(n, infinity.dtype)
            wire[place] = infinity
            with pytest.raises(gq.WireError):
                _kernels.plain_decode(wire.view(np.uint8), y.array, number_format, 1.0, False, True)
        _kernels.plain_decode(np.zeros(n, infinity.dtype).view(np.uint8), y.array, number_format, 1.0, False, True)


def adaptive_message(n, start, run, parts):
    x = floats(n, n)
    index = np.flatnonzero(np.abs(x) > 1).astype(np.uint32)
    wire = np.empty(16 * n + 16 + 2 * index.size, np.uint8)
    counts, place = np.array([index.size]), table(n, start, run, parts)
    return wire[: _kernels.adaptive_encode(index, x[index], counts, None, wire, place)]


def check_adaptive(n, offset, start, run, parts):
    wire = adaptive_message(n, start, run, parts)
    place = table(n, start, run, parts)
    check_decode(lambda y, on: _kernels.adaptive_decode(wire, y, place, 0.3, on), n, offset)


@every_level
@pytest.mark.parametrize("offset", OFFSETS)
def test_streaming_changes_nothing_but_the_way_to_memory(level, offset):
    for threads in (1, 3):
        with using(level, threads):
            for n in SIZES:
                check_collect(n, offset)
                check_plain(n, offset)
                for run in (7, 33, 512, 600, 4096, 32767):
                    check_adaptive(n, offset, 5, run, 1)


@every_level
@examples(100)
@given(region=regions(3000), offset=st.sampled_from(OFFSETS))
def test_streamed_columns_of_any_grid(level, region, offset):
    with using(level):
        check_adaptive(region[0], offset, *region[1:])


@every_level
def test_a_malformed_message_streams_only_what_was_decoded(level):
    wire = adaptive_message(4000, 0, 1000, 1)
    wire[3 * 12 + 4 : 3 * 12 + 8] = 255  # the last column's mean is not a number
    with using(level):
        y = Guarded(4000, 4)
        with pytest.raises(ValueError, match="adaptive"):
            _kernels.adaptive_decode(wire, y.array, table(4000, 0, 1000), 1.0, True)
        assert (y.array[3000:] == 7).all()
        assert y.untouched()


@every_level
def test_an_array_that_no_cache_line_fits_is_stored_as_ever(level):
    x = floats(3, 3000)
    raw = np.zeros(4 * 3000 + 1, np.uint8)[1:].view(np.float32)
    with using(level):
        collect(x, None, raw, True)
        assert same_bits(raw, x)

"""Random bits are a function of the position: the same on every instruction set, from any start."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simd import LEVELS, on_every_level, simd

from gqallreduce import _kernels

# From the distribution of Random123, philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def oracle_philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def oracle_bits(index, key, hop, encoder, step):
    block = index >> 3
    counter = (block & 0xFFFFFFFF, (block >> 32 & 0xFFFF) | hop << 16, encoder, step)
    word = oracle_philox(counter, (key & 0xFFFFFFFF, key >> 32))[(index & 7) >> 1]
    return word & 0xFFFF if index % 2 == 0 else word >> 16


def random16(stream, first, count):
    out = np.empty(count, np.uint16)
    _kernels.random16(stream, first, out)
    return out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_words(level, counter, key, expected):
    with simd(level):
        assert _kernels.philox(counter, key) == expected
    assert oracle_philox(counter, key) == expected


words = st.integers(0, 2**32 - 1)
starts = st.one_of(st.integers(0, 2**12), st.integers(2**35 - 2000, 2**35 + 100), st.integers(0, 2**50))


@given(starts, st.integers(0, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1), words, words)
def test_every_level_gives_the_bits_of_the_definition(first, count, key, hop, encoder, step):
    stream = _kernels.Stream(key, hop, encoder, step)
    expected = np.array([oracle_bits(first + i, key, hop, encoder, step) for i in range(count)], np.uint16)
    for level, got in on_every_level(lambda: random16(stream, first, count)).items():
        np.testing.assert_array_equal(got, expected, err_msg=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", [2**35 - 1, 2**35 - 700, 2**35 - 2040, 2**35, 2**35 + 5, 2**36 - 300, 3 * 2**40 + 1])
def test_the_counter_carries_beyond_2_to_the_35_elements(level, first):
    key, hop, encoder, step = 0x0123456789ABCDEF, 0xFFFF, 9, 11
    expected = [oracle_bits(first + i, key, hop, encoder, step) for i in range(2100)]
    with simd(level):
        np.testing.assert_array_equal(random16(_kernels.Stream(key, hop, encoder, step), first, 2100), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", [0, 1, 7, 1021, 2**35 - 5000])
def test_a_part_of_the_bits_is_the_bits_of_the_part(level, first):
    stream = _kernels.Stream(1, 2, 3, 4)
    with simd(level):
        whole = random16(stream, first, 10007)
        for begin, end in [(0, 1), (1, 2), (5, 1029), (63, 64), (64, 5000), (9000, 10007)]:
            np.testing.assert_array_equal(random16(stream, first + begin, end - begin), whole[begin:end])


def test_streams_that_differ_anywhere_differ():
    base = (5, 1, 2, 3)
    changed = [(6, 1, 2, 3), (5 + 2**32, 1, 2, 3), (5, 2, 2, 3), (5, 1, 3, 3), (5, 1, 2, 4)]
    outputs = {random16(_kernels.Stream(*numbers), 0, 64).tobytes() for numbers in [base, *changed]}
    assert len(outputs) == 6


@pytest.mark.parametrize(
    "numbers", [(-1, 0, 0, 0), (2**64, 0, 0, 0), (0, 2**16, 0, 0), (0, 0, 2**32, 0), (0, 0, 0, -1)]
)
def test_a_stream_out_of_range_is_refused(numbers):
    with pytest.raises(ValueError, match="expected an unsigned integer"):
        _kernels.Stream(*numbers)

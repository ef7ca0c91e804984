"""Rotations: the same bits as NumPy's butterflies on all instruction sets; lengths stay, and a rotation comes back."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from level_oracles import f32, units
from simd import LEVELS, on_every_level, simd, threads

from gqallreduce import _kernels


def signs(key, round_, window, first, count):
    """The sign bits of elements from `first` on."""
    words = np.empty((first + count) // 16 - first // 16 + 1, np.uint16)
    _kernels.random16(_kernels.Stream(key, 2 * round_ + window, 0, 0), first // 16, words)
    bits = (words[:, None] >> np.arange(16)) & 1
    return bits.reshape(-1)[first % 16 :][:count].astype(bool)


def hadamard(v):
    half = 1
    while half < v.size:
        pairs = v.reshape(-1, 2, half)
        v = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return v


def one_over_root(n):
    k = n.bit_length() - 1
    return f32(2.0 ** -(k // 2)) * (f32(np.sqrt(0.5)) if k % 2 else f32(1))


def mixed(v):
    """The halves of v, of which a middle value stays."""
    half, factor = v.size // 2, f32(np.sqrt(0.5))
    a, b = v[:half] * factor, v[v.size - half :] * factor
    return np.concatenate([a + b, v[half : v.size - half], a - b])


def turned(v, first, key, round_):
    """One round of a unit."""
    n, width = v.size, 1 << (v.size.bit_length() - 1)
    v = np.where(signs(key, round_, 0, first, n), -v, v)
    v = mixed(v) if width < n else v
    v[:width] = hadamard(v[:width] * one_over_root(width))
    if width < n:
        last = v[n - width :]
        last = np.where(signs(key, round_, 1, first + n - width, width), -last, last)
        v[n - width :] = hadamard(last * one_over_root(width))
    return v


def turned_back(v, first, key, round_):
    n, width = v.size, 1 << (v.size.bit_length() - 1)
    v = v.copy()
    if width < n:
        last = hadamard(v[n - width :] * one_over_root(width))
        v[n - width :] = np.where(signs(key, round_, 1, first + n - width, width), -last, last)
    v[:width] = hadamard(v[:width] * one_over_root(width))
    v = mixed(v) if width < n else v
    return np.where(signs(key, round_, 0, first, n), -v, v)


def oracle(x, start, bucket, key, rounds, back):
    y = x.copy()
    for begin, end in units(start, x.size, bucket):
        for round_ in reversed(range(rounds)) if back else range(rounds):
            y[begin:end] = (turned_back if back else turned)(y[begin:end], start + begin, key, round_)
    return y


def rotated(x, start, bucket, key, rounds, back=False):
    y = np.empty_like(x)
    _kernels.rotate(x, y, start, bucket, key, rounds, back)
    return y


@examples(60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 1300), st.integers(0, 2**34), st.integers(1, 2100), st.integers(0, 4))
def test_every_instruction_set_turns_as_the_definition_says(seed, size, start, bucket, rounds):
    x, key = np.random.default_rng(seed).standard_normal(size).astype(f32), seed * 2**31 + 5
    for back in (False, True):
        expected = oracle(x, start, bucket, key, rounds, back).tobytes()
        for level in LEVELS:
            with simd(level):
                assert rotated(x, start, bucket, key, rounds, back).tobytes() == expected


@pytest.mark.parametrize("bucket", [2048, 4096, 5000, 8192, 16384, 32768, 65536, 100_000])
def test_long_units_turn_as_the_definition_says(bucket):
    x = np.random.default_rng(bucket).standard_normal(bucket + 100).astype(f32)
    for back in (False, True):
        expected = oracle(x, 5 * bucket, bucket, 7, 1, back).tobytes()
        for level in LEVELS:
            with simd(level):
                assert rotated(x, 5 * bucket, bucket, 7, 1, back).tobytes() == expected


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bucket", [1, 2, 3, 64, 100, 1024, 65536])
def test_lengths_stay_and_a_rotation_comes_back(level, bucket):
    x = np.random.default_rng(bucket).standard_normal(70_000).astype(f32)
    with simd(level):
        y = rotated(x, 0, bucket, 99, 2)
        np.testing.assert_allclose(rotated(y, 0, bucket, 99, 2, back=True), x, atol=1e-5)
        again = y.copy()
        _kernels.rotate(again, again, 0, bucket, 99, 2, True)  # in place
        np.testing.assert_allclose(again, x, atol=1e-5)
    begins = np.arange(0, x.size, bucket)
    lengths = [np.sqrt(np.add.reduceat(v.astype(np.float64) ** 2, begins)) for v in (x, y)]
    np.testing.assert_allclose(*lengths, rtol=1e-5)


def test_a_rotation_makes_values_normal():
    """One large value among 1024: each rotated one has about the same size, and both signs are as frequent."""
    x = np.zeros(1 << 17, f32)
    x[::1024] = 32
    y = rotated(x, 0, 1024, 3, 1)
    assert np.allclose(np.abs(y), 1)
    assert abs(y.mean()) < 7 / np.sqrt(128)  # a bucket's signs depend on one another
    z = rotated(x, 0, 1024, 3, 2).astype(np.float64)
    assert (z**2).mean() == pytest.approx(1, rel=1e-5)
    assert (z**4).mean() == pytest.approx(3, rel=0.1)


def test_neither_cuts_between_buckets_nor_threads_change_anything():
    x = np.random.default_rng(3).standard_normal(200_000).astype(f32)
    whole = rotated(x, 512 * 7, 512, 17, 1)
    cut = 512 * 101
    parts = np.concatenate([rotated(x[:cut], 512 * 7, 512, 17, 1), rotated(x[cut:], 512 * 7 + cut, 512, 17, 1)])
    assert parts.tobytes() == whole.tobytes()
    for count in (2, 3):
        with threads(count):
            assert rotated(x, 512 * 7, 512, 17, 1).tobytes() == whole.tobytes()


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@examples(15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 1200), st.booleans())
def test_eden_is_the_same_on_every_instruction_set_and_its_error_is_what_is_missing(bits, seed, bucket, fed):
    rng = np.random.default_rng(seed)
    n, start = int(rng.integers(1, 2500)), int(rng.integers(0, 1000))
    x = (rng.standard_normal(n) * 10.0 ** rng.integers(-30, 20)).astype(f32)
    e = x[::-1] * f32(0.3) if fed else None
    regions = _kernels.Regions([(n, start, bucket, 1, 0)])

    def made():
        wire, r, y = np.zeros(_kernels.eden_nbytes(regions, bits), np.uint8), np.empty(n, f32), np.empty(n, f32)
        assert _kernels.eden_encode(x, e, r, wire, bits, regions, _kernels.Stream(seed, 1, 2, 3)) == 0
        _kernels.eden_decode(wire, y, bits, regions)
        v = x if e is None else x + e
        assert r.tobytes() == (v - y).tobytes()
        z = np.ones(n, f32)
        _kernels.eden_decode(wire, z, bits, regions, 1.0, True)
        assert z.tobytes() == (f32(1) + y).tobytes()
        return wire.tobytes(), y.tobytes()

    assert len(set(on_every_level(made).values())) == 1


def test_what_it_cannot_do_is_refused():
    x, regions = np.zeros(40, f32), _kernels.Regions([(40, 0, 40, 1, 0)])
    with pytest.raises(ValueError, match="elements of y: got 3"):
        _kernels.rotate(x, x[:3], 0, 8, 1)
    with pytest.raises(ValueError, match="bucket=0"):
        _kernels.rotate(x, x, 0, 0, 1)
    for bits in (0, 5):
        with pytest.raises(ValueError, match="expected 1 to 4"):
            _kernels.eden_nbytes(regions, bits)

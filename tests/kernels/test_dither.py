"""Matrices as steps of their rows: codes and values are those of the definition, on every instruction set."""

import numpy as np
import pytest
from plain import same_bits
from simd import LEVELS, on_every_level, simd, threads

from gqallreduce import WireError, _kernels
from gqallreduce.coding.factor_wire import Steps

f32 = np.float32
STREAM = (12345, 0xFFFF, 7, 9)
SHAPES = [(1, 1), (3, 7), (1, 513), (40, 33), (2, 1500), (700, 3)]
every_steps = pytest.mark.parametrize(
    "steps", [Steps.of(bits, nonnegative) for bits in range(1, 9) for nonnegative in (False, True)], ids=str
)


def matrix(shape, nonnegative, seed=0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * rng.integers(0, 3, shape)).astype(f32)  # a third are zeros
    x[0] *= f32(rng.integers(0, 2))
    return np.abs(x) if nonnegative else x


def shifts(stream, begin, n):
    bits = np.empty(n, np.uint16)
    _kernels.random16(stream, begin, bits)
    return (bits.astype(f32) + f32(0.5)) / f32(65536) - f32(0.5)


def plain_codes(x, step, steps, u):
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(step[:, None] > 0, x / step[:, None], f32(0)).reshape(-1) + u
    if steps.bits == 1:
        meeting = f32(0 if steps.shifts else 0.5)
        return np.where(np.repeat(step, x.shape[1]) > 0, t >= meeting, meeting == 0).astype(np.uint8)
    codes = np.clip(np.rint(t), -steps.offset, steps.most) + steps.offset
    zero = (x.reshape(-1) == 0) | ~(np.repeat(step, x.shape[1]) > 0)
    return np.where(zero, steps.zero, codes).astype(np.uint8)


def encoded(x, step, steps, begin=5):
    wire = np.zeros((x.size * steps.bits + 7) // 8, np.uint8)
    steps.encode(x, step, _kernels.Stream(*STREAM), begin, wire)
    return wire


@pytest.mark.parametrize("shape", SHAPES)
@every_steps
def test_codes_and_values_are_those_of_the_definition(steps, shape):
    nonnegative = steps == Steps.of(steps.bits, True)
    x = matrix(shape, nonnegative)
    step = (np.abs(x).max(axis=1) / f32(steps.most)).astype(f32)
    u = shifts(_kernels.Stream(*STREAM), 5, x.size)
    codes = plain_codes(x, step, steps, u)
    wires = on_every_level(lambda: encoded(x, step, steps).tobytes())
    packed = np.zeros((x.size * steps.bits + 7) // 8, np.uint8)
    _kernels.pack(codes, steps.bits, packed)
    assert set(wires.values()) == {packed.tobytes()}
    values = steps.numbers[codes] - np.where(steps.shifts & (codes != steps.zero), u, f32(0))
    expected = values * np.repeat(step, shape[1])

    def decoded():
        y = np.full(x.size, np.nan, f32)
        stream = _kernels.Stream(*STREAM)
        _kernels.dither_decode(packed, step, steps.numbers, y, steps.bits, steps.shifts, steps.zero, stream, 5)
        return y

    for level in LEVELS:
        with simd(level):
            assert same_bits(decoded(), expected)
    if steps.bits > 1:
        assert (expected.reshape(shape)[x == 0] == 0).all()
    if steps.shifts:
        within = np.abs(expected.reshape(shape) - x) <= step[:, None] * f32(0.5001)
        assert within.all()


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_any_number_of_threads_gives_the_same(bits):
    x, steps = matrix((97, 1031), False), Steps.of(bits, False)
    step = (np.abs(x).max(axis=1) / f32(steps.most)).astype(f32)
    found = set()
    for count in (1, 2, 3, 7):
        with threads(count):
            wire, y, largest = encoded(x, step, steps), np.empty(x.size, f32), np.empty(97, f32)
            stream = _kernels.Stream(*STREAM)
            _kernels.dither_decode(wire, step, steps.numbers, y, bits, True, steps.zero, stream, 5)
            _kernels.largest_of_rows(x.reshape(-1), largest)
            assert same_bits(largest, np.abs(x).max(axis=1))
            found.add((wire.tobytes(), y.tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_largest_of_a_row_that_is_not_finite_is_infinite(bad):
    x = matrix((5, 40), False)
    x[3, 17] = bad
    for largest in on_every_level(lambda: _largest(x)).values():
        assert np.isinf(largest[3])
        assert np.isfinite(np.delete(largest, 3)).all()


def _largest(x):
    largest = np.empty(len(x), f32)
    _kernels.largest_of_rows(x.reshape(-1), largest)
    return largest


def test_tiny_scales_give_zeros_or_steps_of_their_size():
    for scale in (1e-45, 3e-45, 1e-39, 1e-38):
        x = np.array([[0, scale, -scale, scale / 2]], f32)
        for bits in (2, 8):
            steps = Steps.of(bits, False)
            step = (np.abs(x).max(axis=1) / f32(steps.most)).astype(f32)
            y = np.empty(4, f32)
            stream, wire = _kernels.Stream(*STREAM), encoded(x, step, steps)
            _kernels.dither_decode(wire, step, steps.numbers, y, bits, True, steps.zero, stream, 5)
            assert y[0] == 0
            assert (np.abs(y - x) <= np.maximum(step, scale)).all()


def test_arrays_that_do_not_fit_are_refused():
    stream, steps = _kernels.Stream(*STREAM), Steps.of(2, False)
    x, step, wire = np.zeros(12, f32), np.ones(3, f32), np.zeros(3, np.uint8)
    good = (x, step, wire, 2, True, 1.0, 1.0, 0.0, 3, stream, 0)
    _kernels.dither_encode(*good)
    for at, bad in [(0, x[:11]), (1, step[:0]), (2, wire[:2]), (3, 9), (5, 300.0), (8, 256)]:
        with pytest.raises(ValueError, match=r"."):
            _kernels.dither_encode(*good[:at], bad, *good[at + 1 :])
    with pytest.raises(WireError, match="expected 3"):
        _kernels.dither_decode(wire[:2], step, steps.numbers, x, 2, True, 3, stream, 0)
    with pytest.raises(ValueError, match="numbers"):
        _kernels.dither_decode(wire, step, steps.numbers[:3], x, 2, True, 3, stream, 0)
    with pytest.raises(ValueError, match="whole rows"):
        _kernels.largest_of_rows(x, np.empty(5, f32))

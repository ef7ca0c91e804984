"""Level codecs: every instruction set gives the bytes and floats of the definition, here written out in NumPy."""

import contextlib
import ctypes
import struct

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from level_oracles import STREAM, Floating, Table, Uniform, f32, oracle_encode, units
from plain import table as in_buckets
from simd import LEVELS, on_every_level, simd, threads

from gqallreduce import _kernels
from gqallreduce.errors import WireError

RNG = np.random.default_rng(20)


def exponential(bits):
    positive = [2.0**-k for k in range((1 << (bits - 1)) - 1, -1, -1)]
    return np.array([-p for p in reversed(positive)] + positive, f32)


def powers_of_two(bits, zero, nearest=False):
    powers = 2 ** (bits - 1) - zero
    return Floating(bits, 0, 1 - powers, powers, zero, nearest=nearest)


def learned(bits, count, low=-1.0, high=1.0):
    inner = np.sort(np.random.default_rng(count).uniform(low, high, count - 2))
    return bits, np.array([low, *inner, high], f32)


UNIFORM = [(bits, zero) for bits in range(1, 9) for zero in (False, True) if bits > 1 or not zero]
TABLES = [
    (1, np.array([-1, 1], f32)),
    (2, np.array([-1, 0, 1], f32)),
    (2, exponential(2)),
    (3, exponential(3)),
    (4, exponential(4)),
    learned(4, 16),
    learned(4, 13, -0.5, 0.75),
    learned(3, 8),
    learned(8, 16),
    learned(5, 32),
    learned(8, 200),
    learned(8, 256),
    (2, np.array([0.25, 0.5], f32)),
]


FORMATS = [(4, 1, 0, 7), (6, 2, -2, 31), (6, 3, 0, 31), (8, 3, -6, 126), (8, 2, -14, 123)]
SIGNED, INTEGERS = "sign and magnitude", "two's complement"
POWERS = [(1, False), (2, False), (2, True), (4, False), (4, True), (6, False), (8, True)]
CODECS = [
    *(Uniform(bits, zero) for bits, zero in UNIFORM),
    *(Uniform(bits, zero, nearest=True) for bits, zero in UNIFORM),
    *(Table(bits, table) for bits, table in TABLES),
    *(Table(bits, table, nearest=True) for bits, table in TABLES[3:]),
    *(powers_of_two(bits, zero, nearest) for bits, zero in POWERS for nearest in (False, True)),
    *(Floating(*format, True, SIGNED, nearest) for format in FORMATS[3:] for nearest in (False, True)),
    *(Floating(*format, True, SIGNED, True, "power ocp") for format in FORMATS),
    *(Floating(*format, True, SIGNED, False, "power above") for format in FORMATS),
    *(Floating(8, 6, 0, 127, True, INTEGERS, nearest, "power ocp") for nearest in (False, True)),
    *(Floating(bits, 0, 2 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, True, SIGNED, nearest, "power above")
      for bits in (2, 5, 8) for nearest in (False, True)),
]  # fmt: skip
every_codec = pytest.mark.parametrize("codec", CODECS, ids=repr)


def shifted(array, shift):
    """A copy that begins `shift` elements after an aligned address."""
    room = np.empty(len(array) + shift, array.dtype)
    room[shift:] = array
    return room[shift:]


def encode(codec, x, e, l2, start, bucket, feedback=True, shift=0):
    regions = in_buckets(len(x), start, bucket)
    wire = np.full(_kernels.levels_nbytes(regions, codec.levels) + shift, 0xEE, np.uint8)[shift:]
    r = shifted(np.full(len(x), np.nan, f32), shift) if feedback else None
    x, e = shifted(x, shift), None if e is None else shifted(e, shift)
    assert _kernels.levels_encode(x, e, r, wire, codec.levels, l2, regions, STREAM) == 0
    return wire, r


def decode(codec, wire, n, start, bucket, scale=1.0):
    y = np.full(n, np.nan, f32)
    _kernels.levels_decode(wire, y, codec.levels, in_buckets(y.size, start, bucket), scale)
    return y


def same_floats(got, expected):
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def check_against_oracle(codec, x, e, l2, start, bucket, shift=0):
    expected_wire, expected, errors = oracle_encode(codec, x, e, l2, start, bucket)
    y = RNG.standard_normal(len(x)).astype(f32)
    for level in LEVELS:
        with simd(level):
            wire, r = encode(codec, x, e, l2, start, bucket, shift=shift)
            assert wire.tobytes() == expected_wire, level
            same_floats(r, errors)
            same_floats(decode(codec, wire, len(x), start, bucket), expected)
            with np.errstate(over="ignore"):
                scaled = expected * f32(0.3)
            same_floats(decode(codec, wire, len(x), start, bucket, 0.3), scaled)
            total = y.copy()
            _kernels.levels_decode_add(wire, total, codec.levels, in_buckets(total.size, start, bucket))
            same_floats(total, y + expected)
            assert encode(codec, x, e, l2, start, bucket, feedback=False)[0].tobytes() == expected_wire, level


@every_codec
def test_the_values_are_the_levels(codec):
    same_floats(codec.levels.values, codec.value)
    assert codec.levels.bits == codec.bits
    assert codec.levels.count == codec.count


@every_codec
@pytest.mark.parametrize("l2", [False, True], ids=["max", "l2"])
@pytest.mark.parametrize(
    ("n", "start", "bucket"),
    [(1, 0, 512), (5000, 0, 512), (3001, 131, 100), (777, 5, 7), (9973, 1000, 1 << 40), (65, 2**35 * 8 - 30, 64)],
)
def test_every_level_gives_the_bytes_and_floats_of_the_definition(codec, l2, n, start, bucket):
    x, e = RNG.standard_normal((2, n)).astype(f32)
    check_against_oracle(codec, x, None, l2, start, bucket)
    check_against_oracle(codec, x, e, l2, start, bucket, shift=3)


@every_codec
@pytest.mark.parametrize("size", [1e-45, 3e-42, 1e-38, 2.0**-64, 1e-20, 1.0, 1e20, 8e37])
def test_every_level_agrees_from_denormals_to_the_largest_floats(codec, size):
    x = np.sort((RNG.uniform(-1, 1, 1000) * size).astype(f32))
    x[::7] = 0
    x[1::7] = f32(-0.0)
    x[2::49] = f32(size)
    x[3::49] = -f32(size)
    check_against_oracle(codec, x, None, False, 3, 128)
    if size < 1e20:
        check_against_oracle(codec, x, x, True, 3, 128)


@every_codec
def test_an_error_that_might_not_be_finite_is_refused(codec):
    x = np.full(100, 3e38, f32)
    regions = in_buckets(100, 0, 64)
    wire = np.empty(_kernels.levels_nbytes(regions, codec.levels), np.uint8)
    with np.errstate(over="ignore"):
        sent = np.isfinite(codec.scale(x[0])[0] * f32(codec.reach))  # else a power of two above it leaves float32
    assert _kernels.levels_encode(x, None, None, wire, codec.levels, False, regions, STREAM) == (not sent)
    assert _kernels.levels_encode(x, None, np.empty_like(x), wire, codec.levels, False, regions, STREAM)


@every_codec
def test_a_bucket_of_zeros_decodes_to_zeros(codec):
    x = np.zeros(100, f32)
    x[::3] = f32(-0.0)
    check_against_oracle(codec, x, None, False, 0, 64)
    check_against_oracle(codec, x, None, True, 0, 64)
    assert not decode(codec, encode(codec, x, None, False, 0, 64)[0], 100, 0, 64).any()


@every_codec
def test_values_at_and_beside_every_draw_round_alike(codec):
    # Fractions of k / 2^17 of a step: half of them tie with a draw.
    random = np.empty(4096, np.uint16)
    _kernels.random16(STREAM, 0, random)
    fraction = (random.astype(np.float64) + 0.5 + RNG.integers(-1, 2, 4096) * 0.5) / 65536
    step = 2.0 ** -(codec.bits - 1)
    x = ((RNG.integers(0, 1 << (codec.bits - 1), 4096) + fraction) * step * RNG.choice([-1, 1], 4096)).astype(f32)
    x[::256] = 1
    check_against_oracle(codec, x, None, False, 0, 256)


@examples(60)
@given(
    st.sampled_from(CODECS),
    st.integers(0, 700),
    st.integers(0, 2000),
    st.integers(1, 600),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_region_of_any_buckets(codec, n, start, bucket, l2, seed):
    rng = np.random.default_rng(seed)
    x, e = (rng.standard_normal((2, n)) * 10.0 ** rng.integers(-30, 15)).astype(f32)
    check_against_oracle(codec, x, e, l2, start, bucket, shift=seed % 5)


random_codecs = [codec for codec in CODECS if not codec.nearest]


@pytest.mark.parametrize("codec", random_codecs, ids=repr)
def test_decoded_values_are_unbiased_and_within_one_step(codec):
    n = 4096
    x = RNG.uniform(-1, 1, n).astype(f32)
    x[0] = 1
    total = np.zeros(n)
    known = np.unique(codec.value) * codec.scale(f32(1))[0]
    reach = np.clip(x, known[0], known[-1])
    low = np.clip(np.searchsorted(known, reach, side="right") - 1, 0, len(known) - 2)
    step = known[low + 1] - known[low]
    for trial in range(100):
        wire = np.empty(_kernels.levels_nbytes(in_buckets(n, 0, n), codec.levels), np.uint8)
        stream = _kernels.Stream(trial, 0, 0, 0)
        assert _kernels.levels_encode(x, None, None, wire, codec.levels, False, in_buckets(x.size, 0, n), stream) == 0
        d = decode(codec, wire, n, 0, n)
        assert (np.abs(d - reach) <= step * (1 + 1e-4)).all()
        total += d
    errors = (total / 100 - reach) / step
    assert abs(errors.mean()) < 5 * 0.5 / np.sqrt(100 * n)
    assert np.abs(errors).max() < 6 * 0.5 / np.sqrt(100)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bucket", [64, 4096, 100_000, 1 << 30])
@pytest.mark.parametrize("l2", [False, True], ids=["max", "l2"])
def test_the_number_of_threads_changes_nothing(level, bucket, l2):
    codec = CODECS[3]
    x, e = RNG.standard_normal((2, 200_003)).astype(f32)
    results = set()
    with simd(level):
        for count in (1, 2, 3):
            with threads(count):
                wire, r = encode(codec, x, e, l2, 77, bucket)
                y = decode(codec, wire, len(x), 77, bucket, 0.5)
                _kernels.levels_decode_add(wire, y, codec.levels, in_buckets(y.size, 77, bucket))
                results.add((wire.tobytes(), r.tobytes(), y.tobytes()))
    assert len(results) == 1


@contextlib.contextmanager
def float_environment(mxcsr):
    """The caller's control word of SSE: 0x1F80 at the start of a process."""
    libm = ctypes.CDLL("libm.so.6")
    before, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()  # fenv_t; its last word is MXCSR
    libm.fegetenv(before)
    changed[:] = [*before[:7], mxcsr]
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(before)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mxcsr", [0x1F80 | 0x8040, 0x1F80 | 0x4000, 0x1F80 | 0x6000], ids=["flush", "up", "to_zero"])
def test_the_callers_float_environment_changes_nothing(level, count, mxcsr):
    codec = CODECS[3]
    x = (RNG.standard_normal(40_000) * 1e-39).astype(f32)
    results = set()
    with simd(level), threads(count):
        for environment in (contextlib.nullcontext(), float_environment(mxcsr)):
            wire = np.empty(_kernels.levels_nbytes(in_buckets(len(x), 0, 512), codec.levels), np.uint8)
            r, y = np.empty_like(x), np.empty_like(x)
            with environment:
                _kernels.levels_encode(x, None, r, wire, codec.levels, False, in_buckets(x.size, 0, 512), STREAM)
                _kernels.levels_decode(wire, y, codec.levels, in_buckets(y.size, 0, 512), 0.75)
            results.add((wire.tobytes(), r.tobytes(), y.tobytes()))
    assert len(results) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("l2", [False, True], ids=["max", "l2"])
@pytest.mark.parametrize("at", [0, 17, 511, 999])
def test_a_value_that_is_not_finite_is_reported(level, bad, l2, at):
    x = np.ones(1000, f32)
    e = np.ones(1000, f32)
    levels = _kernels.Levels.uniform(4, True)
    wire = np.empty(_kernels.levels_nbytes(in_buckets(1000, 0, 512), levels), np.uint8)
    with simd(level):
        e[at] = bad
        assert _kernels.levels_encode(x, e, None, wire, levels, l2, in_buckets(x.size, 0, 512), STREAM) == 1
        assert _kernels.levels_encode(e, None, x, wire, levels, l2, in_buckets(e.size, 0, 512), STREAM) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_sum_or_a_norm_that_overflows_is_reported(level):
    big = np.full(100, 3e38, f32)
    small = np.zeros(100, f32)
    levels = _kernels.Levels.uniform(4, True)
    wire = np.empty(_kernels.levels_nbytes(in_buckets(100, 0, 64), levels), np.uint8)
    with simd(level):
        assert _kernels.levels_encode(big, small, None, wire, levels, False, in_buckets(big.size, 0, 64), STREAM) == 0
        assert _kernels.levels_encode(big, small, None, wire, levels, True, in_buckets(big.size, 0, 64), STREAM) == 1
        assert _kernels.levels_encode(big, big, None, wire, levels, False, in_buckets(big.size, 0, 64), STREAM) == 1


def lawful(codec, scale):
    """May these bytes be a scale? What it decodes to is finite."""
    if len(scale) == 1:
        return scale[0] < 255 and codec.reach * 2.0 ** (int(scale[0]) - 127) < 2.0**128
    if np.frombuffer(scale.tobytes(), np.uint32)[0] >= 0x7F800000:
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(f32(codec.reach) * np.frombuffer(scale.tobytes(), f32)[0]))


@every_codec
@examples(20)
@given(st.integers(0, 300), st.integers(0, 100), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_any_bytes_decode_alike_or_are_refused_alike(codec, n, start, bucket, seed):
    rng = np.random.default_rng(seed)
    wire = rng.integers(0, 256, _kernels.levels_nbytes(in_buckets(n, start, bucket), codec.levels), dtype=np.uint8)
    at, good = 0, True
    for begin, end in units(start, n, bucket):
        nbytes = len(codec.scale(f32(1))[1])
        scale = wire[at : at + nbytes]
        if rng.integers(8):
            scale[-1] &= 0x3F
        good &= lawful(codec, scale)
        at += nbytes + ((end - begin) * codec.bits + 7) // 8

    def outcome():
        try:
            return decode(codec, wire, n, start, bucket, 0.7).tobytes()
        except WireError:
            return None

    results = set(on_every_level(outcome).values())
    assert len(results) == 1
    assert (results != {None}) == good


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("norm", [np.nan, np.inf, -np.inf, -1.0, -0.0])
def test_a_norm_that_no_encoder_writes_is_refused(level, norm):
    codec = CODECS[4]
    wire, _ = encode(codec, np.ones(100, f32), None, False, 0, 50)
    wire[len(wire) // 2 : len(wire) // 2 + 4] = np.frombuffer(struct.pack("<f", norm), np.uint8)
    with simd(level), pytest.raises(WireError, match="scale"):
        decode(codec, wire, 100, 0, 50)


@pytest.mark.parametrize("wrong", [-1, 1, 4])
def test_a_wire_of_the_wrong_size_is_refused(wrong):
    levels = _kernels.Levels.uniform(4, True)
    good = _kernels.levels_nbytes(in_buckets(100, 0, 64), levels)
    assert good == 2 * 4 + 32 + 18
    wire = np.zeros(good + wrong, np.uint8)
    with pytest.raises(WireError, match="expected 58"):
        _kernels.levels_decode(wire, np.zeros(100, f32), levels, in_buckets(100, 0, 64), 1.0)
    with pytest.raises(WireError, match="expected 58"):
        _kernels.levels_decode_add(wire, np.zeros(100, f32), levels, in_buckets(100, 0, 64))
    with pytest.raises(ValueError, match="expected 58"):
        _kernels.levels_encode(np.zeros(100, f32), None, None, wire, levels, False, in_buckets(100, 0, 64), STREAM)


@pytest.mark.parametrize(("bits", "zero"), [(0, False), (1, True), (9, True), (-1, False)])
def test_uniform_levels_that_do_not_exist_are_refused(bits, zero):
    with pytest.raises(ValueError, match="bits"):
        _kernels.Levels.uniform(bits, zero)


@pytest.mark.parametrize(
    ("bits", "table"),
    [
        (2, [0.5]),
        (2, []),
        (2, [-1, 0, 0, 1]),
        (2, [1, 0]),
        (1, [-1, 0, 1]),
        (2, [-1.5, 1]),
        (2, [-1, 1.5]),
        (2, [-1, np.nan, 1]),
        (2, [0, 1e-44]),
        (9, [-1, 1]),
        (0, [-1, 1]),
    ],
)
def test_tables_that_are_not_levels_are_refused(bits, table):
    with pytest.raises(ValueError, match="levels"):
        _kernels.Levels.table(bits, np.array(table, f32))


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 0, 0, 1), (9, 0, -126, 1), (4, 1, 0, 8), (4, 1, 0, 0), (8, 7, 0, 127), (8, 3, -124, 126), (4, -1, 0, 7),
        (8, 0, 100, 127), (3, 0, 0, 2, True, "ascending"), (4, 1, 0, 7, False), (8, 0, -127, 128, False),
        (4, 1, 0, 7, True, "descending"),
    ],
)  # fmt: skip
def test_small_floats_that_do_not_exist_are_refused(arguments):
    with pytest.raises(ValueError, match=r"levels of|order: got 'descending', expected one of ascending"):
        _kernels.Levels.floating(*arguments)


def test_roundings_and_scales_that_levels_have_not_are_refused():
    table, uniform = _kernels.Levels.table(1, np.array([-1, 1], f32)), _kernels.Levels.uniform(4, True)
    for levels, options in (
        (table, {"scale": "power above"}),
        (uniform, {"scale": "power ocp"}),
        (uniform, {"scale": "l1"}),
    ):
        with pytest.raises(ValueError, match="scale"):
            levels.using(**options)


@every_codec
def test_nothing_from_nothing(codec):
    assert _kernels.levels_nbytes(in_buckets(0, 5, 64), codec.levels) == 0
    empty = np.empty(0, f32)
    wire, r = encode(codec, empty, empty, True, 5, 64)
    assert len(wire) == len(r) == len(decode(codec, wire, 0, 5, 64)) == 0


def test_the_wire_of_two_buckets_by_hand():
    # s = 3. Bucket one has norm 3, so every value is a level; bucket two is cut off after one value.
    x = np.array([3, -2, 1, 0.0, -8], f32)
    wire, r = encode(Uniform(3, zero=True), x, None, False, 4, 4)
    codes = 6 | 1 << 3 | 4 << 6 | 3 << 9
    assert wire.tobytes() == struct.pack("<f", 3) + codes.to_bytes(2, "little") + struct.pack("<fB", 8, 0)
    assert not r.any()

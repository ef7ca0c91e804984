"""The contract, for every codec with every variant: bytes, errors, bounds, chance."""

import itertools

import numpy as np
import pytest
from contract import (
    KINDS,
    PLACES,
    STREAM,
    bernstein,
    cuts,
    decode,
    decode_add,
    encode,
    formed,
    region,
    same_bits,
    sampled,
    select,
    vector,
)
from schemes import CODEC, PARTICULARS, variants
from simd import LEVELS, simd, threads

from gqallreduce import WireError, _kernels
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.coding.preparing import Parts

every_codec = variants("codec", CODEC)
random_codecs = {name: codec for name, codec in CODEC.items() if not codec.deterministic}
UNBIASED = {name: codec for name, codec in CODEC.items() if codec.unbiased}
# 16-bit formats end far below float32: there, the values called huge are refused, and that is tested apart.
FINITE_ALWAYS = ("normal", "denormal", "ties", "constant", "zero", "one hot")


def lawful(codec, seed, place, kinds=KINDS):
    """(region, x, residual) of every kind that this codec can encode."""
    found = region(codec, place)
    for kind in kinds:
        for residual in (None, vector(codec, seed + 1, found.size, "normal").astype(np.float32)):
            yield kind, found, vector(codec, seed, found.size, kind), residual


@every_codec
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_new_residual_is_the_value_less_what_its_bytes_decode_to(codec, place):
    for kind, found, x, residual in lawful(codec, 1, place):
        wire, new_residual = encode(codec, x, residual, found)
        if isinstance(wire, int):
            assert kind in ("huge", "wide"), f"finite values of kind {kind} were refused"
            continue
        decoded = decode(codec, wire, found)
        assert np.isfinite(decoded).all(), kind
        assert np.isfinite(new_residual).all(), kind
        v = formed(codec, x, residual)
        expected = (v - decoded).astype(np.float32)
        assert same_bits(new_residual + np.float32(0), expected + np.float32(0)), kind  # -0 is 0


@every_codec
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_feedback_changes_no_byte(codec, place):
    for kind, found, x, residual in lawful(codec, 3, place):
        fused, _ = encode(codec, x, residual, found)
        if isinstance(fused, int):
            continue  # an error beyond float32 can only be refused where it must be kept
        apart, _ = encode(codec, formed(codec, x, residual), None, found, feedback=False)
        assert np.array_equal(fused, apart), kind


@every_codec
def test_an_empty_region_is_no_trouble(codec):
    found = region(codec, (Grid(40), 80, 0, 100))
    wire, _ = encode(codec, vector(codec, 1, 0), None, found)
    assert decode(codec, wire, found).size == 0
    assert codec.nbytes_bound([]) == 0


@every_codec
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_adding_a_message_is_adding_what_it_decodes_to(codec, place):
    for kind, found, x, residual in lawful(codec, 5, place, FINITE_ALWAYS):
        wire, _ = encode(codec, x, residual, found)
        y = vector(codec, 7, found.size)
        assert same_bits(decode_add(codec, wire, y, found), y + decode(codec, wire, found)), kind


@every_codec
@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3, 1 / 7])
def test_a_scale_multiplies_what_is_decoded(codec, scale):
    for kind, found, x, residual in lawful(codec, 5, PLACES[6], FINITE_ALWAYS):
        wire, _ = encode(codec, x, residual, found)
        assert same_bits(decode(codec, wire, found, scale), decode(codec, wire, found) * codec.working.type(scale)), (
            kind
        )


@every_codec
def test_a_cut_between_units_changes_no_value(codec):
    if codec.prepare and codec.prepare(Parts([], None)):
        pytest.skip("what is kept, or its scale, depends on the whole range")
    found = region(codec, (Grid(33), 17, 1201, 4000))
    x, residual = vector(codec, 1, 1201), vector(codec, 2, 1201).astype(np.float32)
    whole = decode(codec, encode(codec, x, residual, found)[0], found)
    units = cuts(found)
    middle = units[len(units) // 2]
    for begin, end in ((0, middle), (middle, 1201)):
        part = Region(found.start + begin, end - begin, found.grid, found.total)
        wire, _ = encode(codec, x[begin:end], residual[begin:end], part)
        assert same_bits(decode(codec, wire, part), whole[begin:end])


@every_codec
def test_several_regions_fill_one_message_within_its_bound(codec):
    grid = codec.grid(Grid(33))
    regions = [Region(start, 330, grid, 1320) for start in range(0, 1320, 330)]
    x = vector(codec, 4, 1320)
    loaded = [(each, x[each.start : each.start + 330], None, None) for each in regions]
    kept = select(codec, loaded)
    bound = codec.nbytes_bound(regions)
    wire, at = np.zeros(bound, np.uint8), 0
    for (each, values, _, _), chosen in zip(loaded, kept, strict=True):
        at += codec.encode(values, None, None, wire[at:], each, STREAM, chosen)
    assert at == bound if codec.fixed_size else at <= bound
    y, read = np.zeros(1320, codec.working), 0
    for each in regions:
        read += codec.decode(wire[read:at], y[each.start : each.start + 330], each)
    assert read == at


# --- chance ---


@every_codec
def test_the_same_stream_makes_the_same_bytes(codec):
    found = region(codec, PLACES[6])
    x = vector(codec, 1, found.size)
    first, second = (encode(codec, x, None, found, _kernels.Stream(1, 2, 3, 4))[0] for _ in range(2))
    assert same_bits(first, second)


@every_codec
def test_only_a_random_codec_heeds_key_hop_encoder_and_step(codec):
    found = region(codec, PLACES[6])
    x = vector(codec, 1, found.size)
    streams = [(1, 2, 3, 4), (9, 2, 3, 4), (1 << 40, 2, 3, 4), (1, 9, 3, 4), (1, 2, 9, 4), (1, 2, 3, 9)]
    made = [encode(codec, x, None, found, _kernels.Stream(*stream))[0].tobytes() for stream in streams]
    assert len(set(made)) == (1 if codec.deterministic else len(streams))


@variants("codec", random_codecs)
def test_random_bits_belong_to_the_global_element(codec):
    grid, size = codec.grid(Grid(32)), 2048
    x = np.tile(vector(codec, 1, 512), 4)
    made = {
        decode(
            codec, encode(codec, x, None, Region(start, size, grid, 10**6))[0], Region(start, size, grid, 10**6)
        ).tobytes()
        for start in (0, grid.run * 4, grid.run * 8)
    }
    assert len(made) == 3


@variants("name", list(UNBIASED))
@pytest.mark.parametrize("kind", ["normal", "ties", "denormal", "one hot"])
def test_the_mean_is_the_value_and_the_variance_is_as_stated(name, kind):
    codec, stated = UNBIASED[name], PARTICULARS[UNBIASED[name].name]
    found, trials, failure = region(codec, (Grid(33), 5, 90, 200)), 700, 1e-9
    v = vector(codec, 8, found.size, kind)
    if type(codec) is not type(codec.bind(Form((200,), "C", "float32"))):
        v = np.round(v * 8) / 8  # what a 16-bit message carries exactly
    if found.grid.run > 1 and kind == "normal":
        v[1] = 0
    got = sampled(codec, v, found, trials)
    variance, spread = stated.variance(codec, v, found), stated.spread(codec, v, found)
    unit = spread * 2.0**-16 + np.abs(v) * 2.0**-22
    error = np.abs(got - v)
    assert (error <= spread + unit).all()
    allowed = bernstein(variance, spread, trials, failure / v.size)
    assert (np.abs(got.mean(0) - v) <= allowed + unit).all()
    squares = error**2
    allowed = bernstein(spread**2 * variance, spread**2, trials, failure / v.size)  # var(X^2) <= max X^2 E X^2
    assert (np.abs(squares.mean(0) - variance) <= allowed + 3 * spread * unit).all()


# --- what is not finite ---


@every_codec
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [PLACES[2], PLACES[4], PLACES[6]], ids=str)
def test_a_value_that_is_not_finite_is_never_encoded(codec, value, place):
    found = region(codec, place)
    spots = {0, found.size - 1, found.size // 2, *(min(cut, found.size - 1) for cut in cuts(found)[:3])}
    for spot, kind, in_residual in itertools.product(spots, ("normal", "zero"), (False, True)):
        x, residual = vector(codec, 1, found.size, kind), np.zeros(found.size, np.float32)
        (residual if in_residual else x)[spot] = value
        for feedback in (True, False):
            assert encode(codec, x, residual if in_residual else None, found, feedback=feedback)[0] is NOT_FINITE
    x[:], residual[:] = value, 0
    assert encode(codec, x, residual, found)[0] is NOT_FINITE


@every_codec
def test_a_sum_with_the_residual_that_leaves_the_format_is_not_finite(codec):
    found = region(codec, (Grid(33), 5, 90, 200))
    x, residual = np.zeros(90, codec.working), np.zeros(90, np.float32)
    x[40] = residual[40] = np.finfo(np.float32).max
    made = encode(codec, x, residual, found)[0]
    assert made is NOT_FINITE or codec.working == np.float64


@every_codec
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_values_near_the_end_of_float32_stay_finite_or_are_refused(codec, sign):
    found = region(codec, (Grid(33), 5, 990, 2000))
    magnitude = np.linspace(2e38, 3.4e38, 990)
    x = (magnitude * (sign or np.where(np.arange(990) % 3, 1, -1))).astype(np.float32).astype(codec.working)
    for step in range(20):
        wire, new_residual = encode(codec, x, None, found, _kernels.Stream(1, 1, 1, step))
        if not isinstance(wire, int):
            assert np.isfinite(decode(codec, wire, found)).all()
            assert np.isfinite(new_residual).all()


# --- determinism ---


def message_and_meaning(codec, found, x, residual):
    wire, new_residual = encode(codec, x, residual, found)
    if isinstance(wire, int):
        return [wire]
    y = vector(codec, 9, found.size)
    parts = (
        wire,
        new_residual,
        decode(codec, wire, found),
        decode(codec, wire, found, 1 / 3),
        decode_add(codec, wire, y, found),
    )
    return [part.tobytes() for part in parts]


@every_codec
@pytest.mark.parametrize("place", [PLACES[1], PLACES[6], PLACES[7]], ids=str)
def test_instruction_sets_agree_in_every_bit(codec, place):
    for kind, found, x, residual in lawful(codec, 11, place):
        made = []
        for level in LEVELS:
            with simd(level):
                made.append(message_and_meaning(codec, found, x, residual))
        assert all(each == made[0] for each in made), kind


@every_codec
@pytest.mark.parametrize("place", [(Grid(4096), 100, 150001, 300000), (Grid(33), 0, 99991, 99991)], ids=str)
def test_the_number_of_threads_changes_no_bit(codec, place):
    found = region(codec, place)
    x, residual = vector(codec, 1, found.size, "wide"), vector(codec, 2, found.size).astype(np.float32)
    made = []
    for count in (1, 2, 3):
        with threads(count):
            made.append(message_and_meaning(codec, found, x, residual))
    assert made[0] == made[1] == made[2]


# --- what a decoder refuses ---


@every_codec
@pytest.mark.parametrize("place", [PLACES[2], PLACES[3], PLACES[4]], ids=str)
def test_a_message_that_ends_early_is_refused(codec, place):
    found = region(codec, place)
    wire, _ = encode(codec, vector(codec, 1, found.size), None, found)
    for length in {*range(0, wire.size, max(1, wire.size // 50)), wire.size - 1}:
        y = vector(codec, 2, found.size)
        for read in (codec.decode, codec.decode_add):
            with pytest.raises(WireError):
                read(wire[:length].copy(), y, found)


@every_codec
def test_bytes_after_the_message_are_left_alone(codec):
    found = region(codec, PLACES[6])
    wire, _ = encode(codec, vector(codec, 1, found.size), None, found)
    longer = np.concatenate([wire, np.full(100, 0xFF, np.uint8)])
    y = np.zeros(found.size, codec.working)
    assert codec.decode(longer, y, found) == wire.size
    assert same_bits(y, decode(codec, wire, found))

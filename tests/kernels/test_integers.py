"""The kernels of linear codecs: integers of every width to bytes and back, what is refused, all levels alike."""

import itertools

import numpy as np
import pytest
from plain import LEVELS, table, using

from gqallreduce import WireError, _kernels

TILE = 4096
STREAM = _kernels.Stream(0x0123456789ABCDEF, 0, 5, 7)
# the largest integers of every width and those beside them
LARGEST = sorted({size for width in range(2, 26) for size in (2 ** (width - 1) - 1, 2 ** (width - 2))})
SIZES = (0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 1000, TILE - 1, TILE, TILE + 1, 3 * TILE + 100)


def place(size, start=0):
    """A table of one region."""
    return table(size, start, 1)


def units(unit):
    """The unit of the only region."""
    return np.array([unit], np.float32)


def integers(seed, size, largest, density=1.0):
    rng = np.random.default_rng(seed)
    m = rng.integers(-largest, largest + 1, size)
    m[:1] = largest
    return (m * (rng.random(size) < density)).astype(np.float32)


def encode(m, unit=1.5, terms=2**24 - 1):
    wire = np.full(_kernels.integers_bound(place(m.size), terms) + 3, 0xA5, np.uint8)
    nbytes = _kernels.integers_encode(m, wire[:-3], units(unit), terms, place(m.size))
    assert (wire[-3:] == 0xA5).all()
    return wire[: max(nbytes, 0)].copy()


def decode(wire, size, unit=1.5, terms=2**24 - 1, **options):
    y = np.full(size, np.nan, np.float32)
    assert (
        _kernels.integers_decode(wire, y, units(unit), terms, options.pop("whole", True), place(size), **options)
        == wire.size
    )
    return y


@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("density", [1.0, 0.3, 0.03, 0.001])
def test_integers_of_every_width_come_back_at_every_level(largest, density):
    for size in SIZES:
        m, made = integers(size, size, largest, density), set()
        for level in LEVELS:
            with using(level):
                wire = encode(m)
                np.testing.assert_array_equal(decode(wire, size), m)
                values = decode(wire, size, whole=False)
                np.testing.assert_array_equal(values, m * np.float32(1.5))
                scaled = decode(wire, size, whole=False, scale=1 / 3)
                np.testing.assert_array_equal(scaled, m * np.float32(1.5) * np.float32(1 / 3))
                y = np.arange(size, dtype=np.float32)
                _kernels.integers_decode(wire, y, units(1.5), 2**24 - 1, False, place(size), add=True)
                np.testing.assert_array_equal(y, np.arange(size, dtype=np.float32) + m * np.float32(1.5))
                made.add(wire.tobytes())
        assert len(made) == 1, size


def test_the_bytes_are_those_of_the_shorter_form_and_never_above_the_dense_one():
    for largest, density in itertools.product((1, 2, 5, 100, 1000), (1.0, 0.25, 0.2, 0.1, 0.01, 0.0)):
        m = integers(3, TILE, largest, density)
        top, width = np.abs(m).max(), 2
        while 2 ** (width - 1) - 1 < top:
            width += 1
        places = np.flatnonzero(m)
        gaps = sum(1 + zeros // 255 for zeros in np.diff(places, prepend=-1) - 1)
        codes = -(-places.size * (1 if top == 1 else width) // 8)
        expected = min(1 + TILE * width // 8, 5 + gaps + codes) if places.size else 1
        wire = encode(m)
        assert wire.size == 4 + 2 + expected, (largest, density)
        assert int.from_bytes(wire[4:6], "little") == expected


@pytest.mark.parametrize(
    ("largest", "entries", "dense"), [(1, 10, 2), (1, 9, None), (1, 11, 2), (3, 14, 3), (3, 13, None)]
)
def test_of_two_forms_of_one_length_the_dense_one_is_taken(largest, entries, dense):
    """64 values of 2 bits are 1 + 16 bytes; 10 entries 5 + 10 gaps + 10 signs. Of 3 bits 1 + 24; 5 + 14 + 6."""
    m = np.zeros(64, np.float32)
    m[3 : 3 + 4 * entries : 4] = largest
    for level in LEVELS:
        with using(level):
            made = [encode(m, 1.0)]
            if largest == 1:
                wire = np.zeros(_kernels.integers_bound(place(64), 1), np.uint8)
                nbytes = _kernels.integers_encode_own(m, None, None, wire, units(1.0), False, place(m.size, 0), STREAM)
                made.append(wire[:nbytes])
            for wire in made:
                assert wire[6] == (dense or 128 + (1 if largest == 1 else 3))
                assert wire.size <= 6 + 1 + 64 * (2 if largest == 1 else 3) // 8


@pytest.mark.parametrize("gap", [0, 1, 253, 254, 255, 256, 509, 510, 511, 765])
def test_a_gap_of_any_length_is_written_in_bytes_below_and_of_255(gap):
    m = np.zeros(TILE, np.float32)
    m[gap :: gap + 1][:5] = 1
    for level in LEVELS:
        with using(level):
            own = np.zeros(_kernels.integers_bound(place(TILE), 1), np.uint8)
            nbytes = _kernels.integers_encode_own(2 * m, None, None, own, units(1.5), False, place(m.size, 0), STREAM)
            for wire in (encode(m), own[:nbytes]):
                assert wire[11:-1].tobytes() == 5 * (gap // 255 * b"\xff" + bytes([gap % 255]))
                np.testing.assert_array_equal(decode(wire, TILE), m)


@pytest.mark.parametrize(
    ("gaps", "lawful"), [([3, 0, 1], True), ([3, 0], False), ([3, 0, 1, 0], False), ([3, 7, 0], False)]
)
def test_a_sparse_tile_has_as_many_gaps_as_entries_and_ends_inside(gaps, lawful):
    tile = bytes([128 + 1, 3, 0, len(gaps), 0, *gaps, 0b101])
    wire = np.frombuffer(np.float32(1.5).tobytes() + len(tile).to_bytes(2, "little") + tile, np.uint8)
    for level in LEVELS:
        with using(level):
            if lawful:
                np.testing.assert_array_equal(decode(wire, 10), [0, 0, 0, 1, -1, 0, 1, 0, 0, 0])
            else:
                with pytest.raises(WireError):
                    decode(wire, 10)


@pytest.mark.parametrize("terms", [1, 3, 8, 200])
def test_what_no_sum_of_so_many_terms_can_be_is_neither_written_nor_read(terms):
    for size, density in ((10, 1.0), (TILE, 1.0), (TILE, 0.01), (2 * TILE + 5, 0.01)):
        m = integers(1, size, terms, density)
        np.testing.assert_array_equal(decode(encode(m, terms=terms), size, terms=terms), m)
        m[size // 2] = terms + 1
        with pytest.raises(WireError, match="larger"):
            encode(m, terms=terms)
        for level in LEVELS:
            with using(level), pytest.raises(WireError):
                decode(encode(m), size, terms=terms)


def test_a_sum_that_leaves_float32_is_neither_written_nor_read():
    m = np.zeros(100, np.float32)
    m[60] = -2
    for unit, fits in ((1.7e38, True), (1.8e38, False)):
        wire = np.zeros(_kernels.integers_bound(place(100), 2), np.uint8)
        assert (_kernels.integers_encode(m, wire, units(unit), 2, place(m.size)) > 0) == fits
        message = encode(m, unit=1.0)
        message[:4] = np.frombuffer(np.float32(unit).tobytes(), np.uint8)
        for level in LEVELS:
            with using(level):
                if fits:
                    assert decode(message, 100, unit=unit, whole=False)[60] == np.float32(-2) * np.float32(unit)
                else:
                    with pytest.raises(WireError):
                        decode(message, 100, unit=unit, whole=False)


def test_another_unit_is_refused_where_one_is_agreed():
    m = integers(1, 50, 1)
    wire = encode(m, unit=1.5)
    np.testing.assert_array_equal(decode(wire, 50, unit=-1.0), m)
    with pytest.raises(WireError):
        decode(wire, 50, unit=1.25)
    for unit in (-1.0, -0.0, np.inf, np.nan):
        wire[:4] = np.frombuffer(np.float32(unit).tobytes(), np.uint8)
        with pytest.raises(WireError):
            decode(wire, 50, unit=-1.0)


def test_tiles_of_other_sizes_than_their_heads_say_are_refused():
    m = np.concatenate([integers(1, TILE, 1), integers(2, TILE, 9, 0.01), np.zeros(TILE, np.float32)])
    wire = encode(m)
    sizes = wire[4:10].view("<u2").astype(int)
    for tile, more in itertools.product(range(3), (-1, 1, 2, 40000)):
        flawed = wire.copy()
        flawed[4:10].view("<u2")[tile] = sizes[tile] + more
        for level, threads in itertools.product(LEVELS, (1, 3)):
            with using(level, threads), pytest.raises(WireError):
                decode(flawed, m.size)
    for nbytes in (0, 3, 4, 9, 10, wire.size - 1):
        with pytest.raises(WireError):
            decode(wire[:nbytes], m.size)
    longer = np.append(wire, np.uint8(1))
    assert (
        _kernels.integers_decode(longer, np.empty(m.size, np.float32), units(1.5), 9, True, place(m.size)) == wire.size
    )


@pytest.mark.parametrize("ternary", [False, True])
@pytest.mark.parametrize("unit", [0.5, 1e37, 1e-42, 2.0**-64])
def test_quantizing_in_place_or_into_a_message_is_the_same_at_every_level_and_for_any_threads(ternary, unit):
    rng, made = np.random.default_rng(2), set()
    x, e = (rng.standard_normal(70_003).astype(np.float32) * np.float32(unit) for _ in range(2))
    for level, threads in [*((level, 1) for level in LEVELS), (LEVELS[-1], 3)]:
        with using(level, threads):
            m, r, new_residual = x.copy(), np.empty_like(x), np.empty_like(x)
            assert not _kernels.integers_quantize(m, e, r, m, units(unit), ternary, place(m.size, 13), STREAM)
            wire = np.zeros(_kernels.integers_bound(place(x.size), 1), np.uint8)
            nbytes = _kernels.integers_encode_own(
                x, e, new_residual, wire, units(unit), ternary, place(x.size, 13), STREAM
            )
            np.testing.assert_array_equal(decode(wire[:nbytes], x.size, unit=unit), m)
            np.testing.assert_array_equal(new_residual, r)
            np.testing.assert_array_equal(wire[:nbytes], encode(m, unit, 1))
            np.testing.assert_array_equal(r, x + e - m * np.float32(unit))
            made.add((m.tobytes(), r.tobytes(), wire[:nbytes].tobytes()))
    assert len(made) == 1
    assert set(np.unique(m)) == {-1, 0, 1}


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("size", [*SIZES, 70_003])
def test_values_above_the_unit_are_counted_alike_at_every_level_and_for_any_threads(feedback, size):
    rng = np.random.default_rng(size)
    x = rng.standard_normal(size).astype(np.float32)
    e = rng.standard_normal(size).astype(np.float32) if feedback else None
    v = x + e if feedback else x
    for unit in (0.0, 0.5, float(np.abs(v).max(initial=0)), float(np.median(np.abs(v))) if size else 1.0):
        for level, threads in [*((level, 1) for level in LEVELS), (LEVELS[-1], 3)]:
            kept, encoding, by_threshold = (_kernels.Stream(1, 2, 3, 4) for _ in range(3))
            with using(level, threads):
                wire = np.zeros(_kernels.integers_bound(place(size), 1), np.uint8)
                _kernels.integers_quantize(x, e, None, np.empty_like(x), units(unit), True, place(x.size, 5), kept)
                _kernels.integers_encode_own(x, e, None, wire, units(unit), True, place(x.size, 5), encoding)
                _kernels.integers_quantize(
                    x, e, None, np.empty_like(x), units(unit), False, place(x.size, 5), by_threshold
                )
            expected = np.count_nonzero(np.abs(v) > np.float32(unit))
            assert (kept.clipped, encoding.clipped, by_threshold.clipped) == (expected, expected, 0), (level, unit)


@pytest.mark.parametrize("ternary", [False, True])
def test_what_is_not_finite_stays_where_it_is(ternary):
    for level, value, at in itertools.product(LEVELS, (np.nan, -np.inf), (0, 3, 17, 600, 999)):
        x = np.linspace(-3, 3, 1000, dtype=np.float32)
        x[at] = value
        with using(level):
            m = np.zeros_like(x)
            assert _kernels.integers_quantize(x, None, None, m, units(1.0), ternary, place(x.size, 0), STREAM) == 1
            np.testing.assert_array_equal(np.flatnonzero(~np.isfinite(m)), [at])
            wire = np.zeros(_kernels.integers_bound(place(1000), 1), np.uint8)
            assert (
                _kernels.integers_encode_own(x, None, None, wire, units(1.0), ternary, place(x.size, 0), STREAM) == -1
            )


def test_the_number_of_threads_changes_no_byte_of_a_sum():
    m, made = integers(4, 200_003, 9, 0.5), set()
    m[50_000:90_000] = 0
    for threads in (1, 2, 3, 5):
        with using(LEVELS[-1], threads):
            wire = encode(m)
            np.testing.assert_array_equal(decode(wire, m.size), m)
            made.add(wire.tobytes())
    assert len(made) == 1


def measured(x, e, squares):
    largest, totals = _kernels.measure(x, e, squares, place(x.size))
    return float(largest[0]), float(totals[0])


def test_a_measure_is_the_largest_magnitude_and_the_sum_of_squares():
    x = np.random.default_rng(1).standard_normal(9000).astype(np.float32)
    e = np.float32(0.3) * x[::-1].copy()
    made = set()
    for level in LEVELS:
        with using(level):
            made.add(measured(x, e, True))
            assert measured(x, None, False) == (np.abs(x).max(), 0.0)
    ((largest, squares),) = made
    assert largest == np.abs(x + e).max()
    np.testing.assert_allclose(squares, ((x + e).astype(np.float64) ** 2).sum(), rtol=1e-12)
    assert measured(x[:0], None, True) == (0.0, 0.0)

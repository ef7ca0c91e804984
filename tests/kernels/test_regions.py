"""A table of many regions gives what its regions give one at a time: byte for byte, bit for bit."""

import numpy as np
import pytest
from plain import LEVELS, every_level, floats, largest, same_bits, using

from gqallreduce import WireError, _kernels
from gqallreduce._kernels import Regions, Stream

f32 = np.float32
KEYS = np.array([0, 1, 2**64 - 1, 2**63 + 5, 77], np.uint64)
STEPS = np.array([5, 2**32 - 1, 0, 7, 7], np.uint32)
GRIDS = [(1, 1), (7, 1), (33, 2), (64, 1), (300, 7), (512, 1), (4096, 1), (32767, 1), (60000, 2)]
SIZES = [0, 1, 1, 2, 7, 16, 31, 33, 64, 100, 300, 513, 4097]
every_seed = pytest.mark.parametrize("seed", range(12))


def streams():
    return Stream(KEYS, 3, 9, STEPS)


def stream_of(segment):
    return Stream(int(KEYS[segment]), 3, 9, int(STEPS[segment]))


def rows_of(seed, whole=False):
    """(size, start, run, parts, segment) of many regions; `whole`: no run in parts."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(int(rng.integers(0, 30))):
        run, parts = GRIDS[rng.integers(len(GRIDS))]
        start = int(rng.integers(0, [2, 1000, 2**40][rng.integers(3)]))
        size, segment = int(rng.choice(SIZES)), int(rng.integers(len(KEYS)))
        rows.append((size, start, run, 1 if whole else parts, segment))
    return rows


class OneBit:
    whole = False

    def encode(self, x, e, r, regions, stream, units):
        wire = np.zeros(_kernels.onebit_nbytes(regions), np.uint8)
        return None if _kernels.onebit_encode(x, e, r, wire, regions) else wire

    def decode(self, wire, y, regions, units, scale, add):
        if add:
            _kernels.onebit_decode_add(wire, y, regions)
        else:
            _kernels.onebit_decode(wire, y, regions, scale)
        return wire.size


class Levels:
    whole = True

    def __init__(self, bits, l2):
        self.levels, self.l2 = _kernels.Levels.uniform(bits, True), l2

    def encode(self, x, e, r, regions, stream, units):
        wire = np.zeros(_kernels.levels_nbytes(regions, self.levels), np.uint8)
        return None if _kernels.levels_encode(x, e, r, wire, self.levels, self.l2, regions, stream) else wire

    def decode(self, wire, y, regions, units, scale, add):
        if add:
            _kernels.levels_decode_add(wire, y, self.levels, regions)
        else:
            _kernels.levels_decode(wire, y, self.levels, regions, scale)
        return wire.size


class Columns:
    whole = False

    def __init__(self, separate):
        self.separate = separate

    def encode(self, x, e, r, regions, stream, units):
        bound = _kernels.adaptive_select_bound(regions, 5)
        index, value, counts = np.empty(bound, np.uint32), np.empty(bound, f32), np.empty(len(regions), np.int64)
        count = _kernels.adaptive_select_columns(x, e, r, index, value, counts, regions, 5, self.separate)
        if count < 0:
            return None
        wire = np.zeros(16 * x.size + 4 * len(regions) + 2 * count, np.uint8)
        nbytes = _kernels.adaptive_encode(index[:count], value[:count], counts, r, wire, regions)
        return None if nbytes < 0 else wire[:nbytes]

    def decode(self, wire, y, regions, units, scale, add):
        if add:
            return _kernels.adaptive_decode_add(wire, y, regions)
        return _kernels.adaptive_decode(wire, y, regions, scale)


class Own:
    whole = False

    def __init__(self, ternary):
        self.ternary = ternary

    def encode(self, x, e, r, regions, stream, units):
        wire = np.zeros(_kernels.integers_bound(regions, 1), np.uint8)
        nbytes = _kernels.integers_encode_own(x, e, r, wire, units, self.ternary, regions, stream)
        return None if nbytes < 0 else wire[:nbytes]

    def decode(self, wire, y, regions, units, scale, add):
        return _kernels.integers_decode(wire, y, units, 9, False, regions, scale, add)


class Sums(Own):
    """Of integers; what is lost in making them is written to r."""

    def encode(self, x, e, r, regions, stream, units):
        v = x if e is None else x + e
        m = np.clip(np.round(v), -9, 9)
        wire = np.zeros(_kernels.integers_bound(regions, 9), np.uint8)
        nbytes = _kernels.integers_encode(m, wire, units, 9, regions)
        if r is not None:
            r[:] = v - m
        return None if nbytes < 0 else wire[:nbytes]


FAMILIES = {
    "onebit": OneBit(),
    "levels": Levels(4, False),
    "levels l2": Levels(3, True),
    "columns": Columns(False),
    "columns separate": Columns(True),
    "threshold": Own(False),
    "ternary": Own(True),
    "sums": Sums(False),
}
every_family = pytest.mark.parametrize("name", FAMILIES)


def places(rows):
    """Where each row's elements are, with the table that it is alone."""
    begin = 0
    for number, row in enumerate(rows):
        yield number, slice(begin, begin + row[0]), Regions([(*row[:4], 0)]), row[4]
        begin += row[0]


def units_for(rows):
    return np.linspace(0.25, 2, len(rows), dtype=f32)


def decoded(family, wire, x, regions, units):
    """What decoding in every way gives; the bytes read are all."""
    made = []
    for scale, add in ((1.0, False), (0.3, False), (1.0, True)):
        y = x.copy() if add else np.full(x.size, np.nan, f32)
        assert family.decode(wire, y, regions, units, scale, add) == wire.size
        made.append(y)
    return np.array(made)


@every_level
@every_family
@every_seed
def test_a_table_gives_what_its_regions_give_one_at_a_time(level, name, seed):
    family = FAMILIES[name]
    rows = rows_of(seed, family.whole)
    regions, units, stream, clipped, at = Regions(rows), units_for(rows), streams(), 0, 0
    x = floats(seed, regions.size)
    e = floats(seed + 1, regions.size, "steps") if seed % 3 else None
    r = np.full(x.size, 7, f32) if seed % 2 or e is not None else None
    with using(level):
        wire = family.encode(x, e, r, regions, stream, units)
        y = decoded(family, wire, x, regions, units)
        for number, place, one, segment in places(rows):
            mine, unit, residual = stream_of(segment), units[number : number + 1], None if e is None else e[place]
            new_residual = None if r is None else np.full(one.size, 7, f32)
            message = family.encode(x[place], residual, new_residual, one, mine, unit)
            assert same_bits(wire[at : at + message.size], message)
            assert r is None or same_bits(r[place], new_residual)
            assert same_bits(y[:, place], decoded(family, message, x[place], one, unit))
            at, clipped = at + message.size, clipped + mine.clipped
    assert at == wire.size
    assert stream.clipped == clipped


@every_level
@every_seed
@pytest.mark.parametrize("ternary", [False, True])
def test_quantizing_and_measuring_a_table(level, seed, ternary):
    rows = rows_of(seed)
    regions, units, stream = Regions(rows), units_for(rows), streams()
    x, e = floats(seed, regions.size), floats(seed + 1, regions.size)
    r, m, clipped = np.empty_like(x), np.empty_like(x), 0
    with using(level):
        assert not _kernels.integers_quantize(x, e, r, m, units, ternary, regions, stream)
        largest, totals = _kernels.measure(x, e, True, regions)
        for number, place, one, segment in places(rows):
            new_residual, quantized, mine = np.empty(one.size, f32), np.empty(one.size, f32), stream_of(segment)
            _kernels.integers_quantize(
                x[place], e[place], new_residual, quantized, units[number : number + 1], ternary, one, mine
            )
            assert same_bits(m[place], quantized)
            assert same_bits(r[place], new_residual)
            measured = _kernels.measure(x[place], e[place], True, one)
            assert (largest[number], totals[number]) == (measured[0][0], measured[1][0])
            clipped += mine.clipped
    assert stream.clipped == clipped
    assert largest.dtype == f32
    assert totals.dtype == np.float64


@every_family
def test_threads_share_the_large_regions_of_a_table(name):
    rows = [(3, 5, 64, 1, 1), (200_003, 9, 4096, 1, 0), (0, 0, 1, 1, 0), (70_001, 2**33, 512, 1, 2), (40, 0, 64, 1, 1)]
    regions, units, family = Regions(rows), units_for(rows), FAMILIES[name]
    x, e, made = floats(1, regions.size), floats(2, regions.size), set()
    for level, threads in ((LEVELS[0], 1), (LEVELS[-1], 1), (LEVELS[-1], 3)):
        with using(level, threads):
            r = np.empty_like(x)
            wire = family.encode(x, e, r, regions, streams(), units)
            made.add((wire.tobytes(), r.tobytes(), decoded(family, wire, x, regions, units).tobytes()))
    assert len(made) == 1


@every_level
@every_family
def test_a_value_that_is_not_finite_in_any_region_is_reported(level, name):
    rows = [(3, 5, 64, 1, 1), (0, 0, 1, 1, 0), (100, 9, 33, 1, 0), (1, 0, 7, 1, 2)]
    regions, units = Regions(rows), units_for(rows)
    with using(level):
        for place in (0, 2, 3, 60, 103):
            x = np.ones(regions.size, f32)
            assert FAMILIES[name].encode(x, None, x.copy(), regions, streams(), units) is not None
            x[place] = np.inf
            if name == "sums":
                units = np.full(len(rows), 3e38, f32)
                x[place] = 5
            assert FAMILIES[name].encode(x, None, x.copy(), regions, streams(), units) is None
            units = units_for(rows)


def test_a_unit_that_is_not_finite_is_reported_as_a_value_would_be():
    regions, x = Regions([(4, 0, 1, 1, 0), (4, 4, 1, 1, 0)]), np.ones(8, f32)
    wire = np.zeros(_kernels.integers_bound(regions, 1), np.uint8)
    for units in ([1, np.inf], [np.nan, 1]):
        assert _kernels.integers_encode_own(x, None, None, wire, np.array(units, f32), True, regions, streams()) == -1


@every_level
@every_family
def test_a_malformed_message_of_any_region_is_refused(level, name):
    """Cut anywhere, or with a number that is not finite in one of the messages."""
    family, rows = FAMILIES[name], [(30, 5, 64, 1, 1), (9, 0, 16, 1, 0), (100, 9, 512, 1, 3)]
    regions, units = Regions(rows), units_for(rows)
    x = floats(1, regions.size)
    with using(level):
        wire, begin = family.encode(x, None, None, regions, streams(), units), 0
        for nbytes in range(wire.size):
            with pytest.raises(WireError):
                family.decode(wire[:nbytes], x.copy(), regions, units, 1.0, False)
        for number, place, one, segment in places(rows):
            flawed = wire.copy()
            number_at = begin + (4 if name.startswith("columns") else 0)
            flawed[number_at : number_at + 4] = 255
            for add in (False, True):
                with pytest.raises(WireError):
                    family.decode(flawed, x.copy(), regions, units, 1.0, add)
            message = family.encode(x[place], None, None, one, stream_of(segment), units[number : number + 1])
            begin += message.size


@pytest.mark.parametrize("name", ["columns", "threshold", "sums"])
def test_messages_of_varying_length_may_be_followed_by_anything(name):
    rows = [(30, 5, 64, 1, 1), (9, 0, 16, 1, 0)]
    regions, units, y = Regions(rows), units_for(rows), np.empty(39, f32)
    wire = FAMILIES[name].encode(floats(1, 39), None, None, regions, streams(), units)
    longer = np.append(wire, np.full(9, 255, np.uint8))
    assert FAMILIES[name].decode(longer, y, regions, units, 1.0, False) == wire.size


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((5, 0, 4, 5, 0), "a run of 4 elements cannot have 5 parts"),
        ((5, 0, 4, 0, 0), "cannot have 0 parts"),
        ((5, 0, 0, 0, 0), "a run of 0 elements"),
        ((-1, 0, 4, 1, 0), "a region of -1 elements"),
        ((5, -2, 4, 1, 0), "from -2 on"),
        ((5, 0, 4, 1, -3), "in segment -3"),
        ((5, 0, 4, 1), "unpack"),
        ((5, 0, 4, 1, 0, 0), "unpack"),
        ((2**63 - 1, 0, 4, 1, 0), "2\\^63"),
    ],
)
def test_a_table_of_regions_that_cannot_be_is_refused(row, text):
    with pytest.raises(ValueError, match=text):
        Regions([(1, 0, 1, 1, 0), row])


def test_a_table_shows_what_it_was_made_from():
    rows = [(30, 5, 64, 2, 1), (9, 0, 16, 1, 0), (0, 2**40, 3, 3, 4)]
    regions = Regions(rows)
    assert (len(regions), regions.size, regions.rows) == (3, 39, tuple(rows))
    assert repr(regions) == f"Regions({rows})"
    assert regions.sizes.tolist() == [30, 9, 0]
    assert regions.segments.tolist() == [1, 0, 4]
    nothing = Regions([])
    assert (len(nothing), nothing.size, nothing.rows) == (0, 0, ())
    for name in FAMILIES:
        wire = FAMILIES[name].encode(np.zeros(0, f32), None, None, nothing, streams(), np.zeros(0, f32))
        assert wire.size == 0


def calls(regions, x, r, y, wire, units, stream):
    """Every kernel, on these arrays."""
    levels, index, counts = _kernels.Levels.uniform(4, True), np.zeros(x.size, np.uint32), np.zeros(2, np.int64)
    return {
        "onebit_encode": lambda: _kernels.onebit_encode(x, None, r, wire, regions),
        "onebit_decode": lambda: _kernels.onebit_decode(wire, y, regions),
        "onebit_decode_add": lambda: _kernels.onebit_decode_add(wire, y, regions),
        "levels_encode": lambda: _kernels.levels_encode(x, None, r, wire, levels, False, regions, stream),
        "levels_decode": lambda: _kernels.levels_decode(wire, y, levels, regions),
        "levels_decode_add": lambda: _kernels.levels_decode_add(wire, y, levels, regions),
        "select_columns": lambda: _kernels.adaptive_select_columns(x, None, r, index, y, counts, regions, 3, False),
        "adaptive_encode": lambda: _kernels.adaptive_encode(index[:2], y[:2], counts + 1, r, wire, regions),
        "adaptive_decode": lambda: _kernels.adaptive_decode(wire, y, regions),
        "adaptive_decode_add": lambda: _kernels.adaptive_decode_add(wire, y, regions),
        "encode_own": lambda: _kernels.integers_encode_own(x, None, r, wire, units, True, regions, stream),
        "quantize": lambda: _kernels.integers_quantize(x, None, r, y, units, True, regions, stream),
        "encode": lambda: _kernels.integers_encode(x, wire, units, 9, regions),
        "decode": lambda: _kernels.integers_decode(wire, y, units, 9, True, regions),
        "measure": lambda: _kernels.measure(x, None, True, regions),
    }


REGIONS = Regions([(5, 0, 8, 1, 0), (3, 0, 8, 1, 1)])
# by what is wrong: which of the arrays get another size, what else is given, and the calls that must notice
WRONG = {
    "too short": (7, {}, None),
    "too long": (9, {}, None),
    "a unit too few": (8, {"units": np.ones(1, f32)}, ("encode_own", "quantize", "encode", "decode")),
    "a unit too many": (8, {"units": np.ones(3, f32)}, ("encode_own", "quantize", "encode", "decode")),
    "no stream": (8, {"stream": Stream(1, 2, 3, 4)}, ("levels_encode", "encode_own", "quantize")),
    "parts": (8, {"regions": Regions([(8, 0, 8, 2, 0)])}, ("levels_encode", "levels_decode", "levels_decode_add")),
}


@pytest.mark.parametrize("fault", WRONG)
def test_arrays_that_do_not_fit_the_table_are_refused_and_nothing_is_written(fault):
    size, given, noticing = WRONG[fault]
    x, r, y, wire = np.ones(size, f32), np.full(size, 7, f32), np.full(size, 7, f32), np.full(64, 7, np.uint8)
    standard = {"regions": REGIONS, "units": np.ones(2, f32), "stream": streams()}
    made = calls(x=x, r=r, y=y, wire=wire, **{**standard, **given})
    for name in noticing or made:
        with pytest.raises(ValueError, match="got"):
            made[name]()
        assert (r == 7).all()
        assert (y == 7).all()
        assert (wire == 7).all()


def test_counts_that_are_not_those_of_the_kept_values_are_refused():
    index, value, wire = np.arange(3, dtype=np.uint32), np.ones(3, f32), np.full(99, 7, np.uint8)
    for counts in ([1, 1], [2, 2], [4, -1], [-1, 4], [3], [1, 1, 1], [2**62, 2**62]):
        with pytest.raises(ValueError, match="got"):
            _kernels.adaptive_encode(index, value, np.array(counts, np.int64), None, wire, REGIONS)
    assert (wire == 7).all()


def test_a_stream_of_several_segments_is_one_of_each():
    assert len(streams()) == len(KEYS)
    for stream in (Stream(KEYS, 3, 9, 7), Stream(5, 3, 9, STEPS), streams()):
        with pytest.raises(ValueError, match="streams: got 5, expected 1"):
            print(stream.words)
        with pytest.raises(ValueError, match="streams: got 5, expected 1"):
            _kernels.random16(stream, 0, np.zeros(4, np.uint16))
    assert Stream(KEYS[3:4], 3, 9, 7).words == stream_of(3).words
    assert Stream(int(KEYS[3]), 3, 9, STEPS[3:4]).words == stream_of(3).words
    for key, step in ((KEYS, STEPS[:4]), (KEYS.astype(np.int64), 5), (KEYS, STEPS.astype(np.uint64)), (KEYS[None], 5)):
        with pytest.raises(ValueError, match="got"):
            Stream(key, 3, 9, step)


@every_level
@every_seed
@pytest.mark.parametrize("separate", [False, True])
def test_the_largest_of_each_region_wherever_its_columns_are(level, seed, separate):
    rows = [(min(row[0], 1000), *row[1:]) for row in rows_of(seed)]
    regions, (x, e) = Regions(rows), (floats(seed + at, Regions(rows).size, "steps") for at in range(2))
    index, value, counts = np.empty(x.size, np.uint32), np.empty(x.size, f32), np.empty(len(rows), np.int64)
    r = np.empty_like(x)
    with using(level):
        count = _kernels.select_regions(x, e, r, index, value, counts, regions, 7, separate)
    assert same_bits(r, x + e)
    assert count == counts.sum()
    expected = [largest(r[place], max(1, one.size // 7), separate) for _, place, one, _ in places(rows)]
    assert counts.tolist() == [len(each) for each in expected]
    assert index[:count].tolist() == [place for each in expected for place in each]
    expected = [r[place][kept] for (_, place, _, _), kept in zip(places(rows), expected, strict=True)]
    assert same_bits(value[:count], np.concatenate([np.zeros(0, f32), *expected]))


def test_regions_that_are_not_short_and_wrong_rooms_are_refused():
    most = _kernels.TALLEST_REGION
    x, index, counts = np.ones(most + 1, f32), np.full(most + 1, 7, np.uint32), np.full(1, 7, np.int64)
    value = x.copy()
    row = (0, most + 1, 1, 0)
    with pytest.raises(ValueError, match="got 32768, expected at most 32767"):
        _kernels.select_regions(x, None, None, index, value, counts, Regions([(most + 1, *row)]), 1, False)
    fitting = Regions([(most, *row)])
    for given in (
        (x, None, None, index, value, counts, fitting, 1, False),
        (x[1:], None, x, index, value, counts, fitting, 1, False),
        (x[1:], None, None, index[:9], value[:9], counts, fitting, 1, False),
        (x[1:], None, None, index, value[1:], counts, fitting, 1, False),
        (x[1:], None, None, index, value, counts[1:], fitting, 1, False),
        (x[1:], None, None, index, value, counts, fitting, 0, False),
    ):
        with pytest.raises(ValueError, match="got"):
            _kernels.select_regions(*given)
    assert (index == 7).all()
    assert (counts == 7).all()


@pytest.mark.parametrize("seed", range(20))
def test_places_in_all_regions_become_places_in_each(seed):
    rows = rows_of(seed)
    regions, counts = Regions(rows), np.full(len(rows), 9, np.int64)
    chosen = np.random.default_rng(seed).random(regions.size) < 0.2
    index = np.flatnonzero(chosen).astype(np.uint32)
    _kernels.split(index, counts, regions)
    expected = [np.flatnonzero(chosen[place]) for _, place, _, _ in places(rows)]
    assert counts.tolist() == [len(each) for each in expected]
    assert index.tolist() == [place for each in expected for place in each]
    with pytest.raises(ValueError, match="expected at most"):
        _kernels.split(np.array([regions.size], np.uint32), counts, regions)


# --- groups ---


def test_tensors_are_put_end_to_end_and_taken_apart():
    arrays = [np.arange(10, dtype=np.float32), None, 100 + np.arange(5, dtype=np.float32)]
    regions = Regions([(3, 7, 1, 1, 0), (2, 0, 1, 1, 1), (0, 5, 1, 1, 2), (2, 3, 1, 1, 2)])
    out = np.full(7, -1, np.float32)
    _kernels.gather(arrays, regions, out)
    assert out.tolist() == [7, 8, 9, -1, -1, 103, 104]
    _kernels.scatter(out + 1, arrays, regions)
    assert arrays[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert arrays[2].tolist() == [100, 101, 102, 104, 105]


@pytest.mark.parametrize("call", [_kernels.gather, lambda arrays, regions, x: _kernels.scatter(x, arrays, regions)])
def test_what_does_not_fit_is_an_error(call):
    room = np.zeros(3, np.float32)
    for arrays, regions, size, said in (
        ([room], Regions([(3, 1, 1, 1, 0)]), 3, "segment 0: got 3 elements, expected at least 4"),
        ([room], Regions([(3, 0, 1, 1, 1)]), 3, "arrays: got 1, expected at least 2"),
        ([room], Regions([(3, 0, 1, 1, 0)]), 2, "got 2, expected 3"),
        ([np.zeros(3)], Regions([(3, 0, 1, 1, 0)]), 3, "Buffer dtype"),
    ):
        with pytest.raises(ValueError, match=said):
            call(arrays, regions, np.ones(size, np.float32))
    assert not room.any()


def test_where_an_array_lies():
    array = np.zeros((4, 6), np.float32)
    begin = array.ctypes.data
    assert _kernels.bounds(array) == (begin, begin + 96)
    assert _kernels.bounds(array[1:3, 2:4]) == (begin + 32, begin + 64)
    assert _kernels.bounds(array.T[::2]) == (begin, begin + 92)
    assert _kernels.bounds(array[:0])[0] == _kernels.bounds(array[:0])[1]


def test_the_stream_of_one_segment():
    keys, steps = np.array([5, 6, 7], np.uint64), np.array([1, 2, 3], np.uint32)
    streams = _kernels.Stream(keys, 9, 8, steps)
    for segment in range(3):
        one = _kernels.Stream(int(keys[segment]), 9, 8, int(steps[segment]))
        assert streams.alone(segment).words == one.words
    with pytest.raises(ValueError, match="got 3, expected one below 3"):
        streams.alone(3)

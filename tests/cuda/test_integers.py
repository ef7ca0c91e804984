"""The GPU's kernels of the linear codecs give the CPU's bytes for spans of regions."""

import itertools

import numpy as np
import pytest
from devices import both_orders, launcher, needs_device, same_numbers
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, SIZES, floats, same_bits, table
from serial import shifted, status

from gqallreduce import _kernels
from gqallreduce.backends.cuda import integers as launches
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE
from gqallreduce.codecs.terngrad import TernGrad
from gqallreduce.coding.layout import BLOCK, Grid, Piece, Region, Span
from gqallreduce.errors import WireError

pytestmark = needs_device
TILE = 4096
MOST = 2**24 - 1
STREAM = _kernels.Stream(0x123456789ABCDEF0, 513, 7, 0xFFFFFFFF)
CUTS = [[4096], [1], [1, 4095, 3], [4097, 8192, 5000], [30000], [77] * 9]
every_cut = pytest.mark.parametrize("sizes", CUTS, ids=str)
both_ways = pytest.mark.parametrize("ternary", [False, True], ids=["threshold", "ternary"])


def span_of(sizes, start=0) -> Span:
    edges = [start, *itertools.accumulate(sizes, initial=start)][1:]
    return Span([Region(begin, end - begin, Grid(1), edges[-1]) for begin, end in itertools.pairwise(edges)])


def own(span, region):
    """Where a region's values are in the span."""
    return slice(region.start - span.start, region.start - span.start + region.size)


class Device:
    """A span with its table and scratch, whose content is arbitrary."""

    def __init__(self, span, descending=False):
        self.launch, self.span = launcher(descending), span
        self.regions = launches.tile_table(span)
        self.scratch = shifted(np.full(launches.scratch_nbytes(span), 0xA5, np.uint8), 0)
        self.length, self.found = np.full(1, 99, np.uint64), status()

    def place(self):
        return self.span, self.regions

    def ends(self):
        return self.scratch, self.length, self.found


def joined(span, encode, terms=1):
    """The messages of all regions as `encode(place, wire)` makes them on the CPU; None if one is refused."""
    messages = []
    for region in span.regions:
        wire = np.empty(_kernels.integers_bound(region.table, terms), np.uint8)
        nbytes = encode(own(span, region), wire, region)
        if nbytes < 0:
            return None
        messages.append(wire[:nbytes])
    return np.concatenate(messages)


def cut_off(array, place):
    return None if array is None else array[place]


def room(span, terms, shift=0):
    """Bytes for a span's message, and three that must stay."""
    bound = sum(_kernels.integers_bound(region.table, terms) for region in span.regions)
    return shifted(np.full(bound + 3, 0xEE, np.uint8), shift)


def taken(device, wire):
    """The message, which ends within its room."""
    assert (wire[-3:] == 0xEE).all()
    assert device.length[0] <= wire.size - 3
    return wire[: int(device.length[0])]


def check_own(x, e, unit, ternary, span, units=None, descending=False, shift=0):
    """Own values to bytes, with and without feedback; returns the bytes, None where the CPU refuses the values."""
    for keep in (True, False):
        device, wire = Device(span, descending), room(span, 1, shift)
        r, new_residual = (shifted(np.full(x.size, 7, np.float32), shift), np.empty_like(x)) if keep else (None, None)
        given = x, e, r, wire, unit, units, ternary, *device.place(), STREAM
        launches.integers_encode_own(device.launch, *given, *device.ends())

        def encode(at, to, region, new_residual=new_residual):
            its_unit = unit if units is None else units[span.regions.index(region)]
            how = np.array([its_unit], np.float32), ternary, region.table, STREAM
            return _kernels.integers_encode_own(x[at], cut_off(e, at), cut_off(new_residual, at), to, *how)

        expected = joined(span, encode)
        assert device.found[0] == (NOT_FINITE if expected is None else 0)
        message = taken(device, wire)
        if expected is not None:
            assert same_bits(message, expected)
            assert not keep or same_bits(r, new_residual)
    return None if expected is None else message


def check_sums(m, unit, terms, span, descending=False, shift=0):
    device, wire = Device(span, descending), room(span, terms, shift)
    launches.integers_encode(device.launch, m, wire, unit, terms, *device.place(), *device.ends())
    units = np.array([unit], np.float32)

    def encode(at, to, region):
        return _kernels.integers_encode(m[at], to, units, terms, region.table)

    expected = joined(span, encode, terms)
    assert device.found[0] == (NOT_FINITE if expected is None else 0)
    if expected is not None:
        assert same_bits(taken(device, wire), expected)
    return expected


def read_by_cpu(wire, y, unit, whole, scale, add, terms, span) -> bool:
    """False if the bytes are not exactly the messages of all regions."""
    at, units = 0, np.array([unit], np.float32)
    for region in span.regions:
        part = y[own(span, region)]
        try:
            at += _kernels.integers_decode(wire[at:], part, units, terms, whole, region.table, scale, add)
        except WireError:
            return False
    return at == wire.size


def check_read(wire, unit, terms, span, descending=False, shift=0, ways=None):
    """Decode in every way, or in these; returns whether the bytes were taken."""
    device, wire = Device(span, descending), wire.copy()  # it ends where its memory ends, for the address sanitizer
    for whole, scale, add in ways or ((True, 1.0, False), (True, 1.0, True), (False, -0.3, False), (False, 1.0, True)):
        y, expected = (shifted(-np.zeros(span.size, np.float32), at) for at in (shift, 0))
        y[::3] = expected[::3] = 2.5
        device.found[0] = 0
        given = wire, y, unit, whole, scale, add, terms
        launches.integers_decode(device.launch, *given, *device.place(), device.scratch, device.found)
        good = read_by_cpu(wire, expected, unit, whole, scale, add, terms, span)
        assert device.found[0] == (0 if good else MALFORMED)
        assert not good or same_bits(y, expected)
    return good


def integers(seed, size, largest, density=1.0):
    rng = np.random.default_rng(seed)
    m = rng.integers(-largest, largest + 1, size)
    m[:1] = largest
    return (m * (rng.random(size) < density)).astype(np.float32)


@pytest.mark.races
@both_orders
@both_ways
@every_cut
def test_own_values_of_spans(sizes, ternary, descending):
    span = span_of(sizes, 301)
    for unit, shift in ((1.5, 0), (0.02, 1), (3.5, 3)):
        x, e = shifted(floats(1, span.size), shift), floats(2, span.size)
        check_own(x, None, unit, ternary, span, descending=descending, shift=shift)
        message = check_own(x, e, unit, ternary, span, descending=descending, shift=shift)
        assert check_read(message, unit, 1, span, descending, shift)
        assert check_read(message, -1.0, 3, span, descending, shift, [(False, 0.5, False)])


@both_ways
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_values_of_any_number(kind, ternary):
    for size in SIZES[1:]:
        span, x = span_of([size], 2**40 + 5), floats(size, size, kind)
        unit = float(np.abs(x).max()) or 1.0
        message = check_own(x, floats(size + 1, size, kind), unit, ternary, span)
        assert message is None or check_read(message, unit, 1, span, ways=[(False, 1.0, False)])


@pytest.mark.races
@both_ways
def test_each_region_may_have_a_unit_of_its_own(ternary):
    span, units = span_of([5000, 1, 4096, 900]), np.array([0.5, 0.0, 1e-42, 3e38], np.float32)
    message = check_own(floats(1, span.size), floats(2, span.size), -1.0, ternary, span, units)
    assert check_read(message, -1.0, 1, span)


@both_ways
@pytest.mark.parametrize("flaw", [np.nan, np.inf, -np.inf])
def test_own_values_that_are_not_finite_are_reported(flaw, ternary):
    span = span_of([5000, 3000])
    for at in (0, 4095, 4999, 5000, 7999):
        x = floats(1, span.size)
        x[at] = flaw
        assert check_own(x, None, 0.5, ternary, span) is None


@pytest.mark.races
@both_orders
@both_ways
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 4096, 70003])
def test_values_are_quantized_as_the_cpu_quantizes_them(n, ternary, descending):
    for unit, flaw, shift in ((0.7, None, 0), (1e-42, None, 1), (0.7, np.nan, 2), (0.7, -np.inf, 0)):
        x, e = floats(1, n), floats(2, n)
        if flaw is not None:
            x[n // 2 : n // 2 + 1] = flaw
        for residual, keep in ((e, True), (None, False)):
            ours, theirs, found = shifted(x, shift), x.copy(), status()
            r, new_residual = (shifted(e, shift), np.empty_like(x)) if keep else (None, None)
            first, units = 2**35 - 1000, np.array([unit], np.float32)
            launches.integers_quantize(
                launcher(descending), ours, residual, r, ours, unit, ternary, first, STREAM, found
            )
            bad = _kernels.integers_quantize(
                theirs, residual, new_residual, theirs, units, ternary, table(n, first, 1), STREAM
            )
            assert found[0] == (NOT_FINITE if bad else 0)
            assert same_numbers(ours, theirs)
            assert not keep or same_numbers(r, new_residual)


@both_orders
@pytest.mark.parametrize("density", [1.0, 0.3, 0.03, 0.001])
def test_integers_of_every_width(density, descending):
    for width in range(2, 26):
        for largest in (2 ** (width - 1) - 1, 2 ** (width - 2)):
            span = span_of([4096 - width, 1, 500], width)
            message = check_sums(integers(width, span.size, largest, density), 1.5, MOST, span, descending, width % 4)
            assert check_read(message, 1.5, MOST, span, descending, width % 4)


@pytest.mark.races
@both_orders
@every_cut
def test_sums_of_spans(sizes, descending):
    span = span_of(sizes)
    for largest, density in itertools.product((1, 2, 5), (1.0, 0.22, 0.1, 0.002, 0.0)):
        message = check_sums(integers(1, span.size, largest, density), 0.1, 8, span, descending)
        assert check_read(message, 0.1, 8, span, descending)


@pytest.mark.parametrize("places", [[], [0], [4095], [254], [255], [256], [44, 300, 303], [0, 255, 511, 4095]])
def test_gaps_of_any_length(places):
    m, span = np.zeros(TILE, np.float32), span_of([TILE])
    for value in (1, -1, 3):
        m[places] = value
        assert check_read(check_sums(m, 1.5, 3, span), 1.5, 3, span)


def test_regions_as_a_vector_is_cut_into_them():
    span = Span(Piece(77, BLOCK + 5000, Grid(BLOCK), BLOCK + 5000).regions)
    assert [region.size for region in span.regions] == [BLOCK - 77, 5000]
    x = floats(1, span.size)
    message = check_own(x, None, 1.5, True, span)
    assert check_read(message, 1.5, 1, span, ways=[(False, 1.0, False)])


@both_orders
@pytest.mark.parametrize(
    "fault", [pytest.param(None, marks=pytest.mark.races), 0, 31, 32, pytest.param(150, marks=pytest.mark.races)]
)
def test_many_regions_as_long_as_each_other_or_not(fault, descending):
    """They are found together where they are, and one by one where they are not."""
    sizes = [5] * 70 + list(range(1, 121)) + [9, 9, 9, 8] * 9 + [3] * 40
    span = span_of(sizes)
    m = integers(1, span.size, 3)
    wire = check_sums(m, 0.5, 3, span, descending)
    assert check_read(wire, 0.5, 3, span, descending)
    if fault is not None:
        before = sum(sizes[:fault])
        at = check_sums(m[:before], 0.5, 3, span_of(sizes[:fault])).size if before else 0
        flawed = wire.copy()
        flawed[at] ^= 1  # the region's unit
        assert not check_read(flawed, 0.5, 3, span, descending, ways=[(True, 1.0, False)])


@pytest.mark.slow  # 8200 tiles in a serial grid
def test_a_span_of_more_tiles_than_the_scan_takes_at_once():
    span = span_of([1] * 8200)
    assert check_read(check_sums(integers(1, 8200, 3), 1.5, 3, span), 1.5, 3, span)


@pytest.mark.races
def test_kernels_of_one_block_go_on_with_further_tiles():
    tiles = 8200
    device, sizes = Device(span_of([1] * tiles)), np.random.default_rng(1).integers(1, 9, tiles, np.uint32)
    offsets = device.scratch[: 8 * tiles].view(np.uint64)
    device.scratch[8 * tiles : 12 * tiles].view(np.uint32)[:] = sizes
    given = None, 1.0, 3, *device.place(), *device.ends()
    launches.integers_encode(only("integers_scan", device.launch), None, *given)
    assert (offsets == np.cumsum(sizes) - sizes).all()
    assert device.length[0] == 6 * tiles + sizes.sum()

    m, units = integers(1, tiles, 3), np.ones(1, np.float32)
    parts = [encoded(m[k : k + 1], units, 3) for k in range(tiles)]
    ends, wire = np.cumsum([part.size for part in parts]), np.concatenate(parts)
    given = None, 1.0, False, 1.0, False, 3, *device.place(), device.scratch, device.found
    launches.integers_decode(only("integers_find", device.launch), wire, *given)
    assert device.found[0] == 0
    assert (offsets == np.append(0, ends[:-1]) + 6).all()  # after the unit and the size of the tile


def only(kernel, launch):
    """A launch that carries out this kernel alone."""
    return lambda family, name, *rest: launch(family, name, *rest) if name == kernel else None


def encoded(m, units, terms):
    region = span_of([m.size]).regions[0]
    wire = np.empty(_kernels.integers_bound(region.table, terms), np.uint8)
    return wire[: _kernels.integers_encode(m, wire, units, terms, region.table)]


def test_a_span_of_no_values_has_no_bytes():
    span = span_of([0])
    empty = np.empty(0, np.float32)
    assert check_own(empty, None, 1.0, True, span).size == 0
    assert check_sums(empty, 1.0, 3, span).size == 0
    assert check_read(empty.view(np.uint8), 1.0, 3, span)
    assert not check_read(np.zeros(1, np.uint8), 1.0, 3, span)


# --- what is refused ---


@pytest.mark.parametrize("flaw", [9, -9, 2.0**24, np.inf, np.nan])
def test_a_sum_larger_than_its_terms_is_refused(flaw):
    span = span_of([5000, 3000])
    for at in (0, 4999, 5000):
        m, device = integers(1, span.size, 8), Device(span)
        m[at] = flaw
        wire = room(span, 8)
        launches.integers_encode(device.launch, m, wire, 1.0, 8, *device.place(), *device.ends())
        assert device.found[0] == MALFORMED
        taken(device, wire)


def test_a_sum_that_leaves_float32_is_neither_written_nor_read():
    span = span_of([100])
    m = np.zeros(100, np.float32)
    m[60] = -2
    message = check_sums(m, 1.7e38, 2, span)
    assert check_sums(m, 1.8e38, 2, span) is None
    for unit in (1.7e38, 1.8e38):
        message[:4] = np.frombuffer(np.float32(unit).tobytes(), np.uint8)
        assert check_read(message, unit, 2, span, ways=[(False, 1.0, False)]) == (unit == 1.7e38)


def test_units_are_the_agreed_one_or_any_that_may_be():
    span = span_of([5000, 40])
    message = check_sums(integers(1, span.size, 1), 1.5, 1, span)
    assert not check_read(message, 1.25, 1, span)
    assert not check_read(message, 0.0, 1, span)
    second = message.size - (40 * 2 + 7) // 8 - 1 - 2 - 4
    for at, unit in itertools.product((0, second), (0.0, 3e38, 1e-45, -1.0, -0.0, np.inf, -np.inf, np.nan)):
        flawed = message.copy()
        flawed[at : at + 4] = np.frombuffer(np.float32(unit).tobytes(), np.uint8)
        assert check_read(flawed, -1.0, 1, span) == (unit >= 0 and unit < np.inf and not np.signbit(unit))


def sparse(n, gaps, codes, width, count):
    """A region of one sparse tile, whatever it says."""
    tile = bytes([128 + width]) + np.array([count, len(gaps)], "<u2").tobytes() + bytes(gaps) + bytes(codes)
    return np.frombuffer(np.float32(1.5).tobytes() + np.uint16(len(tile)).tobytes() + tile, np.uint8)


@pytest.mark.parametrize(
    ("n", "gaps", "codes", "width", "count"),
    [
        (1000, [3, 0, 255, 255, 85], [5], 1, 3),
        (1000, [3, 0, 255, 255, 85], [5], 1, 2),  # more entries than announced
        (1000, [3, 0, 255, 255], [5], 1, 3),  # fewer
        (600, [3, 0, 255, 255, 85], [5], 1, 3),  # beyond the tile
        (601, [3, 0, 255, 255, 85], [5], 1, 3),
        # What follows the last entry may be long.
        pytest.param(1000, [3] + [255] * 60000, [1], 1, 1, marks=pytest.mark.races),
        (4096, [0] * 4096, [0] * 1024, 2, 4096),
        (4096, [0] * 4097, [0] * 1025, 2, 4097),
        (4096, [0] * 4095 + [1], [0] * 1024, 2, 4096),
        (100, [], [], 1, 0),
        (100, [255], [], 5, 0),
        (100, [5], [255, 255, 255, 1], 25, 1),  # an integer that is too large
        (100, [5], [0, 0, 0, 0], 25, 1),
        (100, [5, 6], [3, 4], 8, 2),
        (100, [5, 6], [0b0101], 2, 2),  # zeros
        (1000, [3] * 50, [1], 8, 1),  # codes that are not there
        (4096, [255] * 16 + [15], [1], 1, 1),
        (4096, [255] * 16 + [16], [1], 1, 1),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else f"{len(value)} long",
)
def test_sparse_tiles_that_no_encoder_writes_faults_among_them(n, gaps, codes, width, count):
    wire = sparse(n, gaps, codes, width, count)
    for terms in (1, 127, MOST):
        check_read(wire, 1.5, terms, span_of([n]))


def test_sizes_that_are_not_those_of_the_tiles_are_faults():
    span = span_of([9000, 10])
    message = check_sums(np.append(integers(1, 5000, 3), integers(2, 4010, 3, 0.01)), 1.5, 3, span)
    assert check_read(message, 1.5, 3, span)
    for tile, more in itertools.product(range(3), (-1, 1, 300, 40000)):
        flawed = message.copy()
        flawed[4:10].view("<u2")[tile] += np.uint16(more % 65536)
        assert not check_read(flawed, 1.5, 3, span)
    one, other = message[4:8].copy(), message.copy()
    other[4:6], other[6:8] = one[2:], one[:2]
    assert not check_read(other, 1.5, 3, span)
    for end in (0, 3, 4, 9, 10, message.size - 9, message.size - 1):
        assert not check_read(message[:end].copy(), 1.5, 3, span)
    assert not check_read(np.append(message, np.uint8(1)), 1.5, 3, span)


# --- whatever comes ---


cuts = st.lists(st.integers(1, 40) | st.integers(1, 9000), min_size=1, max_size=4)


@given(st.data(), cuts, st.integers(0, 2**36), st.sampled_from(KINDS), st.booleans())
@examples(60)
def test_any_span(data, sizes, start, kind, ternary):
    span, shift = span_of(sizes, start), data.draw(st.integers(0, 3))
    x = shifted(floats(1, span.size, kind), shift)
    e = floats(2, span.size, kind) if data.draw(st.booleans()) else None
    unit = np.float32(data.draw(st.sampled_from([0.02, 1.0, 2.5, 1e-40, 1e38])))
    message = check_own(x, e, unit, ternary, span, shift=shift)
    if message is not None:
        assert check_read(message, unit, 1, span, shift=shift)


@given(st.data(), cuts, st.integers(1, 24), st.sampled_from([1.0, 0.2, 0.1, 0.01, 0.0005]))
@examples(60)
def test_any_sums(data, sizes, bits, density):
    span, shift = span_of(sizes), data.draw(st.integers(0, 3))
    m = shifted(integers(bits, span.size, 2**bits - 1, density), shift)
    assert check_read(check_sums(m, 1.5, 2**bits - 1, span, shift=shift), 1.5, 2**bits - 1, span, shift=shift)


@given(st.data(), cuts, st.integers(1, 5), st.sampled_from([1.0, 0.1, 0.01]))
@examples(120)
def test_messages_with_faults_are_read_as_the_cpu_reads_them(data, sizes, terms, density):
    span = span_of(sizes)
    wire = bytearray(check_sums(integers(1, span.size, terms, density), 1.5, terms, span))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(40, len(wire) - 1)) | st.integers(0, len(wire) - 1))
        kind = data.draw(st.sampled_from(["flip", "set", "cut", "insert"]))
        if kind == "flip":
            wire[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "set":
            wire[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif kind == "cut" and len(wire) > 1:
            del wire[at]
        else:
            wire[at:at] = data.draw(st.binary(max_size=2))
    check_read(np.frombuffer(bytes(wire), np.uint8), data.draw(st.sampled_from([1.5, -1.0])), terms, span)


@given(st.data(), st.integers(1, 60), st.integers(0, 3))
@examples(150)
def test_any_bytes_are_read_as_the_cpu_reads_them(data, n, terms):
    form = data.draw(st.sampled_from([1, 2, 3, 25, 129, 130, 153, 154, 0]))
    tile = bytes([form]) + data.draw(st.binary(max_size=40))
    size = data.draw(st.just(len(tile)) | st.integers(0, 70))
    wire = np.float32(1.5).tobytes() + np.uint16(size).tobytes() + tile
    check_read(np.frombuffer(wire, np.uint8), -1.0, 4**terms, span_of([n]))


# --- scales ---


@pytest.mark.races
@both_orders
@every_cut
def test_measures_are_those_of_each_region_alone(sizes, descending):
    span = span_of(sizes)
    for kind, feedback, squares in itertools.product(KINDS, (False, True), (False, True)):
        x, e = floats(1, span.size, kind), floats(2, span.size, kind) if feedback else None
        device = Device(span, descending)
        largest, totals = np.full(len(sizes), 9, np.uint32), np.full(len(sizes), 9, np.float64)
        launches.integers_measure(device.launch, x, e, *device.place(), squares, largest, totals, device.scratch)
        expected = _kernels.measure(x, e, squares, span.table)
        assert same_bits(largest.view(np.float32), expected[0])
        assert same_bits(totals, expected[1])


@pytest.mark.parametrize("clip", [None, 0, 0.5, 1.0, pytest.param(2.5, marks=pytest.mark.races), 1e300])
def test_units_are_the_scales_of_the_codec(clip):
    sizes = [1, 300, 4097, 9000]
    span, codec = span_of(sizes), TernGrad(clip=clip, shared=False)
    for kind, flaw in itertools.product(KINDS, (None, np.nan, np.inf)):
        x = floats(1, span.size, kind)
        x[5:7] = 0 if flaw is None else flaw
        device, units = Device(span), np.full(len(sizes), 9, np.float32)
        largest, totals = np.empty(len(sizes), np.uint32), np.empty(len(sizes), np.float64)
        launches.integers_measure(device.launch, x, None, *device.place(), bool(clip), largest, totals, device.scratch)
        launches.integers_units(device.launch, largest, totals, *device.place(), clip, units, device.found)
        expected = codec.unit_of(x, None, span)
        assert device.found[0] == (0 if flaw is None else NOT_FINITE)
        fine = np.isfinite(expected)
        assert same_bits(units[fine], expected[fine])

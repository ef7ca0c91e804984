"""The GPU's kernels of `adaptive` select what the CPU selects and give its bytes, span by span."""

import itertools
from unittest import mock

import numpy as np
import pytest
from devices import both_orders, launcher, needs_device
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain import KINDS, floats, regions, same_bits
from serial import shifted, status

from gqallreduce import _kernels
from gqallreduce.backends.cuda import adaptive as launches
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE, region_table
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import arithmetic, layout
from gqallreduce.coding.layout import Grid, Piece, Region, Span
from gqallreduce.coding.preparing import Parts, alone
from gqallreduce.coding.selection import select_largest
from gqallreduce.errors import WireError

pytestmark = needs_device

GUARD = 64  # elements on either side of what is decoded


def cut_up(n, start, run, parts, cuts):
    """The elements from `start` on as regions, cut anywhere."""
    grid = Grid(run, parts)
    return [Region(start + a, b - a, grid, start + n) for a, b in itertools.pairwise([0, *sorted(cuts), n])]


def in_pieces(n, run, parts, pieces, block):
    """The regions of each piece of a vector, as an allreduce cuts it, but with smaller blocks."""
    grid = Grid(run, parts)
    with mock.patch.object(layout, "BLOCK", block):
        return [Piece(*ends, grid, n).regions for ends in itertools.pairwise(layout.cut(n, pieces, grid))]


def together(pieces):
    return Span([region for piece in pieces for region in piece])


def table(span):
    return region_table(span, launches.units)


def part_of(array, whole, place):
    """The elements of a region or span, of an array of those of a span."""
    return None if array is None else array[place.start - whole.start : place.start - whole.start + place.size]


def encode_on_cpu(x, e, keep, pieces, pi, scope, separate):
    """[(the wire, r)] of each piece."""
    whole, workspace = together(pieces), Workspace()
    r = np.empty_like(x) if keep else None

    def load(region):
        return tuple(part_of(array, whole, region) for array in (x, e, r))

    if scope == "matrix":
        kept = iter(alone(select_largest(Parts(whole.regions, load, workspace), pi, separate)))
    messages = []
    for piece in pieces:
        wires = []
        for region in piece:
            here, residual, new_residual = load(region)
            if scope == "matrix":
                found = next(kept)
            else:
                found = arithmetic.select_columns(here, residual, new_residual, region, pi, separate)
            wire = np.empty(12 * region.units + 4 + 2 * len(found.index), np.uint8)
            assert arithmetic.adaptive_encode(found, here, new_residual, wire, region) == wire.size
            wires.append(wire)
        messages.append((np.concatenate(wires), part_of(r, whole, Span(piece))))
    return messages


def select_on_device(device, x, e, r, spans, pi, scope, separate, flaws):
    """What is kept of each unit, found span by span."""
    total = sum(span.units for span in spans)
    columns = launches.Columns.of(np.full(launches.Columns.words(total, separate), 7, np.uint32), separate)
    whole = Span([region for span in spans for region in span.regions])
    parts = [(span, *(part_of(array, whole, span) for array in (x, e, r))) for span in spans]
    if scope == "column":
        assert len(spans) == 1
        launches.adaptive_select(device, x, e, r, whole, table(whole), pi, columns, flaws)
        return columns
    search = np.full(launches.SEARCH_WORDS, 7, np.uint32)
    bins = np.zeros(launches.TABLE_WORDS, np.uint32)
    kept, begin = [], 0
    for span in spans:
        listed = np.full(launches.listed_size(span), 7, np.float32)
        kept.append(launches.Part(span, table(span), columns.part(begin, begin + span.units), listed))
        begin += span.units
    launches.adaptive_search(device, parts, kept, pi, search, bins, flaws)
    assert not bins.any()
    for part, (_, here, _, new_residual) in zip(kept, parts, strict=True):
        launches.adaptive_count(device, here if new_residual is None else new_residual, part, search)
    return columns


def write_on_device(device, v, r, span, columns, flaws):
    length = np.zeros(1, np.uint64)
    wire = shifted(np.full(12 * span.units + 4 * len(span.regions) + 2 * span.size + 9, 0xEE, np.uint8), 1)
    launches.adaptive_encode(device, v, r, wire, span, table(span), columns, length, flaws)
    assert (wire[int(length[0]) :] == 0xEE).all()
    return wire[: int(length[0])]


def encode_on_device(device, x, e, keep, pieces, pi, scope, separate, at_once=True):
    """[(the wire, r)] of each piece, and the status. Values are selected at once, or piece by piece."""
    whole, flaws = together(pieces), status()
    spans = [Span(piece) for piece in pieces]
    r = np.full(x.size, 7, np.float32) if keep else None
    v = x if r is None else r
    if scope == "matrix" or at_once:
        columns = select_on_device(device, x, e, r, [whole] if at_once else spans, pi, scope, separate, flaws)
    messages, begin = [], 0
    for span in spans:
        here, residual, new_residual, formed = (part_of(array, whole, span) for array in (x, e, r, v))
        if scope == "matrix" or at_once:
            mine = columns.part(begin, begin + span.units)
        else:
            mine = select_on_device(device, here, residual, new_residual, [span], pi, scope, separate, flaws)
        messages.append((write_on_device(device, formed, new_residual, span, mine, flaws), new_residual))
        begin += span.units
    return messages, int(flaws[0])


def check(x, e, pieces, pi, scope, separate, descending=False, at_once=True):
    device = launcher(descending)
    keeps = (True,) if e is not None else (True, False)
    for keep in keeps:
        ours, flaws = encode_on_device(device, x, e, keep, pieces, pi, scope, separate, at_once)
        assert flaws == 0
        theirs = encode_on_cpu(x, e, keep, pieces, pi, scope, separate)
        for (wire, r), (expected, new_residual) in zip(ours, theirs, strict=True):
            assert same_bits(wire, expected)
            assert not keep or same_bits(r, new_residual)
    return theirs


def read_on_cpu(wire, y, span, scale, add):
    """Are the messages of all regions there, and nothing else?"""
    for region in span.regions:
        here = part_of(y, span, region)
        try:
            if add:
                nbytes = _kernels.adaptive_decode_add(wire, here, region.table)
            else:
                nbytes = _kernels.adaptive_decode(wire, here, region.table, scale, False)
        except WireError:
            return False
        wire = wire[nbytes:]
    return wire.size == 0


def read(device, wire, span, scale=1.0, add=False):
    """Do the device and the CPU decode alike? Returns whether they do not refuse."""
    room, theirs, flaws = np.ones(span.size + 2 * GUARD, np.float32), np.ones(span.size, np.float32), status()
    ours = room[GUARD : GUARD + span.size]
    where = np.full(len(span.regions) + 1, 2**63, np.uint64)
    launches.adaptive_decode(device, wire, ours, span, table(span), scale, add, flaws, where)
    assert (room[:GUARD] == 1).all()
    assert (room[GUARD + span.size :] == 1).all()
    if not read_on_cpu(wire, theirs, span, scale, add):
        assert flaws[0] == MALFORMED
        return False
    assert flaws[0] == 0
    assert same_bits(ours, theirs)
    return True


every_scope = pytest.mark.parametrize("scope", ["matrix", "column"])
both_signs = pytest.mark.parametrize("separate", [False, True], ids=["joint", "separate"])


@both_orders
@both_signs
@every_scope
@pytest.mark.parametrize("pi", [1, pytest.param(64, marks=pytest.mark.races), 10**6])
@pytest.mark.parametrize("grid", [(4096, 1), (40000, 2), (70, 1)], ids=str)
def test_vectors_are_selected_from_at_once_and_encoded_piece_by_piece(grid, pi, scope, separate, descending):
    n = 40001 if grid[0] > 100 else 9001
    pieces = in_pieces(n, *grid, pieces=3, block=5000)
    messages = check(floats(1, n), floats(2, n), pieces, pi, scope, separate, descending)
    for piece, (wire, _) in zip(pieces, messages, strict=True):
        for scale, add in ((1.0, False), (0.3, False), (1.0, True)):
            assert read(launcher(descending), wire, Span(piece), scale, add)


@pytest.mark.parametrize(
    "separate", [False, pytest.param(True, marks=[pytest.mark.races, pytest.mark.slow])], ids=["joint", "separate"]
)
def test_more_units_than_a_scan_takes_at_once(separate):
    n = 5000 * 8
    check(floats(1, n, "steps"), None, in_pieces(n, 8, 1, pieces=2, block=9999), 300, "matrix", separate)


@both_orders
@both_signs
@every_scope
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_values_and_many_ties(kind, scope, separate, descending):
    n = 6001
    for run in (n, 1500, 100):
        pieces = in_pieces(n, run, 1, pieces=2, block=1000)
        check(floats(1, n, kind), None, pieces, 7, scope, separate, descending, at_once=run == 100)


@both_signs
@every_scope
@pytest.mark.parametrize("values", [[], [0.0], [-0.0, 0.0], [1.0], [-2.0, 0.0], [1e-45, -1e-45], [3.0] * 40])
def test_few_values(values, scope, separate):
    x = np.array(values, np.float32)
    for pi in (1, 2, 100):
        check(x, None, [cut_up(x.size, 3, 8, 1, [])], pi, scope, separate)


@both_orders
@every_scope
@given(st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=1, max_size=90), st.integers(1, 12), st.integers(1, 40))
@examples(40)
def test_the_value_left_over_by_separate_signs_is_the_first_of_equal_ones(scope, descending, values, pi, run):
    x = np.array(values, np.float32)
    pieces = [[region] for region in cut_up(x.size, 0, run, 1, [x.size // 2])]
    for at_once in (True, False):
        check(x, None, pieces, pi, scope, True, descending, at_once)


@pytest.mark.parametrize("far", [1, 31, 32, 1023, 1024, pytest.param(3000, marks=pytest.mark.races)])
@pytest.mark.parametrize("sign", [1, -1])
@every_scope
def test_equal_candidates_far_apart_in_one_unit(scope, sign, far):
    x = np.where(np.arange(4096) % 2, 0.5, -0.5).astype(np.float32)
    x[[10, 11]] = 3, -3  # k = 3: one of each sign, and the one left over
    x[1000], x[1000 + far] = sign, -sign
    check(x, None, [cut_up(4096, 0, 4096, 1, [])], 4096 // 3, scope, True)


@both_signs
@every_scope
@given(regions(), st.data(), st.integers(1, 20), st.sampled_from(KINDS), st.booleans(), st.booleans())
@examples(30)
def test_any_regions(scope, separate, place, data, pi, kind, feedback, at_once):
    n = place[0]
    found = cut_up(*place, cuts=data.draw(st.lists(st.integers(0, n), max_size=4)))
    first = data.draw(st.integers(1, len(found)))
    pieces = [piece for piece in (found[:first], found[first:]) if piece]
    x = floats(n, n, kind)
    check(x, floats(n + 1, n, kind) if feedback else None, pieces, pi, scope, separate, at_once=at_once)


@both_signs
@every_scope
@pytest.mark.parametrize("flaw", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_reported(scope, separate, flaw):
    x = floats(1, 9000)
    x[8000] = flaw
    pieces = in_pieces(x.size, 4096, 1, pieces=1, block=5000)
    _, flaws = encode_on_device(launcher(), x, None, True, pieces, 64, scope, separate)
    assert flaws == NOT_FINITE


@given(regions(most=120), st.data(), st.binary(max_size=400))
@examples(150)
def test_any_bytes_are_read_as_the_cpu_reads_them(place, data, wire):
    cuts = data.draw(st.lists(st.integers(0, place[0]), max_size=2))
    read(launcher(), np.frombuffer(wire, np.uint8), Span(cut_up(*place, cuts)))


@given(regions(most=120), st.data(), st.integers(1, 9), st.booleans())
@examples(300)
def test_messages_with_faults_are_read_as_the_cpu_reads_them(place, data, pi, add):
    found = cut_up(*place, cuts=data.draw(st.lists(st.integers(0, place[0]), max_size=3)))
    wire = bytearray(encode_on_cpu(floats(1, place[0]), None, False, [found], pi, "matrix", False)[0][0].tobytes())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(wire) - 1))
        wire[at] = data.draw(st.sampled_from([0, 1, 2, 127, 255, wire[at] ^ 2]))
    del wire[len(wire) - data.draw(st.integers(0, min(4, len(wire)))) :]
    wire += data.draw(st.binary(max_size=3))
    read(launcher(), np.frombuffer(bytes(wire), np.uint8), Span(found), add=add)


def test_every_offset_is_checked():
    found = cut_up(60, 0, 10, 1, [25, 25, 40])
    ((wire, _),) = encode_on_cpu(floats(1, 60), None, False, [found], 6, "matrix", False)
    begin, accepted = 0, 0
    for region in found:
        for unit in range(region.units + 1):
            for offset in (0, 1, 2, 3, 255):
                faulty = wire.copy()
                faulty[begin + 12 * unit] = offset
                accepted += read(launcher(), faulty, Span(found))
        begin += 12 * region.units + 4 + 2 * int(wire[begin + 12 * region.units])
    assert 0 < accepted < 5 * (8 + len(found))


def test_a_region_without_units_has_no_entries():
    span = Span(cut_up(0, 5, 10, 1, []))
    for wire in ([0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0, 0, 0]):
        assert read(launcher(), np.array(wire, np.uint8), span) == (not any(wire))


def test_bytes_after_the_last_message_are_a_fault():
    pieces = [cut_up(1000, 0, 100, 1, [300, 650])]
    ((wire, _),) = encode_on_cpu(floats(1, 1000), None, False, pieces, 10, "matrix", False)
    assert read(launcher(), wire, Span(pieces[0]))
    assert not read(launcher(), np.append(wire, np.uint8(0)), Span(pieces[0]))
    assert not read(launcher(), wire[:-1], Span(pieces[0]))


def test_a_table_says_where_regions_and_their_units_begin():
    span = Span(cut_up(100, 7, 10, 1, [30, 30, 60]))
    assert table(span).tolist() == [[0, 0], [30, 4], [30, 4], [60, 8], [100, 13]]
    assert span.units == 13

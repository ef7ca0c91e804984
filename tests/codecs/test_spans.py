"""A Span of several regions, each of a tensor of its own, is encoded and decoded as its regions are one by one."""

import itertools

import numpy as np
import pytest
from contract import same_bits, vector
from schemes import CODEC, variants

from gqallreduce import _kernels
from gqallreduce.backends.workspace import Workspace
from gqallreduce.codecs.terngrad import TernGrad
from gqallreduce.codecs.threshold import Threshold
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Grid, Piece, Region, Span
from gqallreduce.coding.preparing import Parts, alone

SIZES = [1, 700, 33, 5000, 2, 2, 41]
STREAM = _kernels.Stream(np.arange(7, dtype=np.uint64) ** 13, 3, 5, 7)
every_codec = variants("codec", CODEC)


def span_of(codec, sizes=SIZES) -> Span:
    edges = [0, *itertools.accumulate(sizes)]
    regions = []
    for segment, (begin, end) in enumerate(itertools.pairwise(edges)):
        columns = Grid(64) if segment % 2 else Grid(70001, 3)
        regions.append(Region(begin, end - begin, codec.grid(columns), edges[-1], segment))
    return Span(regions)


def encode(codec, places, x, residual, new_residual):
    """The messages of regions or Spans, one after the other."""

    def load(place):
        here = slice(place.start, place.start + place.size)
        return tuple(None if array is None else array[here] for array in (x, residual, new_residual))

    selected = None
    if codec.prepares:
        selected = alone(codec.prepare(Parts(places, load, Workspace(), stream=STREAM.alone(0)))).selected
    wires = []
    for number, place in enumerate(places):
        wire = np.empty(64 + 20 * place.size, np.uint8)
        nbytes = codec.encode(*load(place), wire, place, STREAM, None if selected is None else selected[number])
        assert nbytes != NOT_FINITE
        wires.append(wire[:nbytes])
    return np.concatenate(wires)


def decode(codec, places, wire, y, add):
    at = 0
    for place in places:
        here = y[place.start : place.start + place.size]
        at += codec.decode_add(wire[at:], here, place) if add else codec.decode(wire[at:], here, place, 0.3)
    assert at == wire.size
    return y


@every_codec
@pytest.mark.parametrize("feedback", [False, True])
def test_a_span_is_its_regions(codec, feedback):
    span = span_of(codec)
    x, residual = vector(codec, 1, span.size), vector(codec, 2, span.size).astype(np.float32) if feedback else None
    made = []
    for places in ([span], span.regions, [Span(span.regions[:3]), Span(span.regions[3:])]):
        new_residual = np.full(span.size, 7, np.float32) if feedback else None
        wire = encode(codec, places, x, residual, new_residual)
        y = [decode(codec, places, wire, x.copy(), add) for add in (False, True)]
        made.append([wire, *y, *([new_residual] if feedback else [])])
        if codec.fixed_size:
            assert sum(map(codec.nbytes, places)) == wire.size
    for each in made[1:]:
        assert all(same_bits(*pair) for pair in zip(each, made[0], strict=True))


@pytest.mark.parametrize("codec", [Threshold(tau=0.5), TernGrad()], ids=str)
def test_a_unit_by_segment_is_that_of_each_region(codec):
    """Own values, quantized ones and their sums."""
    units, span = np.linspace(0.3, 2, 7, dtype=np.float32), span_of(codec)
    together, x = codec.knowing(unit=units, terms=5), vector(codec, 1, span.size)
    wire, quantized = encode(together, [span], x, None, None), np.empty_like(x)
    assert not together.begin_sum(x, None, None, quantized, span, STREAM)
    own, sums = [], []
    for region, unit in zip(span.regions, units, strict=True):
        single, here = codec.knowing(unit=float(unit), terms=5), slice(region.start, region.start + region.size)
        own.append(encode(single, [region], x, None, None))
        m = np.empty(region.size, np.float32)
        assert not single.begin_sum(x[here], None, None, m, region, STREAM)
        assert same_bits(m, quantized[here])
        sums.append(encode(single.of_sums, [region], 5 * quantized, None, None))
    assert same_bits(wire, np.concatenate(own))
    message = encode(together.of_sums, [span], 5 * quantized, None, None)
    assert same_bits(message, np.concatenate(sums))
    y = np.zeros_like(x)
    assert together.of_sums.decode(message, y, span) == message.size
    assert same_bits(y, 5 * quantized)
    assert together.decode(wire, y, span) == wire.size
    assert same_bits(y, quantized * units[np.repeat(np.arange(7), SIZES)])


def test_a_selection_from_all_extents_is_given_to_the_piece_that_has_them():
    codec, pieces, x = CODEC["adaptive(pi=64)"], [], np.random.default_rng(1).standard_normal(900).astype(np.float32)
    for begin, end in ((0, 0), (0, 500), (500, 900)):
        piece = Piece(begin, end, Grid(64), 900)
        regions = [Region(at, min(100, end - at), Grid(64), 900) for at in range(begin, end, 100)]
        piece.regions, piece.first = regions, sum(len(other.regions) for other in pieces)
        piece.extents = [Span(regions[:3]), Span(regions[3:])] if regions else []
        pieces.append(piece)
    extents = [extent for piece in pieces for extent in piece.extents]
    parts = Parts(extents, lambda place: (x[place.start : place.start + place.size], None, None), Workspace())
    chosen = alone(codec.prepare(parts)).selected
    found = [kept for piece in pieces for kept in chosen.of(piece)]
    assert [len(chosen.of(piece)) for piece in pieces] == [0, 2, 2]
    for extent, kept in zip(extents, found, strict=True):
        begins = np.repeat([region.start for region in extent.regions], kept.counts)
        assert same_bits(x[begins + kept.index], kept.value)

"""The GPU's kernels of `adaptive`, as a serial grid, select what the CPU selects and give its bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import KINDS, floats, regions, same_bits
from serial import SerialDevice, both_orders, needs_compiler, region, shifted, status

from gqallreduce import _kernels
from gqallreduce.cuda import adaptive as launches
from gqallreduce.cuda.launching import MALFORMED, NOT_FINITE
from gqallreduce.errors import WireError
from gqallreduce.layout import Grid, Region
from gqallreduce.selection import Parts, drained, select_largest
from gqallreduce.workspace import Workspace

pytestmark = needs_compiler


def pieces(n, start, run, parts, cuts):
    """The region from `start` on as several, cut at some elements."""
    edges = [0, *sorted(cuts), n]
    grid = Grid(run, parts)
    return [Region(start + a, b - a, grid, start + n) for a, b in itertools.pairwise(edges)]


def encode_on_cpu(x, e, keep, found, pi, scope):
    """[(wire, r)] of each region."""
    start = found[0].start

    def load(place):
        at = slice(place.start - start, place.start - start + place.size)
        return x[at], None if e is None else e[at], r[at] if keep else None

    r = np.empty_like(x) if keep else None
    messages = []
    selected = drained(select_largest(Parts(found, load), pi, False, Workspace())) if scope == "matrix" else None
    for number, place in enumerate(found):
        here, owed, owing = load(place)
        if selected is not None:
            index, value = selected[number].index, selected[number].value
        else:
            index, value = np.empty(place.size, np.uint32), np.empty(place.size, np.float32)
            count = _kernels.adaptive_select_columns(here, owed, owing, index, value, *place.geometry, pi, False)
            index, value = index[:count], value[:count]
        wire = np.empty(12 * place.units + 4 + 2 * len(index), np.uint8)
        assert _kernels.adaptive_encode(index, value, owing, wire, place.size, *place.geometry) == wire.size
        messages.append((wire, owing))
    return messages


def encode_on_device(device, x, e, keep, found, pi, scope):
    start = found[0].start
    parts, flaws = [], status()
    for place in found:
        at = slice(place.start - start, place.start - start + place.size)
        room = np.full(place.size, 7, np.float32) if keep else None
        parts.append((place, x[at], None if e is None else e[at], room))
    search, table = np.empty(2, np.uint32), np.zeros(4096, np.uint32)
    if scope == "matrix":
        launches.adaptive_search(device, parts, pi, search, table, flaws)
        assert not table.any()
    messages = []
    for place, here, owed, r in parts:
        columns = np.full(3 * place.units + 1, 0xEEEEEEEE, np.uint32)
        v = here if r is None else r
        if scope == "matrix":
            launches.adaptive_count(device, v, place, search, columns)
        else:
            launches.adaptive_select(device, here, owed, r, place, pi, search, columns, flaws)
        entries = int(columns[-1]) if place.size else 0
        wire = shifted(np.full(12 * place.units + 4 + 2 * entries, 0xEE, np.uint8), 1)
        launches.adaptive_encode(device, v, r, wire, place, columns)
        messages.append((wire, r))
    return messages, int(flaws[0])


def check(x, e, found, pi, scope, descending=False):
    device = SerialDevice(descending)
    for keep in (True,) if e is not None else (True, False):
        ours, flaws = encode_on_device(device, x, e, keep, found, pi, scope)
        assert flaws == 0
        theirs = encode_on_cpu(x, e, keep, found, pi, scope)
        for (wire, r), (expected, owing) in zip(ours, theirs, strict=True):
            assert same_bits(wire, expected)
            assert not keep or same_bits(r, owing)
    for place, (wire, _) in zip(found, theirs, strict=True):
        for scale, add in ((1.0, False), (0.3, False), (1.0, True)):
            assert read(device, wire, place, scale, add) is not None


def read(device, wire, place, scale=1.0, add=False):
    """What the device and the CPU decode alike; None if both refuse it."""
    ours, theirs, flaws = np.ones(place.size, np.float32), np.ones(place.size, np.float32), status()
    launches.adaptive_decode(device, wire, ours, place, scale, add, flaws)
    try:
        if add:
            _kernels.adaptive_decode_add(wire, theirs, *place.geometry)
        else:
            _kernels.adaptive_decode(wire, theirs, *place.geometry, scale, False)
    except WireError:
        assert flaws[0] == MALFORMED
        return None
    assert flaws[0] == 0
    assert same_bits(ours, theirs)
    return ours


every_scope = pytest.mark.parametrize("scope", ["matrix", "column"])


@both_orders
@every_scope
@pytest.mark.parametrize("pi", [1, 5, 64, 10**6])
@pytest.mark.parametrize(
    "place", [(200000, 0, 4096, 1), (100003, 301, 4096, 1), (70001, 77, 40000, 2), (30000, 9, 33, 1)], ids=str
)
def test_large_vectors_in_several_regions(place, pi, scope, descending):
    n, *geometry = place
    found = pieces(n, *geometry, cuts=[n // 3, n // 3 + 1, n // 2])
    check(floats(1, n), floats(2, n), found, pi, scope, descending)


@both_orders
@every_scope
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_values_and_many_ties(kind, scope, descending):
    n = 9001
    for run in (n, 1500, 100):
        check(floats(1, n, kind), None, pieces(n, 5, run, 1, cuts=[4000]), 7, scope, descending)


@every_scope
@pytest.mark.parametrize("values", [[], [0.0], [-0.0, 0.0], [1.0], [-2.0, 0.0], [1e-45, -1e-45], [3.0] * 40])
def test_few_values(values, scope):
    x = np.array(values, np.float32)
    for pi in (1, 2, 100):
        check(x, None, [region(x.size, 3, 8)], pi, scope)


@every_scope
@given(regions(), st.data(), st.integers(1, 20), st.sampled_from(KINDS), st.booleans())
@settings(max_examples=60)
def test_any_regions(scope, place, data, pi, kind, owed):
    n = place[0]
    cuts = data.draw(st.lists(st.integers(0, n), max_size=3))
    x = floats(n, n, kind)
    check(x, floats(n + 1, n, kind) if owed else None, pieces(*place, cuts=cuts), pi, scope)


@every_scope
@pytest.mark.parametrize("flaw", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_reported(scope, flaw):
    x = floats(1, 9000)
    x[8000] = flaw
    _, flaws = encode_on_device(SerialDevice(), x, None, True, [region(x.size, 0, 4096)], 64, scope)
    assert flaws == NOT_FINITE


@given(regions(most=120), st.binary(max_size=400))
@settings(max_examples=150)
def test_any_bytes_are_read_as_the_cpu_reads_them(place, data):
    read(SerialDevice(), np.frombuffer(data, np.uint8), region(*place))


@given(regions(most=120), st.data(), st.integers(1, 9))
@settings(max_examples=150)
def test_a_message_with_faults_is_read_as_the_cpu_reads_it(place, data, pi):
    x, found = floats(1, place[0]), [region(*place)]
    wire = bytearray(encode_on_cpu(x, None, False, found, pi, "matrix")[0][0].tobytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(wire) - 1))
        wire[at] = data.draw(st.sampled_from([0, 1, 2, 127, 255, wire[at] ^ 2]))
    del wire[len(wire) - data.draw(st.integers(0, min(4, len(wire)))) :]
    read(SerialDevice(), np.frombuffer(bytes(wire), np.uint8), found[0])

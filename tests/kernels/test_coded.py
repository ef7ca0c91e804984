"""Entropy codes of levels: the values of coding=fixed, in the bytes that docs/wire.md says, no more than need be."""

import struct

import numpy as np
import pytest
from coded_oracle import (
    PREFIX,
    RANS,
    SPARSE,
    as_without,
    ascending_places,
    elias,
    elias_patterns,
    entropy_bits,
    format_places,
    huffman_bits,
)
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from level_oracles import STREAM, f32
from plain import table as in_buckets
from simd import LEVELS, on_every_level, simd, threads

from gqallreduce import _kernels
from gqallreduce.errors import WireError

CODINGS = sorted(_kernels.CODINGS)
every_coding = pytest.mark.parametrize("coding", CODINGS)
Levels = _kernels.Levels


LEARNED = np.array([-1, -0.4, -0.1, 0.05, 0.2, 0.3, 0.6, 1], f32)
KINDS = {
    "uniform 1": (Levels.uniform(1, False), ascending_places(2)),
    "uniform 2": (Levels.uniform(2, True), ascending_places(3)),
    "uniform 3": (Levels.uniform(3, True), ascending_places(7)),
    "uniform 4 without zero": (Levels.uniform(4, False), ascending_places(16)),
    "uniform 8": (Levels.uniform(8, True), ascending_places(255)),
    "uniform 8 without zero": (Levels.uniform(8, False), ascending_places(256)),
    "powers 1": (Levels.floating(1, 0, 0, 1, False), ascending_places(2)),
    "powers 4": (Levels.floating(4, 0, -6, 7), ascending_places(15)),
    "table 3": (Levels.table(3, LEARNED), ascending_places(8)),
    "fp4": (Levels.floating(4, 1, 0, 7, order="sign and magnitude"), format_places(4, 7)),
    "e4m3": (Levels.floating(8, 3, -6, 126, order="sign and magnitude"), format_places(8, 126)),
    "int8": (Levels.floating(8, 6, 0, 127, order="two's complement"), format_places(8, 127, integers=True)),
    "powers of two as scales": (
        Levels.floating(5, 0, -14, 15, order="sign and magnitude").using(scale="power above"),
        format_places(5, 15),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def scale_bytes(kind):
    return 1 if kind == "powers of two as scales" else 4


def encoded(levels, coding, x, regions, *, l2=False, e=None, r=None) -> bytes:
    wire = np.full(_kernels.coded_bound(regions, levels) + 9, 0xA5, np.uint8)
    nbytes = _kernels.coded_encode(x, e, r, wire[:-9], levels, coding, l2, regions, STREAM)
    assert (wire[-9:] == 0xA5).all()
    return wire[:nbytes].tobytes() if nbytes >= 0 else nbytes


def fixed(levels, x, regions, *, l2=False, e=None, r=None) -> bytes:
    wire = np.zeros(_kernels.levels_nbytes(regions, levels), np.uint8)
    assert _kernels.levels_encode(x, e, r, wire, levels, l2, regions, STREAM) == 0
    return wire.tobytes()


def decoded(levels, coding, data: bytes, regions, *, scale=1.0, add=False):
    y = np.full(regions.size, 0.5 if add else np.nan, f32)
    assert _kernels.coded_decode(np.frombuffer(data, np.uint8), y, levels, coding, regions, scale, add) == len(data)
    return y


def values(rng, n):
    """Gaussian ones with stretches of zeros, of one value, and of a few large ones."""
    x = rng.standard_normal(n).astype(f32)
    for _ in range(3):
        begin, kind = int(rng.integers(0, n + 1)), rng.integers(0, 3)
        end = begin + int(rng.integers(0, n // 2 + 1))
        x[begin:end] *= (rng.random(x[begin:end].size) < 0.02) if kind else 0
        if kind == 2:
            x[begin:end] = 3
    return x


@every_coding
@every_kind
@examples(12)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 64, 700, 5000]), st.booleans(), st.booleans())
def test_the_values_are_those_of_codes_of_equal_length(kind, coding, seed, bucket, l2, fed):
    levels, side = KINDS[kind]
    l2 = l2 and scale_bytes(kind) == 4
    rng = np.random.default_rng(seed)
    n, start = int(rng.integers(0, 1500)), int(rng.integers(0, 300))
    x, regions = values(rng, n), in_buckets(n, start, bucket)
    e = rng.standard_normal(n).astype(f32) if fed else None
    r, expected_r = np.empty(n, f32), np.empty(n, f32)
    expected = fixed(levels, x, regions, l2=l2, e=e, r=expected_r)
    for level, data in on_every_level(lambda: encoded(levels, coding, x, regions, l2=l2, e=e, r=r)).items():
        found, _, nbytes = as_without(data, start, n, levels.bits, bucket, scale_bytes(kind), coding, side)
        assert (found, nbytes) == (expected, len(data)), level
        assert r.tobytes() == expected_r.tobytes()
    y = np.empty(n, f32)
    _kernels.levels_decode(np.frombuffer(expected, np.uint8), y, levels, regions, 0.25)
    for again in on_every_level(lambda: decoded(levels, coding, data, regions, scale=0.25)).values():
        assert again.tobytes() == y.tobytes()
    added = decoded(levels, coding, data, regions, add=True)
    y = np.full(n, 0.5, f32)
    _kernels.levels_decode_add(np.frombuffer(expected, np.uint8), y, levels, regions)
    assert added.tobytes() == y.tobytes()


def codes(data: bytes, n, bits):
    """Of one bucket without an entropy code."""
    number = int.from_bytes(data[4:], "little")
    return [number >> (i * bits) & (2**bits - 1) for i in range(n)]


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("l2", [False, True])
def test_a_block_takes_what_the_entropy_says(bits, l2):
    """One bucket of many values: Huffman's code within 1 %, rANS closer than that to the entropy."""
    levels, n = Levels.uniform(bits, True), 32768
    x, regions = np.random.default_rng(bits).standard_normal(n).astype(f32), in_buckets(n, 0, n)
    found = codes(fixed(levels, x, regions, l2=l2), n, bits)
    taken = {coding: 8 * len(encoded(levels, coding, x, regions, l2=l2)) for coding in CODINGS}
    least, header = entropy_bits(found), 8 * (4 + 1 + 4)
    assert least <= huffman_bits(found) <= taken["huffman"] - header - 8 * (2**bits // 2 + 12)
    assert taken["huffman"] - header - 8 * (2**bits // 2 + 12 + 4) <= huffman_bits(found) * 1.002
    states = 32 * 16  # bits of theirs that say nothing, and up to as many more
    assert least <= taken["rans"] - header - states <= least * 1.004 + states + 20 * 2**bits


def test_elias_takes_what_the_papers_theorem_says():
    """QSGD, theorem 3.2 and corollary 3.3, with the lengths of the code itself in place of its bound."""
    for levels_each_side, n in ((1, 30000), (7, 30000), (127, 16384)):
        bits = (levels_each_side + 1).bit_length()
        levels, regions = Levels.uniform(bits, True), in_buckets(n, 0, n)
        x = np.random.default_rng(n).standard_normal(n).astype(f32)
        found = np.array(codes(fixed(levels, x, regions, l2=True), n, bits)) - levels_each_side
        data = encoded(levels, "elias", x, regions, l2=True)
        places = np.flatnonzero(found)
        gaps = np.diff(np.concatenate([[-1], places, [n]]))
        sparse = sum(len(elias(int(gap))) for gap in gaps)
        sparse += sum(1 + len(elias(int(level))) for level in np.abs(found[places]))
        dense = sum(len(elias(int(level) + 1)) + (level > 0) for level in np.abs(found))
        chosen = SPARSE if places.size <= n - n // 2 and sparse < dense else PREFIX
        assert data[4] == chosen
        extra = 8 * (4 + 1 + 4) + (0 if data[4] == SPARSE else 8 * 12)
        assert 0 <= 8 * len(data) - extra - (sparse if chosen == SPARSE else dense) < 32
    assert 2.9 < 8 * len(data) / n < 2.95  # s = sqrt(n): 2.8 and what vanishes as n grows, says corollary 3.3


def test_these_are_elias_codes():
    golden = {
        1: "0", 2: "100", 3: "110", 4: "101000", 7: "101110", 8: "1110000", 15: "1111110", 16: "10100100000",
        31: "10100111110", 32: "101011000000", 64: "1011010000000", 255: "10111111111110",
    }  # fmt: skip
    assert {k: elias(k) for k in golden} == golden
    for levels, side in KINDS.values():
        written = {pattern: code for code, pattern in enumerate(_kernels.elias_patterns(levels)) if pattern}
        assert written == elias_patterns(side)
    assert _kernels.elias_patterns(Levels.uniform(3, True)) == [
        "1010001",
        "1101",
        "1001",
        "0",
        "1000",
        "1100",
        "1010000",
        "",
    ]


@every_coding
@pytest.mark.parametrize("kind", ["uniform 1", "uniform 3", "uniform 8", "e4m3"])
def test_what_does_not_get_shorter_stays_as_it_is(coding, kind):
    levels, _ = KINDS[kind]
    x, regions = np.random.default_rng(5).uniform(-1, 1, 37).astype(f32), in_buckets(37, 0, 20)
    data = encoded(levels, coding, x, regions)
    assert data[4] == 0
    assert len(data) == _kernels.coded_bound(regions, levels) == _kernels.levels_nbytes(regions, levels) + 5
    assert data[5:] == fixed(levels, x, regions)


@every_coding
def test_zeros_take_next_to_nothing(coding):
    levels, regions = Levels.uniform(4, True), in_buckets(100_000, 0, 25_000)
    data = encoded(levels, coding, np.zeros(100_000, f32), regions)
    assert len(data) < {"huffman": 13_000, "elias": 100, "rans": 1100}[coding]
    assert not decoded(levels, coding, data, regions).any()


@every_coding
def test_rare_levels_have_a_pattern_too(coding):
    """Frequencies that double from code to code: Huffman's own code would be longer than is allowed."""
    levels = Levels.uniform(5, True)
    n = 2**17
    code = np.repeat(np.arange(18), [1, *(2 ** np.arange(17))])[::-1]
    x = ((15 - code) / 15).astype(f32)
    x[np.flatnonzero(x == 0)[0]] = 0
    regions = in_buckets(n, 0, n)
    data = encoded(levels.using(nearest=True), coding, x, regions)
    np.testing.assert_allclose(decoded(levels, coding, data, regions), x, atol=1e-6)
    if coding != "elias":
        assert len(data) < n * 2.05 / 8 + 200


@every_coding
def test_the_number_of_threads_changes_nothing(coding):
    levels, regions = Levels.uniform(4, True), in_buckets(300_001, 5, 512)
    x, found = np.random.default_rng(1).standard_normal(300_001).astype(f32), set()
    for count in (1, 2, 3, 7):
        with threads(count):
            data = encoded(levels, coding, x, regions)
            found.add((data, decoded(levels, coding, data, regions).tobytes()))
    assert len(found) == 1


@every_coding
def test_several_regions_follow_each_other(coding):
    levels, rng = Levels.uniform(3, True), np.random.default_rng(2)
    rows = [(1000, 3, 64, 1, 0), (0, 0, 64, 1, 1), (40_000, 0, 64, 1, 2), (1, 7, 64, 1, 0)]
    stream = _kernels.Stream(7, 1, 2, 3)
    for group in (stream, STREAM):
        x = rng.standard_normal(41_001).astype(f32)
        one_by_one, at = b"", 0
        if group is STREAM:
            rows = [(*row[:4], 0) for row in rows]
        for row in rows:
            one_by_one += encoded(levels, coding, x[at : at + row[0]], _kernels.Regions([(*row[:4], 0)]))
            at += row[0]
        if group is STREAM:
            assert encoded(levels, coding, x, _kernels.Regions(rows)) == one_by_one


@every_coding
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_told(coding, bad):
    levels, regions = Levels.uniform(4, True), in_buckets(100_000, 0, 512)
    x = np.ones(100_000, f32)
    x[70_000] = bad
    with threads(3):
        assert encoded(levels, coding, x, regions) == -1


def refused(levels, coding, data: bytes, regions) -> bool:
    y = np.zeros(regions.size, f32)
    try:
        taken = _kernels.coded_decode(np.frombuffer(data, np.uint8), y, levels, coding, regions)
    except WireError:
        return True
    assert taken <= len(data)
    assert np.isfinite(y).all()
    return False


@every_coding
@pytest.mark.parametrize("level", LEVELS)
def test_malformed_messages_are_refused(coding, level):
    levels, n = Levels.uniform(4, True), 3000
    x, regions = np.random.default_rng(3).standard_normal(n).astype(f32), in_buckets(n, 0, n)
    if coding == "elias":
        x[np.random.default_rng(4).random(n) < 0.6] = 0
    data = encoded(levels, coding, x, regions)
    assert data[4] in (PREFIX, SPARSE, RANS)

    def changed(at: int, value: bytes) -> bytes:
        return data[:at] + value + data[at + len(value) :]

    def longer(by: int) -> bytes:
        """A block that says it has so many bytes more, and has."""
        return struct.pack("<I", len(data) - 4 + by) + data[4:] + bytes(by)

    with simd(level):
        assert not refused(levels, coding, data, regions)
        assert not refused(levels, coding, data + b"\0\1\2", regions)
        for form in {0, 1, 2, 3, 4, 255} - {data[4]}:
            if (coding, form) not in (("elias", PREFIX), ("elias", SPARSE)):
                assert refused(levels, coding, changed(4, bytes([form])), regions), form
        for end in (0, 3, 4, 5, 8, 9, 30, len(data) - 1):
            assert refused(levels, coding, data[:end], regions), end
            assert refused(levels, coding, struct.pack("<I", max(end - 4, 0)) + data[4:end], regions), end
        for by in (1, 2, 9):
            assert refused(levels, coding, longer(by), regions), by
        assert refused(levels, coding, changed(0, b"\xff\xff\xff\xff"), regions)
        assert refused(levels, coding, changed(5, b"\0\0\x80\x7f"), regions)  # the scale of the bucket
        assert refused(levels, coding, changed(5, b"\0\0\x80\xbf"), regions)
        if coding == "huffman":
            for lengths in (bytes(8), b"\x11" * 8, b"\xff" * 8, b"\x01" + bytes(7), b"\xdd" * 8):
                assert refused(levels, coding, changed(9, lengths), regions)
            assert refused(levels, coding, changed(17, b"\xff\xff\xff\xff"), regions)
        if coding == "rans":
            assert refused(levels, coding, changed(9, bytes(8)), regions)
            assert refused(levels, coding, changed(9, b"\xff" * 8), regions)
            assert refused(levels, coding, data[:-130] + bytes(130), regions)


@pytest.mark.parametrize("level", LEVELS)
def test_patterns_that_are_free_are_refused(level):
    levels, n = Levels.uniform(4, True), 3000
    regions, streams = in_buckets(n, 0, n), struct.pack("<III", 94, 94, 94) + bytes(4 * 94)
    for lengths, fit in ((b"\x01" + bytes(7), False), (b"\x11" + bytes(7), True), (b"\x11\x01" + bytes(6), False)):
        section = bytes([PREFIX]) + f32(1).tobytes() + lengths + streams
        with simd(level):
            assert refused(levels, "huffman", struct.pack("<I", len(section)) + section, regions) == (not fit)


@pytest.mark.parametrize("level", LEVELS)
def test_states_that_do_not_come_back_are_refused(level):
    levels, n = Levels.uniform(4, True), 3000
    regions = in_buckets(n, 0, n)
    data = encoded(levels, "rans", np.zeros(n, f32), regions)
    last = struct.unpack("<I", data[-4:])[0]  # one code alone: no words behind the states
    with simd(level):
        assert not refused(levels, "rans", data, regions)
        assert refused(levels, "rans", data[:-4] + struct.pack("<I", last + 4096), regions)


@every_coding
def test_a_change_of_any_byte_is_refused_or_decodes_to_finite_values(coding):
    """What the last states and the ends of streams do not show, checksums of the transport must."""
    levels, n = Levels.uniform(3, True), 400
    x, regions = np.random.default_rng(6).standard_normal(n).astype(f32), in_buckets(n, 0, 200)
    x[100:] *= 0.01 if coding == "elias" else 1
    data, rng = encoded(levels, coding, x, regions), np.random.default_rng(7)
    for at in range(len(data)):
        refused(levels, coding, data[:at] + rng.bytes(1) + data[at + 1 :], regions)


def test_what_it_cannot_do_is_refused():
    levels, regions = Levels.uniform(3, True), in_buckets(10, 0, 5)
    x, wire = np.zeros(10, f32), np.zeros(100, np.uint8)
    with pytest.raises(ValueError, match="huffman, elias, rans"):
        _kernels.coded_encode(x, None, None, wire, levels, "golomb", False, regions, STREAM)
    with pytest.raises(ValueError, match="bytes of wire: got 3"):
        _kernels.coded_encode(x, None, None, wire[:3], levels, "rans", False, regions, STREAM)
    with pytest.raises(ValueError, match="elements of y: got 9"):
        _kernels.coded_decode(wire, x[:9], levels, "rans", regions)

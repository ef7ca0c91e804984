"""Golomb-Rice codes of adaptive's entries: what they stand for by the decoder of docs/wire.md; malformed ones."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from level_oracles import f32
from simd import LEVELS, on_every_level, simd

from gqallreduce import Scheme, _kernels
from gqallreduce.coding.layout import columns
from gqallreduce.errors import WireError

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
DECODER = {"struct": struct}
for function in ("units", "with_entries"):
    exec(re.search(rf"^def {function}\(.*?(?=^\n?(def|```))", PAGE, re.MULTILINE | re.DOTALL).group(0), DECODER)
with_entries = DECODER["with_entries"]


def message(x, regions, pi) -> bytes:
    """Of adaptive with scope=column."""
    room = _kernels.adaptive_select_bound(regions, pi)
    index, value, counts = np.empty(room, np.uint32), np.empty(room, f32), np.empty(len(regions), np.int64)
    count = _kernels.adaptive_select_columns(x, None, None, index, value, counts, regions, pi, False)
    wire = np.empty(_kernels.adaptive_nbytes(regions, count), np.uint8)
    assert _kernels.adaptive_encode(index[:count], value[:count], counts, None, wire, regions) == wire.size
    return wire.tobytes()


def encoded(data: bytes, regions) -> bytes:
    wire = np.full(_kernels.golomb_bound(regions, len(data)) + 9, 0xA5, np.uint8)
    nbytes = _kernels.golomb_encode(np.frombuffer(data, np.uint8), wire[:-9], regions)
    assert (wire[-9:] == 0xA5).all()
    return wire[:nbytes].tobytes()


def decoded(data: bytes, regions) -> tuple:
    found, nbytes = _kernels.golomb_decode(np.frombuffer(data, np.uint8), regions)
    assert _kernels.golomb_entries(np.frombuffer(data, np.uint8), regions)[1] == nbytes
    return found.tobytes(), nbytes


@examples(100)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 7, 64, 1000]), st.sampled_from([1, 60, 4096, 32767]))
def test_entries_come_back(seed, pi, run):
    rng = np.random.default_rng(seed)
    rows = [(int(rng.integers(0, 4000)), int(rng.integers(0, 3000)), run, 1, 0) for _ in range(rng.integers(1, 4))]
    regions = _kernels.Regions(rows)
    x = (rng.standard_normal(regions.size) * (rng.random(regions.size) < rng.random())).astype(f32)
    data = message(x, regions, pi)
    every = on_every_level(lambda: encoded(data, regions))
    assert len(set(every.values())) == 1
    coded = every[LEVELS[0]]
    assert len(coded) <= len(data) + 5 * len(rows)
    for level in LEVELS:
        with simd(level):
            assert decoded(coded + b"\xff" * 11, regions) == (data, len(coded))
    at, mine = 0, b""
    for size, start, *_ in rows:
        part, nbytes = with_entries(coded[at:], start, size, run)
        at, mine = at + nbytes, mine + part
    assert (mine, at) == (data, len(coded))


def test_random_places_take_what_rice_codes_do():
    """pi = 64: 8.53 bits per entry, k = 5; the entropy is 8.43 (docs/codecs.md)."""
    x = np.random.default_rng(1).standard_normal(1 << 18).astype(f32)
    scheme, fixed = (Scheme.parse(f"adaptive(pi=64{coding})") for coding in (", coding=golomb", ""))
    saved = len(fixed.encode(x)) - len(scheme.encode(x))
    assert 16 - 8.56 < 8 * saved / (x.size / 64) < 16 - 8.50
    assert scheme.encode(x)[32 + 12 * 64 + 4] == 5


def test_entries_are_counted():
    codec = Scheme.parse("adaptive(pi=16, coding=golomb)").codec
    grid = codec.grid(columns((3000,), "C"))
    regions = _kernels.Regions([(3000, 0, grid.run, 1, 0), (500, 0, 60, 1, 1)])
    data = message(np.ones(3500, f32), regions, 16)
    entries = _kernels.golomb_entries(np.frombuffer(encoded(data, regions), np.uint8), regions)[0]
    assert entries == 3000 // 16 + 8 * (60 // 16) + 20 // 16


@pytest.mark.parametrize("level", LEVELS)
def test_malformed_messages_are_refused(level):
    regions = _kernels.Regions([(2000, 0, 1000, 1, 0)])
    x = np.random.default_rng(2).standard_normal(2000).astype(f32)
    good = encoded(message(x, regions, 10), regions)
    header = 2 * 12 + 4

    def refused(data: bytes) -> bool:
        try:
            decoded(data, regions)
        except WireError:
            return True
        return False

    def changed(at: int, value: bytes) -> bytes:
        return good[:at] + value + good[at + len(value) :]

    with simd(level):
        assert not refused(good)
        assert good[header] < 15
        assert all(refused(good[:end]) for end in (0, 3, header, header + 4, header + 5, len(good) - 1))
        for k in (15, 16, 254, 255):
            assert refused(changed(header, bytes([k]))), k
        (nbytes,) = struct.unpack_from("<I", good, header + 1)
        for other in (nbytes - 1, nbytes + 1, 0, 2**32 - 1):
            assert refused(changed(header + 1, struct.pack("<I", other)) + bytes(9)), other
        assert refused(changed(24, struct.pack("<I", 2001)))
        assert refused(changed(24, struct.pack("<I", 2**32 - 1)))
        assert refused(changed(0, struct.pack("<I", 1)))
        assert refused(changed(12, struct.pack("<I", 300)))
        assert refused(changed(header + 5, b"\xff" * 60))  # a row behind all that there may be
        assert refused(changed(len(good) - 1, b"\xff"))


def test_what_it_cannot_do_is_refused():
    regions = _kernels.Regions([(20, 0, 10, 1, 0)])
    with pytest.raises(ValueError, match="message: got 3 bytes"):
        _kernels.golomb_encode(np.zeros(3, np.uint8), np.zeros(100, np.uint8), regions)
    with pytest.raises(ValueError, match="bytes of wire: got 40"):
        _kernels.golomb_encode(np.zeros(28, np.uint8), np.zeros(40, np.uint8), regions)


@pytest.mark.parametrize("gap", [31, 32, 33, 63, 64, 3000, 30_000])
def test_a_gap_much_longer_than_the_others(gap):
    """k = 0, so that it takes as many ones."""
    x = np.zeros(32767, f32)
    x[:2000] = x[2000 + gap] = 1
    regions = _kernels.Regions([(x.size, 0, x.size, 1, 0)])
    data = message(x, regions, 1)
    for level in LEVELS:
        with simd(level):
            assert decoded(encoded(data, regions), regions)[0] == data

"""Codes of b bits as a stream of bits, lowest bit first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simd import LEVELS, on_every_level, simd

from gqallreduce import _kernels

SIZES = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 127, 128, 511, 512, 513, 10_001]


def oracle_pack(code, bits):
    each = (code[:, None] >> np.arange(bits)) & 1
    return np.packbits(each.astype(np.uint8).ravel(), bitorder="little")


def pack(code, bits, shift=0):
    room = np.full((len(code) * bits + 7) // 8 + shift + 16, 0xA5, np.uint8)
    wire = room[shift : len(room) - 16]
    _kernels.pack(code, bits, wire)
    assert (room[:shift] == 0xA5).all()
    assert (room[len(room) - 16 :] == 0xA5).all(), "wrote beyond the wire"
    return wire


def unpack(wire, n, bits, shift=0):
    room = np.full(n + shift + 64, 0xA5, np.uint8)
    code = room[shift : shift + n]
    _kernels.unpack(wire, bits, code)
    assert (room[:shift] == 0xA5).all()
    assert (room[shift + n :] == 0xA5).all(), "wrote beyond the codes"
    return code


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("n", SIZES)
def test_packing_follows_the_definition_and_unpacking_undoes_it(level, bits, n):
    code = np.random.default_rng(n).integers(0, 1 << bits, n, dtype=np.uint8)
    with simd(level):
        for shift in (0, 1, 3):
            wire = pack(code, bits, shift)
            np.testing.assert_array_equal(wire, oracle_pack(code, bits))
            np.testing.assert_array_equal(unpack(wire, n, bits, shift), code)


@given(st.integers(1, 8), st.binary(max_size=400), st.integers(0, 7))
def test_every_level_unpacks_any_bytes_alike(bits, wire, missing):
    wire = np.frombuffer(wire, np.uint8)
    n = max(0, len(wire) * 8 // bits - (missing if bits == 1 else 0))
    wire = wire[: (n * bits + 7) // 8]
    results = on_every_level(lambda: unpack(wire, n, bits).tobytes())
    assert len(set(results.values())) == 1


def test_a_code_too_large_or_a_wire_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        _kernels.pack(np.array([4], np.uint8), 2, np.empty(1, np.uint8))
    with pytest.raises(ValueError, match="expected 3"):
        _kernels.pack(np.zeros(9, np.uint8), 2, np.empty(2, np.uint8))
    with pytest.raises(ValueError, match="expected 1 to 8"):
        _kernels.unpack(np.zeros(9, np.uint8), 9, np.empty(8, np.uint8))

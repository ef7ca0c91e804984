"""Particulars of raw: what travels is the number itself."""

import ml_dtypes
import numpy as np
import pytest
from contract import decode, encode, region, vector

from gqallreduce import Scheme, WireError
from gqallreduce.layout import Grid

VARIANTS = ["raw"]
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
PLACE = Grid(4096), 3, 1000, 2000


def bound(dtype: str):
    return Scheme.parse("raw").codec.bind(dtype)


def variance(codec, v, found):
    return np.zeros(v.size)


def spread(codec, v, found):
    return np.zeros(v.size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_wire_is_the_buffers_own_format(dtype):
    codec = bound(dtype)
    x = vector(codec, 1, 1000, "wide") if dtype in ("float32", "float64") else vector(codec, 1, 1000)
    wire, _ = encode(codec, x, None, region(codec, PLACE))
    assert wire.tobytes() == x.astype(DTYPES[dtype]).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_rounded_to_nearest_even_and_the_rest_is_owed(dtype):
    codec = bound(dtype)
    x = vector(codec, 2, 1000)
    wire, owing = encode(codec, x, None, region(codec, PLACE))
    back = x.astype(DTYPES[dtype]).astype(np.float32)
    np.testing.assert_array_equal(decode(codec, wire, region(codec, PLACE)), back)
    np.testing.assert_array_equal(owing, x - back)
    assert owing.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_lost_so_nothing_is_owed(dtype):
    codec = bound(dtype)
    _, owing = encode(codec, vector(codec, 2, 1000), None, region(codec, PLACE))
    assert not owing.any()


@pytest.mark.parametrize(("dtype", "word"), [("float16", 0x7C00), ("bfloat16", 0xFF80), ("float32", 0x7FC00001)])
def test_a_number_on_the_wire_that_is_not_finite_is_refused(dtype, word):
    codec = bound(dtype)
    found = region(codec, PLACE)
    wire, _ = encode(codec, vector(codec, 3, 1000), None, found)
    wire[-codec.itemsize :] = np.frombuffer(word.to_bytes(codec.itemsize, "little"), np.uint8)
    for read in (codec.decode, codec.decode_add):
        with pytest.raises(WireError):
            read(wire, np.zeros(1000, codec.working), found)


def test_float16_overflow_is_not_finite_and_never_saturates():
    codec = bound("float16")
    x = np.array([65519.0, 65520.0], np.float32)
    found = region(codec, (Grid(4096), 0, 1, 1))
    assert decode(codec, encode(codec, x[:1], None, found)[0], found) == 65504
    assert isinstance(encode(codec, x[1:], None, found)[0], int)

"""Particulars of raw: it sends what is in the buffer. What it shares with its kin is in test_plain.py."""

import numpy as np
import pytest
from contract import encode, region, vector

from gqallreduce import Scheme, WireError
from gqallreduce.coding.layout import Form, Grid

VARIANTS = ["raw"]


def variance(codec, v, found):
    return np.zeros(v.size)


def spread(codec, v, found):
    return np.zeros(v.size)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_a_sixteen_bit_buffer_it_is_the_codec_of_that_name(dtype):
    assert Scheme.parse("raw").codec.bind(Form((7,), "C", dtype)) == Scheme.parse(dtype).codec


def test_on_a_float64_buffer_nothing_passes_through_float32():
    codec = Scheme.parse("raw").codec.bind(Form((7,), "C", "float64"))
    x = np.array([1 + 2**-50, 1e300, 5e-324])
    wire, new_residual = encode(codec, x, None, region(codec, (Grid(4096), 0, 3, 3)))
    assert wire.tobytes() == x.tobytes()
    assert not new_residual.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_message_that_holds_what_is_not_finite_is_refused(dtype, value):
    codec = Scheme.parse("raw").codec.bind(Form((7,), "C", dtype))
    found = region(codec, (Grid(4096), 0, 100, 100))
    wire, y = np.zeros(100, dtype), np.zeros(100, dtype)
    wire[99] = value
    for read in (codec.decode, codec.decode_add):
        with pytest.raises(WireError):
            read(wire.view(np.uint8), y, found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_lost_so_the_new_residual_is_zero(dtype):
    codec = Scheme.parse("raw").codec.bind(Form((7,), "C", dtype))
    found = region(codec, (Grid(4096), 3, 1000, 2000))
    residual = vector(codec, 1, 1000, "wide").astype(np.float32)
    _, new_residual = encode(codec, vector(codec, 2, 1000), residual, found)
    assert not new_residual.any()

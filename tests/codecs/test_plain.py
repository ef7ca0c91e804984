"""The codecs that send numbers as they are, in one format each: what travels is the number, rounded to nearest even."""

import ml_dtypes
import numpy as np
import pytest
from contract import KINDS, decode, encode, formed, region, vector
from schemes import CODEC

from gqallreduce import WireError
from gqallreduce.coding.layout import Grid
from gqallreduce.coding.plain import PlainCodec

PLAIN = {name: codec for name, codec in CODEC.items() if isinstance(codec, PlainCodec)}
FORMATS = {"raw": np.float32, "raw on float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PLACE = Grid(4096), 3, 1000, 2000
every_codec = pytest.mark.parametrize("name", PLAIN)


def test_every_plain_codec_has_a_format():
    assert set(PLAIN) == set(FORMATS)


@every_codec
@pytest.mark.parametrize("kind", KINDS)
def test_the_wire_is_the_values_in_their_format(name, kind):
    codec = PLAIN[name]
    found = region(codec, PLACE)
    x = vector(codec, 1, 1000, kind)
    for residual in (None, vector(codec, 2, 1000, "ties").astype(np.float32)):
        with np.errstate(over="ignore"):
            expected = formed(codec, x, residual).astype(FORMATS[name])
        wire, _ = encode(codec, x, residual, found)
        if np.isfinite(expected.astype(np.float64)).all():
            assert wire.tobytes() == expected.tobytes()
            np.testing.assert_array_equal(decode(codec, wire, found), expected.astype(codec.working))
        else:
            assert isinstance(wire, int)


@every_codec
def test_the_new_residual_is_what_rounding_loses_and_nothing_else(name):
    codec = PLAIN[name]
    x = vector(codec, 2, 1000)
    _, new_residual = encode(codec, x, None, region(codec, PLACE))
    np.testing.assert_array_equal(new_residual, x - x.astype(FORMATS[name]).astype(codec.working))
    assert new_residual.any() == (codec.itemsize == 2)


@every_codec
def test_a_number_on_the_wire_that_is_not_finite_is_refused(name):
    codec = PLAIN[name]
    found = region(codec, PLACE)
    for value in (np.inf, -np.inf, np.nan):
        wire, _ = encode(codec, vector(codec, 3, 1000), None, found)
        wire[-codec.itemsize :] = np.array([value]).astype(FORMATS[name]).view(np.uint8)
        for read in (codec.decode, codec.decode_add):
            with pytest.raises(WireError):
                read(wire, np.zeros(1000, codec.working), found)


@every_codec
def test_a_value_is_carried_if_it_is_finite_in_the_format(name):
    codec = PLAIN[name]
    most = float(ml_dtypes.finfo(FORMATS[name]).max)
    with np.errstate(over="ignore"):
        x = np.array([0, -1, most, -most, most * 1.003, np.inf, np.nan], codec.working)
    narrow = codec.itemsize == 2
    assert codec.carries(x).tolist() == [True, True, True, True, x[4] < np.inf and not narrow, False, False]
    for value, carried in zip(x, codec.carries(x), strict=True):
        message, _ = encode(codec, np.array([value]), None, region(codec, (Grid(4096), 0, 1, 1)))
        assert isinstance(message, int) != carried

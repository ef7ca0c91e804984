"""Promise 9: whatever bytes a decoder is given, it refuses them or yields finite values inside their bounds.

`make sanitize` runs this under address and undefined-behaviour sanitizers too: a read or write out of bounds that the
guards cannot see ends the process there.
"""

import numpy as np
import pytest
from contract import PLACES, Guarded, encode, region, vector
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from schemes import CODEC, TEXTS, variants

from gqallreduce import Outer, Scheme, WireError
from gqallreduce.codecs.mx import MX
from gqallreduce.codecs.natural import Natural
from gqallreduce.coding import frame
from gqallreduce.coding.integers import IntegerCodec
from gqallreduce.coding.layout import Grid, Region
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.coding.plain import PlainCodec
from gqallreduce.coding.rotated import EdenCodec

every_codec = variants("codec", CODEC)
every_text = variants("text", TEXTS)
MOST = examples(60)


@st.composite
def places(draw):
    start, size = draw(st.integers(0, 200)), draw(st.integers(0, 200))
    run = draw(st.integers(1, 120))
    return Grid(run, draw(st.integers(1, run))), start, size, start + size + draw(st.integers(0, 100))


@st.composite
def mutated(draw, message: bytes) -> bytes:
    """A message with bits flipped, bytes set, cut out, put in, cut off or added."""
    data = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "truncate", "extend", "copy"]))
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and data:
            data[at : at + 4] = draw(st.sampled_from([b"\xff\xff\xff\xff", bytes(4), b"\0\0\x80\x7f", b"\0\0\xc0\x7f"]))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 9))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=9))
        elif kind == "truncate":
            del data[at:]
        elif kind == "extend":
            data += draw(st.binary(max_size=40))
        else:
            data += data[at:]
    return bytes(data)


def harmless(codec, data: bytes, found: Region) -> bool:
    """Decode both ways; True if the bytes were taken."""
    wire = Guarded(np.frombuffer(data, np.uint8))
    taken = []
    for read in (codec.decode, codec.decode_add):
        y = Guarded(np.zeros(found.size, codec.working))
        try:
            nbytes = read(wire.array, y.array, found)
            taken.append(y.array.copy())
        except WireError:
            taken.append(None)
        else:
            assert 0 <= nbytes <= len(data)
            assert np.isfinite(y.array).all()
        y.check()
        wire.check()
        assert wire.array.tobytes() == data
    assert (taken[0] is None) == (taken[1] is None), "only one of decode and decode_add refused"
    if taken[0] is None:
        return False
    np.testing.assert_array_equal(*taken)
    bounded(codec, data, taken[0])
    return True


def bounded(codec, data: bytes, y) -> None:
    """No value is larger than the largest number the message holds: its norms, scales, means or values."""
    if isinstance(codec, PlainCodec) or not y.size:
        return
    reach = codec.levels.reach if isinstance(codec, LevelCodec) else 1.0
    if isinstance(codec, IntegerCodec):
        reach = float(codec.terms)
    if isinstance(codec, EdenCodec) or getattr(codec, "rotate", False):  # a bucket's norm may go into one value
        reach *= 2.74 * np.sqrt(codec.bucket)
    if isinstance(codec, MX | Natural):
        assert np.abs(y).max() <= reach * max(2.0 ** (byte - 127) for byte in data if byte < 255)
        return
    padded = data + bytes(3)
    words = [np.frombuffer(padded[shift : shift + (len(padded) - shift) // 4 * 4], np.float32) for shift in range(4)]
    numbers = np.abs(np.concatenate(words))
    assert np.abs(y).max() <= reach * float(numbers[np.isfinite(numbers)].max(initial=0))


@every_codec
@given(places(), st.binary(max_size=600))
@MOST
def test_any_bytes(codec, place, data):
    harmless(codec, data, region(codec, place))


@every_codec
@given(st.data(), places(), st.integers(0, 3))
@MOST
def test_a_message_with_a_few_faults(codec, data, place, seed):
    found = region(codec, place)
    wire, _ = encode(codec, vector(codec, seed, found.size), None, found)
    assert harmless(codec, wire.tobytes(), found)
    harmless(codec, data.draw(mutated(wire.tobytes())), found)


@every_codec
@given(places(), places())
@MOST
def test_a_message_of_another_region(codec, theirs, ours):
    found = region(codec, theirs)
    wire, _ = encode(codec, vector(codec, 1, found.size), None, found)
    harmless(codec, wire.tobytes(), region(codec, ours))


@every_codec
def test_every_single_bit_flipped(codec):
    found = region(codec, (Grid(9), 4, 21, 50))
    wire, _ = encode(codec, vector(codec, 1, 21), None, found)
    for bit in range(8 * wire.size):
        data = bytearray(wire.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        harmless(codec, bytes(data), found)


@every_codec
def test_a_large_region_from_hardly_any_bytes(codec):
    found = region(codec, PLACES[8])
    for data in (b"", bytes(1), bytes(12), b"\xff" * 64):
        assert not harmless(codec, data, found)


# --- whole messages ---


def decoded(text: str, data: bytes, size: int) -> np.ndarray | None:
    try:
        y = Scheme.parse(text).decode(data, size)
    except WireError:
        return None
    assert y.dtype == np.float32
    assert y.shape == (size,)
    assert np.isfinite(y).all()
    return y


@every_text
@given(st.binary(max_size=300), st.integers(0, 100))
@example(b"", 0)
@example(b"GQ\x01\x00", 0)
@MOST
def test_any_bytes_as_a_message(text, data, size):
    assert decoded(text, data, size) is None


@every_text
@given(st.binary(max_size=300), st.integers(0, 100))
@MOST
def test_any_bytes_behind_a_good_header(text, data, size):
    header = bytearray(frame.SIZE)
    frame.Header(frame.DATA, 0, Scheme.parse(text)._signature(), len(data), 0).write(header)
    decoded(text, bytes(header) + data, size)


@every_text
@given(st.data(), st.integers(0, 100))
@MOST
def test_a_message_with_faults_anywhere(text, data, size):
    message = Scheme.parse(text).encode(vector(Scheme.parse("raw").codec, 1, size))
    assert decoded(text, message, size) is not None
    decoded(text, data.draw(mutated(message)), size)


@every_text
@pytest.mark.parametrize("size", [0, 1, 40, 200_000])
def test_bytes_after_the_last_value_are_refused_though_the_header_announces_them(text, size):
    message = bytearray(Scheme.parse(text).encode(np.ones(size, np.float32))) + b"\0\0\0\0"
    header = frame.read(message)
    header._replace(word=header.word + 4).write(message)
    assert decoded(text, bytes(message), size) is None


@every_text
@pytest.mark.parametrize("size", [0, 1, 40, 1000])
def test_another_size_scheme_or_length_is_refused(text, size):
    message = Scheme.parse(text).encode(vector(Scheme.parse("raw").codec, 1, size))
    assert decoded(text, message[:-1], size) is None
    assert decoded(text, message + b"\0", size) is None
    for other in TEXTS:
        assert (decoded(other, message, size) is None) == (other != text)
    if size:
        assert decoded(text, message, 3 * size + 40000) is None


@pytest.mark.parametrize("text", ["powersgd(rank=1)", "powersgd(rank=2, inner=qsgd(bits=8))", "gradiveq(K=5)"])
@given(st.binary(min_size=20, max_size=300), st.booleans())
@MOST
def test_any_payload_for_a_matrix(text, payload, large):
    """As long as a message may be, so that numbers of all sizes reach the products."""
    scheme, shape = Scheme.parse(text), (5, 7)
    data = bytearray(scheme.encode(np.ones(shape, np.float32)))
    wanted = len(data) - 32
    data[32:] = (payload * 20)[:wanted] if not large else (b"\xff\xff\x7f\x7f" * 99)[:wanted]
    try:
        y = scheme.decode(bytes(data), shape)
    except WireError:
        return
    assert y.shape == (35,)
    assert np.isfinite(y).all()


FACTORS = ["isgq(bits=1)", "isgq(bits=3, x_bits=2)", "isgq(bits=8, scale=matrix)", "isgq(method=mse, bits=2)"]
PRODUCTS = {
    "dense": Outer(np.ones((3, 5), np.float32), np.ones((3, 4), np.float32)),
    "convolution": Outer(np.ones((2, 2, 4, 3), np.float32), np.ones((2, 3, 3, 2), np.float32), kernel=2),
}


@pytest.mark.parametrize("text", FACTORS)
@pytest.mark.parametrize("like", PRODUCTS)
@given(st.data())
@MOST
def test_any_bytes_for_the_factors_of_a_gradient(text, like, data):
    """Messages that were changed, and payloads of any bytes, numbers of all sizes among them."""
    scheme, like = Scheme.parse(f"{text[:-1]}, send=factors)"), PRODUCTS[like]
    message = scheme.encode(like)
    if data.draw(st.booleans()):
        message = data.draw(mutated(message))
    else:
        payload = data.draw(st.binary(min_size=4, max_size=64)) + b"\xff\xff\x7f\x7f" * data.draw(st.integers(0, 30))
        message = message[: 32 + 4] + (payload * 40)[: len(message) - 36]
    try:
        y = scheme.decode(message, like)
    except WireError:
        return
    assert y.shape == (np.prod(like.shape),)
    assert np.isfinite(y).all()

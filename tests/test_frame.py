"""The 32 bytes before every wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce import WireError, _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.frame import Header

headers = st.builds(
    Header,
    kind=st.sampled_from(range(frame.OBJECT + 1)),
    step=st.integers(0, 2**32 - 1),
    signature=st.integers(0, 2**64 - 1),
    word=st.integers(0, 2**64 - 1),
    rank=st.integers(0, 2**32 - 1),
    hop=st.integers(0, 2**16 - 1),
    lane=st.integers(0, 255),
)


def written(header: Header) -> bytes:
    buffer = bytearray(b"\xee" * (frame.SIZE + 5))
    header.write(buffer)
    assert buffer[frame.SIZE :] == b"\xee" * 5
    return bytes(buffer[: frame.SIZE])


def test_a_header_is_at_most_32_bytes():
    assert frame.SIZE <= 32


@given(headers)
def test_a_header_comes_back_as_written(header):
    assert frame.read(written(header)) == header
    assert frame.read(written(header) + b"more") == header


@given(headers, headers)
def test_different_headers_have_different_bytes(one, other):
    assert (written(one) == written(other)) == (one == other)


def test_these_are_the_bytes():
    header = Header(frame.DATA, 0x01020304, 0x1112131415161718, 0x2122, 0x31323334, 0x4142, 5)
    assert written(header).hex() == "4751010004030201181716151413121122210000000000003433323142410500"


def test_the_step_wraps_at_32_bits():
    assert frame.read(written(Header(frame.DATA, 2**32 + 7, 0, 0, 0))).step == 7


@pytest.mark.parametrize(("at", "value"), [(0, 0x48), (1, 0), (2, 0), (2, 2), (3, 9), (3, 255), (31, 1)])
def test_what_is_no_frame_of_this_version_is_refused(at, value):
    data = bytearray(written(Header(frame.DATA, 1, 2, 3, 4, 5, 6)))
    data[at] = value
    with pytest.raises(WireError):
        frame.read(data)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_refused(data):
    try:
        header = frame.read(data)
    except WireError:
        assert len(data) < frame.SIZE or data[:3] != b"GQ\x01" or data[3] > 2 or data[31]
        return
    assert written(header) == data[: frame.SIZE]


def test_counts_that_wrap_have_an_order():
    assert frame.is_before(3, 4)
    assert not frame.is_before(4, 4)
    assert not frame.is_before(5, 4)
    assert frame.is_before(2**32 - 1, 0)
    assert not frame.is_before(0, 2**32 - 1)
    assert frame.is_before(-1, 0)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_mix_of_two_words_is_as_docs_wire_md_says(one, other):
    def finalized(word):
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    assert _kernels.mixed(one, other) == finalized(finalized(one) ^ other)


@given(st.lists(st.tuples(st.integers(0, 2**32), st.integers(1, 2**64 - 1)), min_size=2, max_size=4, unique=True))
def test_marks_count_in_any_order_and_none_leaves_a_signature_as_it_is(marks):
    signature = backwards = 5
    for number, mark in marks:
        signature = _kernels.marked(signature, number, mark)
    for number, mark in reversed(marks):
        backwards = _kernels.marked(backwards, number, mark)
    assert signature == backwards
    assert _kernels.marked(5, 3, 0) == 5

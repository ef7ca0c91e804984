"""Whether two buffers share memory: exactly, for all forms that a buffer's memory has."""

from types import SimpleNamespace

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.overlap import Runs, runs, share_a_byte


def test_overlap_is_partial_unless_it_is_the_same_or_none():
    room = np.zeros(20, np.float32)
    one, same, shifted, other = (Buffer(part) for part in (room[:10], room[:10], room[5:15], room[10:]))
    assert not one.overlaps_partly(same)
    assert one.overlaps_partly(shifted)
    assert not one.overlaps_partly(other)
    assert not Buffer(room[:0]).overlaps_partly(one)
    square = np.zeros((4, 4), np.float32)
    assert Buffer(square).overlaps_partly(Buffer(square.T))
    column = np.lib.stride_tricks.as_strided(square, (4, 1), (4, 400))
    assert not Buffer(column).overlaps_partly(Buffer(square[0].reshape(4, 1)))


def test_columns_of_one_matrix_overlap_only_where_they_share_an_element():
    matrix = np.zeros((6, 10), np.float32)
    left, right, middle = (Buffer(matrix[:, columns]) for columns in (slice(5), slice(5, 10), slice(3, 8)))
    assert not left.overlaps_partly(right)
    assert not right.overlaps_partly(left)
    assert left.overlaps_partly(middle)
    assert right.overlaps_partly(middle)
    assert not left.overlaps_partly(Buffer(matrix[:, :5]))
    assert left.overlaps_partly(Buffer(matrix[1:, :5]))
    assert not Buffer(matrix[::2]).overlaps_partly(Buffer(matrix[1::2]))


def test_memory_of_a_device_is_told_by_its_address():
    view = SimpleNamespace(data=SimpleNamespace(ptr=4096), ndim=2, shape=(3, 4), strides=(20, 4), itemsize=4)
    assert runs(view) == Runs(4096, 3, 16, 20)


@st.composite
def runs_in_a_room(draw):
    """A view of 200 bytes: runs with gaps, or one run; a byte each, so that all distances occur."""
    run = draw(st.integers(1, 12))
    leading = run + draw(st.integers(0, 20))
    count = draw(st.integers(1, (200 - run) // leading + 1))
    begin = draw(st.integers(0, 200 - run - (count - 1) * leading))
    return begin, (count, run), (leading, 1)


@given(runs_in_a_room(), runs_in_a_room())
@examples(2000)
def test_two_memories_meet_if_and_only_if_a_byte_is_in_both(one, other):
    room = np.zeros(200, np.uint8)
    views = [np.lib.stride_tricks.as_strided(room[begin:], *form) for begin, *form in (one, other)]
    expected = np.shares_memory(*views)
    assert share_a_byte(*map(runs, views)) is share_a_byte(*map(runs, views[::-1])) is expected

"""Every order of axes that leaves no gaps in memory: its text, columns and positions, and the way there and back."""

import itertools

import numpy as np
import pytest
from dlpacked import Tensor
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.layout import columns
from gqallreduce.coding.order import axes, c_index, in_memory, to_array, to_vector

SHAPE = (2, 3, 4, 5)
ORDERS = {",".join(map(str, each)): each for each in itertools.permutations(range(4))}
every_order = pytest.mark.parametrize(("text", "slowest_first"), ORDERS.items(), ids=list(ORDERS))
few_axes = st.lists(st.integers(1, 4), max_size=5).map(tuple)


def ordered(shape, slowest_first) -> np.ndarray:
    """Elements numbered as they lie in memory."""
    memory = np.arange(np.prod(shape), dtype=np.float32).reshape([shape[axis] for axis in slowest_first])
    return memory.transpose(np.argsort(slowest_first))


@every_order
def test_a_buffer_in_any_order_of_axes_is_one_run_in_place(text, slowest_first):
    array = ordered(SHAPE, slowest_first)
    buffer = Buffer(array)
    assert buffer.order == {"0,1,2,3": "C", "3,2,1,0": "F"}.get(text, text)
    np.testing.assert_array_equal(buffer.flat, np.arange(120))
    assert np.shares_memory(buffer.flat, array)
    assert axes(4, buffer.order) == slowest_first


@every_order
def test_columns_are_those_of_the_memory(text, slowest_first):
    assert columns(SHAPE, text) == columns(tuple(SHAPE[axis] for axis in slowest_first), "C")


def test_images_with_their_channels_last_have_a_known_order():
    assert Buffer(np.zeros((8, 5, 7, 3), np.float32).transpose(0, 3, 1, 2)).order == "0,2,3,1"
    strided_as_torch = np.lib.stride_tricks.as_strided(np.zeros(840, np.float32), (8, 3, 5, 7), (420, 4, 84, 12))
    assert Buffer(Tensor(strided_as_torch)).order == "0,2,3,1"


@given(st.data())
def test_the_order_is_one_text_whatever_strides_an_axis_of_one_element_states(data):
    shape = data.draw(few_axes)
    array = ordered(shape, data.draw(st.permutations(range(len(shape)))))
    stated = [
        stride if extent > 1 else 4 * data.draw(st.integers(0, 100))
        for extent, stride in zip(shape, array.strides, strict=True)
    ]
    again = Buffer(np.lib.stride_tricks.as_strided(array, shape, stated))
    assert again.order == Buffer(array).order
    assert (again.order == "C") == array.flags.c_contiguous
    assert (again.order == "F") == (array.flags.f_contiguous and not array.flags.c_contiguous)
    np.testing.assert_array_equal(again.flat, np.arange(array.size))


@given(st.data())
def test_a_vector_becomes_an_array_and_the_array_that_vector(data):
    shape = data.draw(few_axes)
    order = data.draw(st.sampled_from(["C", "F", Buffer(ordered(shape, range(len(shape)))).order]))
    if shape and data.draw(st.booleans()):
        order = ",".join(map(str, data.draw(st.permutations(range(len(shape))))))
    vector = np.arange(np.prod(shape))
    array = to_array(vector, shape, order)
    assert array.shape == shape
    assert np.shares_memory(array, vector)
    np.testing.assert_array_equal(to_vector(array, order), vector)
    assert np.shares_memory(to_vector(array, order), vector)
    np.testing.assert_array_equal(to_vector(np.ascontiguousarray(array), order), vector)


@every_order
@given(data=st.data())
def test_positions_become_the_least_c_index(text, slowest_first, data):
    positions = data.draw(st.lists(st.integers(0, 119), min_size=1, max_size=5))
    in_c_order = ordered(SHAPE, slowest_first).reshape(-1).tolist()
    assert c_index(np.array(positions), SHAPE, text) == min(map(in_c_order.index, positions))


@every_order
def test_gaps_at_one_place_are_skipped_in_any_order(text, slowest_first):
    for cut in range(1, 4):  # that many of the slowest axes count the runs
        room = np.arange(1000, dtype=np.float32)
        extents = [SHAPE[axis] for axis in slowest_first]
        runs, run = int(np.prod(extents[:cut])), int(np.prod(extents[cut:]))
        memory = room[: runs * (run + 2)].reshape(runs, run + 2)[:, :run]
        outer = np.array(np.empty(extents[:cut], "u1").strides) * 4 * (run + 2)
        strides = [*outer, *np.empty(extents[cut:], np.float32).strides]
        view = np.lib.stride_tricks.as_strided(room, extents, strides).transpose(np.argsort(slowest_first))
        buffer = Buffer(view)
        assert axes(4, buffer.order) == slowest_first
        found = np.empty(120, np.float32)
        buffer.load(0, 120, found)
        np.testing.assert_array_equal(found, memory.reshape(-1))


@pytest.mark.parametrize("text", ["", "K", "0,1,2", "0,1,2,2", "0,1,2,4", "0,1,2,-1"])
def test_what_is_no_order_is_refused(text):
    with pytest.raises(ValueError, match=r"order|invalid literal"):
        axes(4, text)


def test_memory_in_no_order_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"strides \(80, 8\), expected .*leading dimension.*copy it first"):
        in_memory((3, 4), (80, 8), 4)

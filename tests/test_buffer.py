"""Which arrays may be reduced, and that every element of them is reached where it lies."""

import array
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from dlpacked import Tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from reductions import DTYPES, LAYOUTS, placed

from gqallreduce.buffer import Buffer
from gqallreduce.overlap import Runs, meet, runs

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
SHAPES = [(), (1,), (5,), (0,), (3, 4), (1, 7), (7, 1), (2, 3, 4), (0, 3), (1, 1, 1), (4, 1, 5)]


def loaded(buffer: Buffer, start=0, stop=None) -> np.ndarray:
    stop = buffer.size if stop is None else stop
    y = np.full(stop - start, np.nan, np.float32)
    buffer.load(start, stop, y)
    return y


@every_dtype
@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_buffer_is_its_array_in_memory_order(dtype, order, shape):
    given = placed(np.arange(np.prod(shape)).reshape(shape), dtype, order)
    buffer = Buffer(given)
    assert (buffer.shape, buffer.dtype, buffer.size) == (shape, dtype, given.size)
    one_axis = sum(extent > 1 for extent in shape) < 2
    assert buffer.order == ("C" if given.flags.c_contiguous or one_axis else order[0])
    np.testing.assert_array_equal(loaded(buffer), given.astype(np.float32).reshape(-1, order=buffer.order))
    assert buffer.flat is None or np.shares_memory(buffer.flat, given) or not given.size
    assert (buffer.flat is None) == (dtype in ("float16", "bfloat16") or ("gaps" in order and buffer._memory.ndim == 2))


@every_dtype
@pytest.mark.parametrize("order", LAYOUTS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_part_is_loaded_and_stored_alone(dtype, order, data):
    given = placed(np.arange(60).reshape(5, 12), dtype, order)
    buffer = Buffer(given)
    start = data.draw(st.integers(0, 60))
    stop = data.draw(st.integers(start, 60))
    before = given.astype(np.float32).reshape(-1, order=buffer.order)
    np.testing.assert_array_equal(loaded(buffer, start, stop), before[start:stop])
    outside = given.base.copy() if given.base is not None else None
    assert not buffer.store(start, stop, -1 - before[start:stop])
    before[start:stop] = -1 - before[start:stop]
    np.testing.assert_array_equal(given.astype(np.float32).reshape(-1, order=buffer.order), before)
    if "gaps" in order:
        changed = given.base.astype(float) != outside.astype(float)
        assert changed.sum() == stop - start


@every_dtype
def test_storing_rounds_to_nearest_even_and_tells_of_overflow(dtype):
    target = np.zeros(4, DTYPES[dtype])
    values = np.array([1 / 3, 1 + 2**-9, -1e-5, 7], np.float32)
    assert not Buffer(target).store(0, 4, values)
    np.testing.assert_array_equal(target, values.astype(DTYPES[dtype]))
    values[2] = np.inf
    assert Buffer(target).store(0, 4, values)
    assert Buffer(target).store(0, 1, np.array([7e4], np.float32)) == (dtype == "float16")


def test_a_float64_beyond_float32_becomes_an_infinity():
    np.testing.assert_array_equal(loaded(Buffer(np.array([1e39, -1e39, 1.0]))), [np.inf, -np.inf, 1])


# --- the first index in C order ---


@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 3, 4)], ids=str)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_positions_in_memory_become_the_least_c_index(order, shape, data):
    numbers = np.arange(np.prod(shape)).reshape(shape)
    buffer = Buffer(placed(numbers, "float32", order))
    positions = data.draw(st.lists(st.integers(0, numbers.size - 1), min_size=1, max_size=5))
    expected = loaded(buffer)[positions].min()
    assert buffer.c_index(np.array(positions)) == expected


# --- what else is an array ---


@pytest.mark.parametrize("code", "fd")
def test_a_python_array_shares_its_memory(code):
    given = array.array(code, [1, 2, 3])
    buffer = Buffer(given)
    buffer.store(0, 3, np.array([4, 5, 6], np.float32))
    assert list(given) == [4, 5, 6]
    assert buffer.owner is given


def test_a_memoryview_shares_its_memory():
    memory = bytearray(8)
    buffer = Buffer(memoryview(memory).cast("f"))
    buffer.require_writable("buf")
    buffer.store(0, 2, np.ones(2, np.float32))
    assert bytes(memory) == np.ones(2, np.float32).tobytes()


def test_an_array_interface_shares_its_memory():
    class Holder:
        def __init__(self, values):
            self.values = values
            self.__array_interface__ = values.__array_interface__

    values = np.zeros((2, 3), np.float32)
    Buffer(Holder(values)).store(0, 6, np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(values, [[0, 1, 2], [3, 4, 5]])


@every_dtype
@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 64])
def test_dlpack_shares_its_memory(dtype, order, offset):
    values = placed(np.arange(15).reshape(3, 5), dtype, order)
    buffer = Buffer(Tensor(values, 4 if dtype == "bfloat16" else 2, offset=offset))
    assert (buffer.shape, buffer.dtype, buffer.order) == ((3, 5), dtype, order[0])
    buffer.store(0, 15, -loaded(buffer))
    np.testing.assert_array_equal(values.astype(float), -np.arange(15).reshape(3, 5))


def test_dlpack_without_strides_is_in_c_order():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert Buffer(Tensor(values, strides=False)).order == "C"
    assert Buffer(Tensor(np.zeros((), np.float32))).shape == ()
    assert Buffer(Tensor(np.zeros((0, 3), np.float32))).shape == (0, 3)


@pytest.mark.parametrize(
    "wrong", [{"code": 0}, {"code": 5}, {"bits": 8}, {"lanes": 2}, {"device": 10}, {"device": 8}], ids=str
)
def test_other_dlpack_is_refused(wrong):
    with pytest.raises(TypeError):
        Buffer(Tensor(np.zeros(4, np.float32), **wrong))


def test_dlpack_with_negative_strides_is_refused():
    with pytest.raises(ValueError, match="strides"):
        Buffer(Tensor(np.zeros(4, np.float32)[::-1]))


def test_a_torch_tensor_shares_its_memory():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.arange(6, dtype=dtype).reshape(2, 3)
        buffer = Buffer(tensor)
        assert buffer.dtype == str(dtype).removeprefix("torch.")
        buffer.store(0, 6, -loaded(buffer))
        assert (tensor == -torch.arange(6, dtype=dtype).reshape(2, 3)).all()
    with pytest.raises((TypeError, ValueError, RuntimeError, BufferError)):
        Buffer(torch.zeros(3, requires_grad=True))


# --- what is refused ---


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3, np.int32), np.zeros(3, np.uint16), np.zeros(3, bool), np.zeros(3, np.complex64),
        np.zeros(3, object), np.zeros(3, ">f4"), np.zeros(3, ">f8"), np.zeros(3, ">f2"), np.zeros(3, np.longdouble),
        np.zeros(3, "S4"),
        np.zeros(3, "f4,f4"), np.zeros(3, "M8[s]"), np.zeros(3, ml_dtypes.float8_e4m3fn), [1.0, 2.0], (1.0,), 3.0, None,
        "text", b"text", {}, array.array("i", [1]), np.float32(3).item(),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_float_array_is_a_type_error(value):
    with pytest.raises(TypeError):
        Buffer(value)


BASE = np.zeros((6, 8, 10), np.float32)


@pytest.mark.parametrize(
    "view",
    [
        BASE[::2, 0, 0], BASE[0, 0, ::-1], BASE[:, ::3, :5], BASE[:, :4, :5], BASE[:, :4, :5].transpose(1, 0, 2),
        BASE[0, :, ::2], BASE.transpose(1, 0, 2)[::-1], BASE[::-1], np.broadcast_to(np.float32(1), (3, 4)),
        np.lib.stride_tricks.as_strided(BASE, (4, 5), (8, 4)),
    ],
    ids=lambda view: f"{view.shape}{view.strides}",
)  # fmt: skip
def test_other_strides_are_a_value_error(view):
    with pytest.raises(ValueError, match="strides"):
        Buffer(view)


@pytest.mark.parametrize(
    ("view", "order"),
    [
        (BASE[0, :, :7], "C"), (BASE[:, :5, :], "C"), (BASE[::2], "C"), (BASE[:, ::2, :5], "C"),
        (BASE[0, ::3], "C"), (BASE[1:2, :, :7], "C"), (BASE[:, :, :1], "C"),
        (BASE.T[:7, :, 0], "F"), (BASE.T[:, :3, :], "F"), (BASE[:1, :1, :7], "C"), (BASE[0, 1:2, :4].T, "F"),
        (BASE[:, :, :1].T, "F"), (BASE[0, 0:1, ::10], "C"),
    ],
    ids=lambda value: str(getattr(value, "strides", value)),
)  # fmt: skip
def test_one_leading_dimension_is_taken_wherever_it_is(view, order):
    buffer = Buffer(view)
    assert buffer.order in (order, "C")
    np.testing.assert_array_equal(loaded(buffer), view.reshape(-1, order=buffer.order))


def test_only_a_read_only_buffer_is_not_writable():
    values = np.zeros(3, np.float32)
    Buffer(values).require_writable("buf")
    values.flags.writeable = False
    with pytest.raises(ValueError, match=r"buf is read-only; pass out="):
        Buffer(values).require_writable("buf")
    with pytest.raises(ValueError, match="out is read-only"):
        Buffer(bytes(8) and memoryview(bytes(8)).cast("f")).require_writable("out")


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
@settings(max_examples=2000, deadline=None)
def test_two_memories_meet_if_and_only_if_a_byte_is_in_both(one, other):
    room = np.zeros(200, np.uint8)
    views = [np.lib.stride_tricks.as_strided(room[begin:], *form) for begin, *form in (one, other)]
    expected = np.shares_memory(*views)
    assert meet(*map(runs, views)) is meet(*map(runs, views[::-1])) is expected

"""Which arrays may be reduced, and that every element of them is reached where it lies."""

import array

import ml_dtypes
import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from reductions import DTYPES, LAYOUTS, placed

from gqallreduce.backends.buffer import Buffer

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
    assert (buffer.flat is None) == (dtype in ("float16", "bfloat16") or ("gaps" in order and buffer.memory.ndim == 2))


@every_dtype
@pytest.mark.parametrize("order", LAYOUTS)
@given(data=st.data())
@examples(40)
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
@examples(40)
def test_positions_in_memory_become_the_least_c_index(order, shape, data):
    numbers = np.arange(np.prod(shape)).reshape(shape)
    buffer = Buffer(placed(numbers, "float32", order))
    positions = data.draw(st.lists(st.integers(0, numbers.size - 1), min_size=1, max_size=5))
    expected = loaded(buffer)[positions].min()
    assert buffer.c_index(np.array(positions)) == expected


# --- what is refused ---


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3, np.int32), np.zeros(3, np.uint16), np.zeros(3, bool), np.zeros(3, np.complex64),
        np.zeros(3, object), np.zeros(3, ">f4"), np.zeros(3, ">f8"), np.zeros(3, ">f2"), np.zeros(3, np.longdouble),
        np.zeros(3, "S4"),
        np.zeros(3, "f4,f4"), np.zeros(3, "M8[s]"), np.zeros(3, ml_dtypes.float8_e4m3fn), [1.0, 2.0], (1.0,), 3.0, None,
        "text", b"text", {}, array.array("i", [1]), np.float32(3).item(), np.float32,
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_float_array_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"^got .*, expected "):
        Buffer(value)


@every_dtype
def test_a_numpy_scalar_is_refused_with_what_to_do(dtype):
    """Its memory is not the caller's: each rank would keep its own value."""
    scalar = np.zeros(3, DTYPES[dtype])[0]
    with pytest.raises(TypeError, match=rf"got a NumPy scalar \({dtype}\).*np\.array\(value\)"):
        Buffer(scalar)
    assert Buffer(np.array(scalar)).shape == ()


@pytest.mark.parametrize("mask", [np.ma.nomask, [True, False, False]])
def test_a_masked_array_is_refused_with_what_to_do(mask):
    masked = np.ma.masked_array(np.ones(3, np.float32), mask)
    with pytest.raises(TypeError, match=r"got a masked array.*filled"):
        Buffer(masked)
    assert Buffer(masked.filled(0)).size == 3


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("i8", "int64"), ("?", "bool"), (">f4", "big-endian float32"), (">i2", "big-endian int16"), ("c16", "complex128")],
)
def test_a_dtype_is_refused_by_its_name(dtype, name):
    with pytest.raises(TypeError, match=f"^got dtype {name}, expected native float32, float64, float16, bfloat16$"):
        Buffer(np.zeros(3, dtype))


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

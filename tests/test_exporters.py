"""Objects that are not NumPy's but give their memory: shared, never copied, and read-only where they are."""

import array

import numpy as np
import pytest
from dlpacked import Tensor
from reductions import DTYPES, LAYOUTS, placed

from gqallreduce.backends.buffer import Buffer

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def loaded(buffer: Buffer) -> np.ndarray:
    y = np.full(buffer.size, np.nan, np.float32)
    buffer.load(0, buffer.size, y)
    return y


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
    values = np.zeros((2, 3), np.float32)
    Buffer(Holder(values)).store(0, 6, np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(values, [[0, 1, 2], [3, 4, 5]])


class Holder:
    """Something with `__array_interface__`."""

    def __init__(self, values, **more):
        self.values = values
        self.__array_interface__ = {**values.__array_interface__, **more}


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_a_read_only_array_interface_is_read_only(shape):
    values = np.ones(shape, np.float32)
    values.flags.writeable = False
    buffer = Buffer(Holder(values))
    assert buffer.readonly
    np.testing.assert_array_equal(loaded(buffer), values.reshape(-1))


@pytest.mark.parametrize("data", [np.zeros(3, np.float32).tobytes(), bytearray(12), memoryview(bytes(12)), None])
def test_an_array_interface_without_a_pointer_may_be_a_copy_and_is_refused(data):
    with pytest.raises(TypeError, match="a pointer in __array_interface__"):
        Buffer(Holder(np.zeros(3, np.float32), data=data))


def test_a_masked_array_interface_is_refused():
    with pytest.raises(TypeError, match="got a Holder with a mask"):
        Buffer(Holder(np.zeros(3, np.float32), mask=np.ones(3, bool)))


def test_the_pointer_of_an_array_interface_comes_before_a_copy_that_the_object_would_make():
    class Copying(Holder):
        def __array__(self, *arguments, **options):
            raise AssertionError("asked for a copy")

    values = np.zeros(3, np.float32)
    Buffer(Copying(values)).store(0, 3, np.ones(3, np.float32))
    assert (values == 1).all()


def test_a_matrix_shares_its_memory_in_every_form():
    for values in (np.zeros((3, 4), np.float32), np.zeros((5, 7), np.float32)[:3, :4]):
        buffer = Buffer(values.view(np.matrix))
        buffer.store(2, 11, np.arange(9, dtype=np.float32))
        np.testing.assert_array_equal(values.reshape(-1), [0, 0, *range(9), 0])


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


@pytest.mark.parametrize("wrong", [{"device": 10}, {"device": 8}, {"flags": 0, "major": 2}], ids=str)
def test_other_dlpack_is_refused(wrong):
    with pytest.raises(TypeError, match=r"got (Tensor on )?DLPack"):
        Buffer(Tensor(np.zeros(4, np.float32), **wrong))


@pytest.mark.parametrize(
    ("code", "bits", "lanes", "name"),
    [
        (0, 8, 1, "int8"), (0, 64, 1, "int64"), (1, 16, 1, "uint16"), (6, 8, 1, "bool"), (5, 64, 1, "complex64"),
        (5, 128, 1, "complex128"), (2, 8, 1, "float8"), (10, 8, 1, "float8_e4m3fn"), (12, 8, 1, "float8_e5m2"),
        (4, 16, 4, "bfloat16 in vectors of 4"), (17, 4, 2, "float4_e2m1fn in vectors of 2"), (2, 128, 1, "float128"),
        (3, 64, 1, "opaque64"), (99, 32, 1, "of DLPack type code 99 with 32 bits"),
    ],
)  # fmt: skip
def test_dlpack_of_another_type_is_refused_by_name(code, bits, lanes, name):
    with pytest.raises(TypeError, match=f"got dtype {name}, expected native float32, float64, float16, bfloat16$"):
        Buffer(Tensor(np.zeros(4, np.float32), code, bits, lanes=lanes))


@pytest.mark.parametrize("shape", [(4,), (0, 4), ()])
def test_dlpack_of_version_1_tells_whether_it_is_read_only(shape):
    values = np.ones(shape, np.float32)
    writable, readonly = (Buffer(Tensor(values, flags=flags)) for flags in (0, 1))
    assert (writable.readonly, readonly.readonly) == (False, True)
    np.testing.assert_array_equal(loaded(readonly), values.reshape(-1))
    writable.store(0, values.size, np.full(values.size, 2, np.float32))
    assert (values == 2).all()


def test_a_copy_by_dlpack_is_refused():
    with pytest.raises(TypeError, match="got a copy of the array"):
        Buffer(Tensor(np.zeros(4, np.float32), flags=2))


@pytest.mark.parametrize("module", ["jaxlib._jax", "jaxlib.xla_extension", "jax._src.array", "tensorflow.python.ops"])
@pytest.mark.parametrize("flags", [None, 0])
def test_arrays_that_never_change_are_read_only_though_dlpack_does_not_say_so(module, flags):
    kind = type("ArrayImpl", (Tensor,), {"__module__": module})
    assert Buffer(kind(np.zeros(4, np.float32), flags=flags)).readonly


class Refusing:
    """Something that does not share its memory by DLPack."""

    requires_grad = False

    def __init__(self, reason=None):
        self.reason = reason or BufferError("it is read-only")

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        raise self.reason


@pytest.mark.parametrize("kind", [BufferError, RuntimeError])
def test_a_tensor_that_requires_a_gradient_is_refused_with_what_to_do(kind):
    tensor = Refusing(kind("Can't export tensors that require gradient, use tensor.detach()"))
    tensor.requires_grad = True
    with pytest.raises(TypeError, match=r"requires a gradient, .* pass tensor\.detach\(\)"):
        Buffer(tensor)


def test_memory_that_is_not_shared_is_refused_with_the_reason_unless_there_is_another_way_to_it():
    with pytest.raises(TypeError, match="got a Refusing that does not share its memory: it is read-only"):
        Buffer(Refusing())
    values = np.arange(3, dtype=np.float32)
    values.flags.writeable = False
    other = Refusing()
    other.__array_interface__ = values.__array_interface__
    assert Buffer(other).readonly
    np.testing.assert_array_equal(loaded(Buffer(other)), values)


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

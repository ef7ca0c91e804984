"""Arrays in GPU memory are recognised, of any library, and located with the stream that they are ready on."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from dlpacked import Tensor

from gqallreduce.backends.cuda import runtime
from gqallreduce.backends.cuda.arrays import ITEMSIZE, Located, located

DEVICE_OF_POINTERS = 3


class FakeRuntime:
    """Tells streams and devices; CuPy's current stream of device i is 700 + i, of device 5 the default one."""

    def __init__(self, device):
        self.stream = 0 if device == 5 else 700 + device

    @staticmethod
    def device_of(pointer):
        return DEVICE_OF_POINTERS


@pytest.fixture(autouse=True)
def fake_runtime():
    runtime.use(FakeRuntime)
    yield
    runtime.use()


class Interface:
    """Something with `__cuda_array_interface__`."""

    def __init__(self, values, **more):
        readonly = not values.flags.writeable
        data = (values.ctypes.data, readonly)
        more = {"version": 3, "strides": values.strides, **more}
        self.values = values
        self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "data": data, **more}


def fake_torch(monkeypatch, current=9000):
    """A `torch` that was imported, with CUDA tensors."""

    class FakeTensor:
        def __init__(self, values, dtype, device="cuda", index=1, layout="torch.strided", requires_grad=False):
            self.values, self.shape, self.dtype, self.layout = values, values.shape, f"torch.{dtype}", layout
            self.device, self.requires_grad = SimpleNamespace(type=device, index=index), requires_grad

        def data_ptr(self):
            return self.values.ctypes.data

        def stride(self):
            return tuple(stride // self.values.itemsize for stride in self.values.strides)

        @property
        def __cuda_array_interface__(self):
            raise AssertionError("asked for what fails on tensors with a gradient and bfloat16")

    streams = SimpleNamespace(current_stream=lambda index: SimpleNamespace(cuda_stream=current + index))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=FakeTensor, cuda=streams))
    return FakeTensor


# --- what is not in GPU memory ---


@pytest.mark.parametrize("value", [np.zeros(3), 3.0, None, "text", [1.0], memoryview(b"1234")])
def test_what_is_on_the_host_is_not_located(value):
    assert located(value) is None


@pytest.mark.parametrize("device", [1, 3], ids=["plain", "page-locked"])
def test_dlpack_on_the_host_is_not_located(device):
    assert located(Tensor(np.zeros(3), device=device)) is None


def test_a_host_tensor_of_torch_is_not_located():
    torch = pytest.importorskip("torch")
    assert located(torch.zeros(3)) is None
    assert located(torch.zeros(3, requires_grad=True)) is None


# --- __cuda_array_interface__ ---


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_interface_tells_pointer_and_layout(dtype):
    values = np.zeros((4, 6), dtype)[:, :5]
    value = Interface(values)
    assert located(value) == Located(
        values.ctypes.data, (4, 5), values.strides, dtype, False, DEVICE_OF_POINTERS, 703, value
    )
    assert located(value).extent == (3 * 6 + 5) * values.itemsize


def test_an_interface_without_strides_is_in_c_order():
    for shape in ((2, 3), (), (7,), (0, 4)):
        values = np.zeros(shape, np.float32)
        found = located(Interface(values, strides=None))
        assert found.strides == values.strides or not values.size
        assert found.extent == values.nbytes


@pytest.mark.parametrize(
    ("said", "expected"),
    [({}, 703), ({"stream": None}, 703), ({"stream": 1}, 0), ({"stream": 2}, 2), ({"stream": 0x7F00}, 0x7F00)],
)
def test_an_interface_tells_its_stream_or_cupys_current_one_is_taken(said, expected):
    assert located(Interface(np.zeros(3), **said)).stream == expected


def test_an_interface_of_version_2_is_taken():
    assert located(Interface(np.zeros(3), version=2)).dtype == "float64"


def test_an_interface_tells_that_it_is_read_only():
    values = np.zeros(3)
    values.flags.writeable = False
    assert located(Interface(values)).readonly


@pytest.mark.parametrize("dtype", ["int32", "complex64", ">f4", "bool"])
def test_an_interface_of_another_type_is_refused_by_name(dtype):
    with pytest.raises(TypeError, match=r"got dtype .*expected native float32, float64, float16, bfloat16"):
        located(Interface(np.zeros(3, dtype)))


def test_a_masked_or_backward_interface_is_refused():
    with pytest.raises(TypeError, match="mask"):
        located(Interface(np.zeros(3), mask=object()))
    with pytest.raises(ValueError, match="strides"):
        located(Interface(np.zeros(3)[::-1]))


def test_where_the_interface_has_no_bfloat16_dlpack_has():
    value = Tensor(np.zeros(4, np.uint16), code=4, device=2, number=1)
    value.__cuda_array_interface__ = Interface(value.values).__cuda_array_interface__
    assert located(value).dtype == "bfloat16"


# --- DLPack ---


@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("offset", [0, 64])
def test_dlpack_tells_pointer_and_layout(dtype, offset):
    values = np.zeros((4, 6), np.uint16 if dtype == "bfloat16" else dtype)[:, :5]
    value = Tensor(values, 4 if dtype == "bfloat16" else 2, device=2, number=1, offset=offset)
    found = located(value)
    assert found[:-1] == (values.ctypes.data, (4, 5), values.strides, dtype, False, 1, 701)
    assert found.owner[0] is value
    assert type(found.owner[1]).__name__ == "PyCapsule"  # which may hold what the value does not
    assert found.extent == (3 * 6 + 5) * values.itemsize


@pytest.mark.parametrize(("number", "stream"), [(1, 701), (5, 1)])  # 0 is no number of a stream in DLPack
def test_a_producer_of_dlpack_is_told_our_stream(number, stream):
    value = Tensor(np.zeros(3), device=2, number=number)
    found = located(value)
    assert value.asked == [{"stream": stream, "max_version": (1, 0)}, {"stream": stream}]
    assert found.stream == (0 if stream == 1 else stream)


def test_managed_memory_is_taken_on_the_device_that_cuda_names():
    assert located(Tensor(np.zeros(3), device=13, number=0)).device == DEVICE_OF_POINTERS
    assert located(Tensor(np.zeros((0, 3)), device=13, number=0)).extent == 0


@pytest.mark.parametrize(("device", "name"), [(10, "ROCm"), (8, "Metal"), (14, "oneAPI"), (99, "unknown")])
def test_another_device_is_refused_by_name(device, name):
    value = Tensor(np.zeros(3), device=device)
    with pytest.raises(TypeError, match=rf"got Tensor on DLPack device {device} \({name}\), expected .*CUDA"):
        located(value)
    assert value.asked == []


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"code": 0}, "int32"),
        ({"code": 5}, "complex32"),
        ({"bits": 8}, "float8"),
        ({"lanes": 2}, "float32 in vectors of 2"),
    ],
    ids=str,
)
def test_dlpack_of_another_type_is_refused_by_name(wrong, name):
    with pytest.raises(TypeError, match=f"got dtype {name}.*, expected native float32"):
        located(Tensor(np.zeros(4, np.float32), device=2, **wrong))


@pytest.mark.parametrize("flags", [0, 1])
def test_dlpack_of_version_1_tells_whether_it_is_read_only(flags):
    value = Tensor(np.zeros((3, 4)), device=2, number=1, flags=flags)
    found = located(value)
    assert value.asked == [{"stream": 701, "max_version": (1, 0)}]
    assert found[:5] == (value.values.ctypes.data, (3, 4), (32, 8), "float64", bool(flags))


def test_an_array_of_jax_is_read_only_whatever_it_says():
    kind = type("ArrayImpl", (Tensor,), {"__module__": "jaxlib._jax"})
    assert located(kind(np.zeros(3), device=2, flags=0)).readonly
    assert located(type("ArrayImpl", (Interface,), {"__module__": "jaxlib._jax"})(np.zeros(3))).readonly


def test_dlpack_that_shares_no_memory_is_refused_with_its_reason():
    class Refusing(Tensor):
        def __dlpack__(self, **options):
            raise BufferError("it is conjugated")

    value = Refusing(np.zeros(3), device=2)
    with pytest.raises(TypeError, match="Refusing that does not share its memory: it is conjugated"):
        located(value)


# --- PyTorch ---


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_a_cuda_tensor_is_ready_on_torchs_current_stream_of_its_device(monkeypatch, dtype):
    make = fake_torch(monkeypatch)
    values = np.zeros((4, 6), np.uint16 if dtype == "bfloat16" else dtype)[:, :5]
    tensor = make(values, dtype)
    assert located(tensor) == Located(values.ctypes.data, (4, 5), values.strides, dtype, False, 1, 9001, tensor)


def test_other_tensors_are_refused_by_name(monkeypatch):
    make = fake_torch(monkeypatch)
    with pytest.raises(TypeError, match=r"gradient.*detach\(\)"):
        located(make(np.zeros(3), "float64", requires_grad=True))
    with pytest.raises(TypeError, match="sparse_coo"):
        located(make(np.zeros(3), "float64", layout="torch.sparse_coo"))
    with pytest.raises(TypeError, match="mps"):
        located(make(np.zeros(3), "float32", device="mps"))
    with pytest.raises(TypeError, match="got dtype int64"):
        located(make(np.zeros(3), "int64"))


def test_torchs_own_tensors_have_what_is_read_of_them(monkeypatch):
    torch = pytest.importorskip("torch")

    class OnGpu(torch.Tensor):
        device = property(lambda tensor: torch.device("cuda", 2))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: SimpleNamespace(cuda_stream=9000 + index))
    tensor = torch.zeros((4, 6), dtype=torch.bfloat16)[:, :5].as_subclass(OnGpu)
    assert located(tensor) == Located(tensor.data_ptr(), (4, 5), (12, 2), "bfloat16", False, 2, 9002, tensor)
    with pytest.raises(TypeError, match=r"detach\(\)"):
        located(torch.zeros(3, requires_grad=True).as_subclass(OnGpu))
    with pytest.raises(TypeError, match="meta"):
        located(torch.zeros(3, device="meta"))


# --- CuPy ---


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_array_of_cupy_is_ready_on_its_current_stream(dtype):
    cupy = pytest.importorskip("cupy")
    itemsize = np.dtype(dtype).itemsize
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 24 * itemsize, None, 2), 0)
    array = cupy.ndarray((4, 6), dtype, pointer)[:, 1:]
    found = located(array)
    assert found[:-1] == (4096 + itemsize, (4, 5), (6 * itemsize, itemsize), dtype, False, 2, 702)
    assert found.owner is array

"""The runtime hands CuPy what CuPy takes, says by name what is missing and, on a GPU, gives the CPU's bytes."""

import gc
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from dlpacked import Tensor
from gpu import needs_gpu
from plain import floats, same_bits

from gqallreduce import _kernels
from gqallreduce.backends.cuda import casts, needs, runtime
from gqallreduce.backends.cuda.arrays import ITEMSIZE, Located, located
from gqallreduce.backends.cuda.launching import NOT_FINITE
from gqallreduce.errors import Error

FORMATS = {"float16": 0, "bfloat16": 1, "float64": 2}
every_dtype = pytest.mark.parametrize("dtype", ITEMSIZE)


def at_4096(dtype="float32", shape=(4, 5), strides=None, owner="owner"):
    """Memory that is never touched."""
    itemsize = ITEMSIZE[dtype]
    strides = strides or (shape[1] * itemsize, itemsize)
    return Located(4096, shape, strides, dtype, False, 0, 0, owner)


# --- without a GPU: what is missing ---


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    needs.cupy.cache_clear()
    with pytest.raises(Error, match=r"pip install 'gqallreduce\[cuda13\]'"):
        runtime.CupyRuntime(0)
    with pytest.raises(Error, match=r"pip install 'gqallreduce\[cuda13\]'"):
        located(Tensor(np.zeros(3), device=2))


class CudaError(RuntimeError):
    pass


def fake_cuda(driver=13000, count=2, nvrtc=None):
    """The part of cupy.cuda that is asked what there is; exceptions are raised."""

    def answer(value):
        if isinstance(value, Exception):
            raise value
        return value

    calls = SimpleNamespace(
        driverGetVersion=lambda: driver, getDeviceCount=lambda: answer(count), CUDARuntimeError=CudaError
    )
    return SimpleNamespace(runtime=calls, nvrtc=SimpleNamespace(getVersion=lambda: answer(nvrtc)))


@pytest.mark.parametrize(
    ("there", "device", "said"),
    [
        ({"driver": 0}, 0, "driver"),
        ({"count": CudaError("cudaErrorNoDevice")}, 0, "cudaErrorNoDevice"),
        ({}, 2, "got CUDA device 2, this process sees 2"),
        ({}, -1, "got CUDA device -1"),
        ({"nvrtc": RuntimeError("no libnvrtc.so")}, 1, r"NVRTC: pip install 'gqallreduce\[cuda13\]' \(no libnvrtc"),
    ],
)
def test_what_is_missing_is_named(there, device, said):
    needs.require_device(fake_cuda(), 1)
    with pytest.raises(Error, match=said):
        needs.require_device(fake_cuda(**there), device)


def test_tests_can_replace_the_runtime_and_each_device_has_one():
    class Recorded(SimpleNamespace):
        device_of = staticmethod(lambda pointer: pointer // 1000)

    runtime.use(lambda device: Recorded(device=device))
    try:
        assert runtime.runtime(3) is runtime.runtime(3)
        assert runtime.runtime(2).device == 2
        runtime.use(Recorded)
        assert runtime.device_of(4096) == 4
    finally:
        runtime.use()
    assert runtime._factory is runtime.CupyRuntime
    assert runtime._runtimes == {}


# --- without a GPU: what CuPy is handed ---


@pytest.fixture
def idle(monkeypatch):
    """A runtime of the installed CuPy whose device is never asked for anything."""
    pytest.importorskip("cupy")
    monkeypatch.setattr(needs, "require_device", lambda cuda, device: None)
    return runtime.CupyRuntime(0)


def test_errors_are_those_of_cupy(idle):
    assert all(issubclass(kind, Exception) for kind in idle.errors)
    with pytest.raises(idle.errors):
        idle._calls.check_status(700)


@every_dtype
@pytest.mark.parametrize("gap", [0, 3])
def test_a_view_has_the_located_layout_and_keeps_its_owner(idle, dtype, gap):
    itemsize = ITEMSIZE[dtype]
    place = at_4096(dtype, strides=((5 + gap) * itemsize, itemsize), owner=["owner"])
    view = idle.view(place)
    assert view.dtype == ("uint16" if dtype == "bfloat16" else dtype)
    assert (view.data.ptr, view.shape, view.strides) == (4096, place.shape, place.strides)
    assert (view.data.mem.size, view.data.mem._owner) == (place.extent, ["owner"])
    assert view.flags.c_contiguous == (gap == 0)


def test_views_may_be_empty_and_cupys_arrays_are_their_own_views(idle):
    assert idle.view(at_4096(shape=(0, 5))._replace(pointer=0)).shape == (0, 5)
    array = idle.view(at_4096())
    assert idle.view(at_4096(owner=array)) is array
    half = idle.view(at_4096("float16"))
    assert idle.view(at_4096("bfloat16", owner=half)).dtype == np.uint16


def test_launches_hand_over_addresses_and_scalars(idle):
    given = []
    idle._kernels["casts", "buffer_add"] = lambda *arguments: given.append(arguments)
    array, pinned = idle.view(at_4096()), np.zeros(1, np.uint32)
    idle.launch("casts", "buffer_add", 5, 256, array, None, pinned, np.uint64(7), np.float32(2))
    blocks, threads, arguments = given[0]
    assert (blocks, threads) == ((5,), (256,))
    assert arguments[0] is array
    assert arguments[1:] == (0, pinned.ctypes.data, 7, 2)
    assert [type(argument) for argument in arguments[1:]] == [np.uint64, np.uint64, np.uint64, np.float32]


def test_a_launch_of_no_blocks_is_left_out(idle):
    idle.launch("casts", "buffer_add", 0, 256)


def test_a_family_is_loaded_once_and_a_kernel_looked_up_once(idle, monkeypatch):
    asked = []
    module = SimpleNamespace(load=asked.append, get_function=lambda name: asked.append(name) or (lambda *given: None))
    monkeypatch.setattr(idle, "_cuda", SimpleNamespace(Module=lambda: module))
    monkeypatch.setattr(runtime.sources, "machine_code", lambda family: f"code of {family}")
    for _ in range(3):
        idle.launch("casts", "buffer_add", 1, 32)
        idle.launch("casts", "buffer_scale", 1, 32)
    assert asked == ["code of casts", "buffer_add", "buffer_scale"]


def test_streams_are_cupys_where_cupy_has_them_and_others_stay_their_owners(idle):
    assert [idle._stream_at(address).ptr for address in (0, 1, 2)] == [0, 0, 2]
    other = idle._stream_at(0x7F00)
    assert (other.ptr, other.device_id) == (0x7F00, -1)  # -1: that of the device that is current
    del other  # destroying the stream would fail here, where no driver is


def test_an_event_tells_of_failed_work_and_is_used_again(idle):
    kept, statuses = [], iter([600, 0, 700])
    calls = SimpleNamespace(eventQuery=lambda pointer: next(statuses), check_status=idle._calls.check_status)
    event = runtime.Event(5, calls, kept)
    assert [event.ready(), event.ready()] == [False, True]
    with pytest.raises(idle.errors, match="IllegalAddress"):
        event.ready()
    assert kept == []
    del event
    assert kept == [5]


# --- on a GPU ---


@pytest.fixture
def gpu():
    device = runtime.CupyRuntime(0)
    with device.active(0):
        yield device


def on_gpu(gpu, values):
    staging = gpu.pinned(values.nbytes)
    staging[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    array = gpu.empty(values.nbytes)
    gpu.upload(array, staging)
    wait(gpu.event())
    return array.view(values.dtype).reshape(values.shape)


def wait(event, seconds=60):
    end = time.monotonic() + seconds
    while not event.ready():
        assert time.monotonic() < end


@needs_gpu
def test_a_gpu_says_what_it_is(gpu):
    assert gpu.name
    assert 0 < gpu.free_memory <= gpu.memory
    assert gpu.architecture.startswith("sm_")
    assert 0 < gpu.cache < gpu.memory
    assert gpu.place.count(":") == 2
    assert set(gpu.versions) == {"cupy", "driver", "nvrtc"}
    assert runtime.count() >= 1


@needs_gpu
def test_events_that_the_garbage_collector_finds_are_used_again(gpu):
    for _ in range(20):
        cycle = [gpu.event()]
        cycle.append(cycle)
    del cycle
    gc.collect()
    for event in [gpu.event() for _ in range(20)]:
        wait(event)


@needs_gpu
def test_work_is_timed_by_the_device(gpu):
    array = gpu.zeros(1 << 24, np.float32)
    once = gpu.seconds_of(lambda: gpu.clear(array))
    assert 0 < once < gpu.seconds_of(lambda: [gpu.clear(array) for _ in range(1000)])


@needs_gpu
@pytest.mark.parametrize("n", [0, 1, 1000, 1 << 20])
def test_bytes_go_up_and_come_down(gpu, n):
    values = floats(n, n, "wide")
    array, back = on_gpu(gpu, values), gpu.pinned(4 * n)
    gpu.download(back, array)
    wait(gpu.event())
    assert same_bits(back.view(np.float32), values)
    assert same_bits(gpu.fetch(array), values)
    assert array.data.ptr % 256 == 0
    assert not gpu.fetch(gpu.zeros(n, np.float32)).any()


@needs_gpu
def test_copies_have_any_strides(gpu):
    values = floats(1, 35, "wide").reshape(5, 7)
    source, target = on_gpu(gpu, values), gpu.zeros(60, np.float32).reshape(6, 10).T
    gpu.copy(target[1:8, 0:5], source.T)
    assert same_bits(np.ascontiguousarray(gpu.fetch(target)[1:8, 0:5]), np.ascontiguousarray(values.T))


class Only:
    """One protocol of an array."""

    def __init__(self, array, *names):
        for name in names:
            setattr(self, name, getattr(array, name))


@needs_gpu
@pytest.mark.parametrize("names", [["__cuda_array_interface__"], ["__dlpack__", "__dlpack_device__"]], ids=str)
def test_a_view_shares_memory(gpu, names):
    array = on_gpu(gpu, floats(1, 35, "wide").reshape(5, 7))[:, 1:]
    place = located(Only(array, *names))
    assert (place.device, place.stream, place.shape) == (0, 0, (5, 6))
    gpu.view(place)[...] = 3
    assert (gpu.fetch(array) == 3).all()


@needs_gpu
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n", [1, 5, 4097, 200003])
def test_a_gpu_casts_as_the_cpu_casts(gpu, dtype, n):
    number, x = FORMATS[dtype], floats(n, n, "wide")
    expected, back = np.empty(n * ITEMSIZE[dtype], np.uint8), np.empty(n, np.float32)
    bad = bool(_kernels.narrow(x, expected, number))
    _kernels.widen(expected, back, number)
    device, narrow, wide = on_gpu(gpu, x), gpu.empty(expected.size), gpu.zeros(n, np.float32)
    status = gpu.pinned(4).view(np.uint32)  # kernels write page-locked memory
    status[0] = 0
    casts.buffer_narrow(gpu.launch, device, narrow, number, status)
    wait(gpu.event())
    assert (status[0] == NOT_FINITE) == bad
    casts.buffer_widen(gpu.launch, narrow, wide, number, status)
    assert same_bits(gpu.fetch(narrow), expected)
    assert same_bits(gpu.fetch(wide), back)


@needs_gpu
def test_work_follows_events_of_other_streams(gpu):
    cupy = pytest.importorskip("cupy")
    other = cupy.cuda.Stream(non_blocking=True)
    array = gpu.zeros(1 << 24, np.float32)
    for _ in range(20):
        casts.buffer_add(gpu.launch, array, array, array, gpu.zeros(1, np.uint32))
    array += 1
    event = gpu.event()
    with gpu.active(other.ptr):
        assert gpu.stream == other.ptr
        gpu.follow(event)
        array += 1
        wait(gpu.event())
    assert event.ready()
    assert gpu.stream == 0
    assert (gpu.fetch(array) == 2).all()

"""A GPU as this package uses one, by way of CuPy: memory, copies, launches, events. Nothing else knows CuPy.

All work is put on the current stream of the device, inside `active`. Copies to and from page-locked memory return at
once: an event, asked later, says when it may be read, written or let go.
"""

from __future__ import annotations

import contextlib
import functools

import numpy as np

from gqallreduce.backends.cuda import needs, sources

_LEGACY_STREAM, _PER_THREAD_STREAM = 1, 2  # cudaStreamLegacy and cudaStreamPerThread, as addresses
_NOT_READY = 600  # cudaErrorNotReady


class CupyRuntime:
    """One GPU. Error if CuPy, a driver or that device is missing."""

    def __init__(self, device: int):
        self._cupy = needs.cupy()
        self._cuda, self._calls = self._cupy.cuda, self._cupy.cuda.runtime
        self.errors = needs.errors(self._cupy)
        needs.require_device(self._cuda, device)
        self.device = device
        self._modules: dict[str, object] = {}
        self._kernels: dict[tuple[str, str], object] = {}
        self._idle: list[int] = []  # events that are not in use; none is ever destroyed

    @staticmethod
    def device_of(pointer: int) -> int:
        """The device whose memory an address belongs to; the current one for a null pointer."""
        calls = needs.cupy().cuda.runtime
        device = calls.pointerGetAttributes(pointer).device if pointer else calls.getDevice()
        if device < 0:
            raise TypeError(f"got address {pointer:#x}, which CUDA does not know, expected one in GPU memory")
        return device

    @staticmethod
    def count() -> int:
        """GPUs that this process sees. Error if there can be none."""
        return needs.count(needs.cupy().cuda)

    # --- where work goes ---

    @property
    def stream(self) -> int:
        """The address of CuPy's current stream; 0 is the default stream."""
        return self._cuda.get_current_stream(self.device).ptr

    @contextlib.contextmanager
    def active(self, stream: int | None = None):
        """Device and stream (an address; None: CuPy's current one) are the current ones inside."""
        with self._cuda.Device(self.device):
            if stream is None:
                yield
            else:
                with self._stream_at(stream):
                    yield

    def _stream_at(self, address: int):
        if address in (0, _LEGACY_STREAM):
            return self._cuda.Stream.null
        if address == _PER_THREAD_STREAM:
            return self._cuda.Stream.ptds
        return self._cuda.Stream.from_external(_Address(address))

    # --- memory ---

    def empty(self, nbytes: int):
        """uint8 array on the device, at a multiple of 256."""
        return self._cupy.empty(nbytes, np.uint8)

    def zeros(self, size: int, dtype):
        return self._cupy.zeros(size, dtype)

    def pinned(self, nbytes: int) -> np.ndarray:
        """uint8 array of page-locked memory, which kernels can also reach."""
        return np.frombuffer(self._cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def view(self, located):
        """The array of located memory; bfloat16 as uint16."""
        if isinstance(located.owner, self._cupy.ndarray):
            return located.owner.view(np.uint16) if located.dtype == "bfloat16" else located.owner
        memory = self._cuda.UnownedMemory(located.pointer, located.extent, located.owner, self.device)
        dtype = np.uint16 if located.dtype == "bfloat16" else located.dtype
        pointer = self._cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(located.shape, dtype, pointer, located.strides)

    # --- work, in the order of the stream ---

    def launch(self, family: str, kernel: str, blocks: int, threads: int, *arguments) -> None:
        """As `launching` says. Page-locked NumPy arrays stand for their address too."""
        if blocks:  # CuPy would launch one
            given = tuple([_by_address(argument) for argument in arguments])
            self._kernel(family, kernel)((blocks,), (threads,), given)

    def _kernel(self, family: str, kernel: str):
        found = self._kernels.get((family, kernel))
        if found is None:
            found = self._kernels[family, kernel] = self._module(family).get_function(kernel)
        return found

    def _module(self, family: str):
        if family not in self._modules:
            module = self._cuda.Module()
            module.load(sources.machine_code(family))
            self._modules[family] = module
        return self._modules[family]

    def copy(self, target, source) -> None:
        """Between arrays of this device, of one shape and any strides."""
        self._cupy.copyto(target, source)

    def clear(self, array) -> None:
        array.fill(0)

    def upload(self, target, source: np.ndarray) -> None:
        """Bytes of a contiguous, page-locked array; the source must stay as it is until they have arrived."""
        self._carry(target.data.ptr, _address(source), source.nbytes, self._calls.memcpyHostToDevice)

    def download(self, target: np.ndarray, source) -> None:
        """Bytes of a contiguous array to a page-locked one."""
        self._carry(_address(target), source.data.ptr, source.nbytes, self._calls.memcpyDeviceToHost)

    def _carry(self, target: int, source: int, nbytes: int, kind: int) -> None:
        if nbytes:
            self._calls.memcpyAsync(target, source, nbytes, kind, self.stream)

    def fetch(self, array) -> np.ndarray:
        """A copy on the host; waits for it."""
        return array.get()

    def event(self) -> Event:
        """Recorded now: ready when all that the stream has so far is done."""
        calls = self._calls
        handle = self._idle.pop() if self._idle else calls.eventCreateWithFlags(calls.eventDisableTiming)
        calls.eventRecord(handle, self.stream)
        return Event(handle, calls, self._idle)

    def follow(self, event: Event) -> None:
        """What comes on this stream waits for the event, which may be another stream's."""
        self._calls.streamWaitEvent(self.stream, event.handle)

    def seconds_of(self, work) -> float:
        """Seconds between the first and the last of what `work()` puts on the stream, by the device; waits for it."""
        begin, end = self._cuda.Event(), self._cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return self._cuda.get_elapsed_time(begin, end) / 1000

    # --- what it is ---

    @property
    def name(self) -> str:
        return self._properties["name"].decode()

    @property
    def memory(self) -> int:
        """Bytes of device memory."""
        return self._properties["totalGlobalMem"]

    @property
    def free_memory(self) -> int:
        """Bytes that are not taken; what CuPy keeps for itself counts as taken."""
        with self.active():
            return self._calls.memGetInfo()[0]

    @property
    def cache(self) -> int:
        """Bytes of its last-level cache."""
        return self._properties["l2CacheSize"]

    @property
    def place(self) -> str:
        """Its address on the machine, by which two processes know that they share it."""
        return self._calls.deviceGetPCIBusId(self.device)

    @property
    def versions(self) -> dict[str, str]:
        """Of CuPy, and of the CUDA that the driver and the compiler speak."""
        driver = self._calls.driverGetVersion()
        compiler = ".".join(map(str, self._cuda.nvrtc.getVersion()))
        return {
            "cupy": self._cupy.__version__, "driver": f"CUDA {driver // 1000}.{driver % 1000 // 10}", "nvrtc": compiler,
        }  # fmt: skip

    @property
    def architecture(self) -> str:
        return f"sm_{self._properties['major']}{self._properties['minor']}"

    @functools.cached_property
    def _properties(self) -> dict:
        return self._calls.getDeviceProperties(self.device)


class Event:
    """A point in a stream.

    handle
        CUDA's event. Not CuPy's object for it: the garbage collector may finalize that together with this one, and
        then it is destroyed although it is back in `idle`.
    """

    __slots__ = ("_calls", "_idle", "handle")

    def __init__(self, handle: int, calls, idle: list[int]):
        self.handle, self._calls, self._idle = handle, calls, idle

    def ready(self) -> bool:
        """Is all before it done? Raises what the device's work ended with: CuPy's `done` is False for ever then."""
        status = self._calls.eventQuery(self.handle)
        if status not in (0, _NOT_READY):
            self._calls.check_status(status)
        return status == 0

    def __del__(self):
        self._idle.append(self.handle)


class _Address:
    """An address as CUDA's stream protocol has it."""

    def __init__(self, address: int):
        self.address = address

    def __cuda_stream__(self):
        return 0, self.address


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_NULL = np.uint64(0)


def _by_address(argument):
    """CuPy itself would hand over a NumPy array of one element by value and refuse others, and of None any address."""
    if argument is None:
        return _NULL
    return np.uint64(_address(argument)) if isinstance(argument, np.ndarray) else argument


_factory = CupyRuntime
_runtimes: dict[int, object] = {}


def runtime(device: int):
    """The runtime of a device, made once."""
    if device not in _runtimes:
        _runtimes[device] = _factory(device)
    return _runtimes[device]


def count() -> int:
    """GPUs that this process sees. Error if there can be none."""
    return _factory.count()


def device_of(pointer: int) -> int:
    """The device whose memory an address belongs to."""
    return _factory.device_of(pointer)


def use(factory=CupyRuntime) -> None:
    """Runtimes are made by this class from now on; for tests."""
    global _factory
    _factory = factory
    _runtimes.clear()

"""A device without a GPU: its memory is the host's, its kernels run as a serial grid, and its stream runs late.

What is launched or copied waits in a queue until a caller waits for it, and an event says at first that it is not
ready: code that reads or writes memory too early does so before the work that it should have waited for.
"""

import contextlib
import time
from types import SimpleNamespace

import numpy as np
from serial import SerialDevice

SHAPES = {"bfloat16": np.uint16}


class Fault(Exception):
    """What a device's library would raise."""


class SerialRuntime:
    """The methods of CupyRuntime. `fail_at`: the number of launches after which one fails, as a device does: later."""

    errors = (Fault, MemoryError)
    name, stream = "serial grid", 0
    architecture, versions = "none", {"cupy": "none"}
    cache, memory, free_memory = 1 << 14, 1 << 26, 1 << 26

    def __init__(self, device: int = 0):
        self.device, self.queue, self.done = device, [], 0
        self.launches, self.fail_at, self.memory_left = 0, None, None
        self._launch = SerialDevice(descending=bool(device % 2))
        self._fault = None

    @property
    def place(self) -> str:
        return f"serial {self.device}"

    @staticmethod
    def count() -> int:
        return 2

    @staticmethod
    def device_of(pointer: int) -> int:
        return LOCATIONS.get(pointer, 0)

    @contextlib.contextmanager
    def active(self, stream=None):
        yield

    def empty(self, nbytes: int) -> np.ndarray:
        if self.memory_left is not None:
            self.memory_left -= nbytes
            if self.memory_left < 0:
                raise MemoryError(f"{nbytes} bytes are too many")
        room = np.full(nbytes + 256, 0xEE, np.uint8)
        begin = -room.ctypes.data % 256
        return room[begin : begin + nbytes]

    pinned = empty

    def zeros(self, size: int, dtype) -> np.ndarray:
        array = self.empty(size * np.dtype(dtype).itemsize)
        self.clear(array)
        return array.view(dtype)

    def view(self, located) -> np.ndarray:
        dtype = np.dtype(SHAPES.get(located.dtype, located.dtype))
        if 0 in located.shape:
            return np.empty(located.shape, dtype)
        interface = {"version": 3, "typestr": dtype.str, "shape": located.shape, "strides": located.strides}
        interface["data"] = located.pointer, False
        return np.asarray(SimpleNamespace(owner=located.owner, __array_interface__=interface))

    def launch(self, family, kernel, blocks, threads, *arguments) -> None:
        self.launches += 1
        if self.launches == self.fail_at:
            self._put(self._fail)
        self._put(lambda: self._launch(family, kernel, blocks, threads, *arguments))

    def _fail(self) -> None:
        self._fault = Fault("an illegal memory access was encountered")

    def _put(self, work) -> None:
        self.queue.append(work)

    def copy(self, target, source) -> None:
        self._put(lambda: np.copyto(target, source))

    def clear(self, array) -> None:
        self._put(lambda: array.fill(0))

    def upload(self, target, source) -> None:
        assert source.flags.c_contiguous
        self.copy(target, source)

    download = upload

    def fetch(self, array) -> np.ndarray:
        self._finish()
        return np.array(array, order="K")

    def seconds_of(self, work) -> float:
        self._finish()
        start = time.perf_counter()
        work()
        self._finish()
        return time.perf_counter() - start

    def _finish(self) -> None:
        self.run(self.done + len(self.queue))

    def event(self) -> "Event":
        return Event(self, self.done + len(self.queue))

    def run(self, until: int) -> None:
        """Do what was asked for, up to that number of works since the beginning."""
        while self.done < until:
            work = self.queue.pop(0)
            self.done += 1
            if self._fault is None:
                work()
        if self._fault is not None:
            raise self._fault


class Event:
    """Ready the second time it is asked."""

    def __init__(self, stream: SerialRuntime, position: int):
        self.stream, self.position, self.asked = stream, position, False

    def ready(self) -> bool:
        if not self.asked:
            self.asked = True
            return False
        self.stream.run(self.position)
        return True


LOCATIONS: dict[int, int] = {}  # the device of an address, where it is not 0


class OnSerialDevice:
    """An array as a library for GPUs shows it: memory of "device" `device`, which is the host's here."""

    def __init__(self, array: np.ndarray, device: int = 0):
        self.array, self.device = array, device
        LOCATIONS[array.__array_interface__["data"][0]] = device

    def on_host(self) -> np.ndarray:
        return self.array

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__array_interface__, "stream": None}

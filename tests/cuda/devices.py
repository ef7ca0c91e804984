"""What the tests of devices run on, by GQALLREDUCE_TEST_DEVICE:

serial (default)
    kernels as a serial grid, on the tests' own arrays.
copied
    the same, but in memory that is reached by copies only, as a GPU's is.
races
    the same, and the thread sanitizer watches the kernels.
cuda
    a GPU, by way of CuPy; an error where there is none.
sanitized
    the same for compute-sanitizer: each array is an allocation of its own, so that it sees where one ends.
"""

import atexit
import os
import shutil
from functools import cache

import numpy as np
import pytest
from copying import Copying
from plain import same_bits
from races import RacesRuntime, needs_thread_sanitizer
from serial import SerialDevice
from serial_runtime import OnSerialDevice, SerialRuntime

from gqallreduce.backends import dlpack
from gqallreduce.backends.cuda import runtime

CHOSEN = os.environ.get("GQALLREDUCE_TEST_DEVICE", "serial")
KNOWN = ("serial", "copied", "races", "cuda", "sanitized")
if CHOSEN not in KNOWN:
    raise ValueError(f"got GQALLREDUCE_TEST_DEVICE={CHOSEN}, expected one of {', '.join(KNOWN)}")
ON_GPU = CHOSEN in ("cuda", "sanitized")
if ON_GPU:
    import cupy
if CHOSEN == "sanitized":
    cupy.cuda.set_allocator(None)  # no pool

needs_device = pytest.mark.skipif(not ON_GPU and shutil.which("g++") is None, reason="no g++ on this system")
if CHOSEN == "races":
    needs_device = needs_thread_sanitizer
_ORDERS = {"any order": False} if ON_GPU or CHOSEN == "races" else {"ascending": False, "descending": True}
both_orders = pytest.mark.parametrize("descending", _ORDERS.values(), ids=_ORDERS)


def launcher(descending: bool = False):
    """A `launch` (launching.py) that takes NumPy arrays; a serial grid runs its threads in this order."""
    return SerialDevice(descending) if CHOSEN == "serial" else _copying(descending)


@cache
def _copying(descending: bool) -> Copying:
    if CHOSEN == "races":
        device = RacesRuntime(descending)
        atexit.register(device.close)
    else:
        device = make_runtime(int(descending))
    return Copying(device, guarded=CHOSEN != "sanitized")


def make_runtime(device: int = 0):
    """A runtime of its own for a device; there is one GPU."""
    return runtime.CupyRuntime(0) if ON_GPU else SerialRuntime(device)


def use_devices() -> None:
    """Buffers on devices are those that OnDevice makes."""
    runtime.use(runtime.CupyRuntime if ON_GPU else SerialRuntime)


def same_numbers(a, b) -> bool:
    """Are the bits the same? Any two NaNs are: a GPU makes them all alike, and none is ever sent."""
    return same_bits(np.isnan(a), np.isnan(b)) and same_bits(a[~np.isnan(a)], b[~np.isnan(b)])


class OnGpu:
    """A NumPy array's copy in the GPU's memory, with its strides, as a library for GPUs shows it."""

    def __init__(self, array: np.ndarray, device: int = 0):
        room = cupy.empty(dlpack.extent(array.shape, array.strides, array.itemsize), np.uint8)
        self.array = cupy.ndarray(array.shape, array.dtype, room.data, array.strides)
        self.array[...] = cupy.asarray(array)

    def on_host(self) -> np.ndarray:
        return self.array.get()

    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__


OnDevice = OnGpu if ON_GPU else OnSerialDevice

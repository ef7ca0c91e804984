"""What buffers in GPU memory need: CuPy, a driver, a GPU, NVRTC. Each that is missing is an Error that names it."""

from __future__ import annotations

import functools

from gqallreduce.errors import Error


@functools.cache
def cupy():
    try:
        import cupy
    except ImportError as problem:
        raise Error(f"buffers in GPU memory need CuPy: pip install 'gqallreduce[cuda13]' ({problem})") from problem
    return cupy


def count(cuda) -> int:
    """Devices that `cupy.cuda` sees, at least one; CuPy imports without a driver."""
    if not cuda.runtime.driverGetVersion():
        raise Error("no GPU can be used: the NVIDIA driver (libcuda) is missing")
    try:
        return cuda.runtime.getDeviceCount()
    except cuda.runtime.CUDARuntimeError as problem:
        raise Error(f"no GPU can be used: {problem}") from problem


def require_device(cuda, device: int) -> None:
    """Error if kernels cannot be compiled for that device of `cupy.cuda`, or if there is none."""
    found = count(cuda)
    if not 0 <= device < found:
        raise Error(f"got CUDA device {device}, this process sees {found}")
    try:
        cuda.nvrtc.getVersion()
    except RuntimeError as problem:
        raise Error(f"kernels for GPUs need NVRTC: pip install 'gqallreduce[cuda13]' ({problem})") from problem


def errors(cupy) -> tuple[type[Exception], ...]:
    """What CuPy raises when memory, the device or the compiler fails."""
    cuda = cupy.cuda
    return (
        cuda.runtime.CUDARuntimeError,
        cuda.driver.CUDADriverError,
        cuda.memory.OutOfMemoryError,
        cuda.nvrtc.NVRTCError,
        cuda.compiler.CompileException,
    )

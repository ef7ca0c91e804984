"""Which objects are arrays in GPU memory, and where: pointer, layout, device and the stream that the caller works on.

Taken are CuPy arrays, PyTorch's CUDA tensors, and whatever has `__cuda_array_interface__` (versions 2 and 3) or DLPack
on a CUDA device. Neither library is imported here: an array of theirs shows that it was.

Source: Numba, CUDA Array Interface, version 3; DLPack 1.0 and the array API's `__dlpack__` (numbers of streams).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from gqallreduce.backends import dlpack
from gqallreduce.backends.cuda import runtime
from gqallreduce.coding.dtypes import ITEMSIZE, name_of, require_float

LEGACY = 1  # the default stream's number in both protocols, where CUDA itself also takes 0


class Located(NamedTuple):
    """An array in GPU memory.

    pointer, shape, strides, dtype
        the first element's address, strides in bytes, a name of ITEMSIZE.
    device, stream
        CUDA's number of the device; the stream's address, by which its content is ready (0: the default stream).
    owner
        keeps the memory alive; the caller's object, or what it was asked for.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    readonly: bool
    device: int
    stream: int
    owner: object

    @property
    def extent(self) -> int:
        """Bytes from the first element's begin to the last one's end."""
        return dlpack.extent(self.shape, self.strides, ITEMSIZE[self.dtype])


def located(value) -> Located | None:
    """Where the value is; None if it is not in GPU memory. TypeError if it is, but on a device or of a type unfit."""
    if isinstance(value, np.ndarray):
        return None
    if _is_of("cupy", "ndarray", value):
        return _cupy(value)
    if _is_of("torch", "Tensor", value):
        return _torch(value)
    try:
        interface = getattr(value, "__cuda_array_interface__", None)
    except (RuntimeError, TypeError):  # a property that cannot say it (bfloat16, for one); DLPack may
        interface = None
    if interface is not None and (_name(interface) in ITEMSIZE or not hasattr(value, "__dlpack__")):
        return _interface(value, interface)
    return _dlpack(value) if hasattr(value, "__dlpack_device__") else None


def _is_of(package: str, name: str, value) -> bool:
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(value, kind)


def _cupy(array) -> Located:
    device = array.device.id
    name = _known(name_of(array.dtype))
    stream = runtime.runtime(device).stream
    return Located(array.data.ptr, array.shape, array.strides, name, False, device, stream, array)


def _torch(tensor) -> Located | None:
    """Read field by field: `__dlpack__` takes tensors of the current device only."""
    if tensor.device.type == "cpu":
        return None
    if tensor.device.type != "cuda" or not _is_strided(tensor):
        raise TypeError(f"got a {tensor.layout} tensor on {tensor.device}, expected a dense one on cpu or cuda")
    if tensor.requires_grad:
        raise dlpack.refusal(tensor)
    name = _known(str(tensor.dtype).removeprefix("torch."))
    strides = tuple(stride * ITEMSIZE[name] for stride in tensor.stride())
    device = tensor.device.index
    stream = sys.modules["torch"].cuda.current_stream(device).cuda_stream
    return Located(tensor.data_ptr(), tuple(tensor.shape), strides, name, False, device, stream, tensor)


def _is_strided(tensor) -> bool:
    return str(tensor.layout) == "torch.strided"


def _interface(value, interface) -> Located:
    name = _known(_name(interface))
    if interface.get("mask") is not None:
        raise TypeError(f"got a {type(value).__name__} with a mask, expected an array without")
    pointer, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or dlpack.contiguous(shape, ITEMSIZE[name])
    _require_forward(shape, strides)
    device = runtime.device_of(pointer)
    stream = interface.get("stream")
    if stream is None:
        stream = runtime.runtime(device).stream
    number = 0 if stream == LEGACY else stream
    readonly = readonly or dlpack.is_immutable(value)
    return Located(pointer, shape, tuple(strides), name, readonly, device, number, value)


def _name(interface) -> str:
    return name_of(np.dtype(interface["typestr"]))


def _dlpack(value) -> Located | None:
    kind, device = value.__dlpack_device__()
    if kind in dlpack.HOST:
        return None
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise TypeError(
            f"got {type(value).__name__} on {dlpack.device_name(kind)}, expected host memory or a CUDA device"
        )
    stream = runtime.runtime(device).stream
    try:
        capsule = dlpack.export(value, stream=stream or LEGACY)
    except BufferError as problem:
        raise dlpack.refusal(value, problem) from problem
    pointer, shape, strides, name, readonly = dlpack.read(capsule)
    readonly = readonly or dlpack.is_immutable(value)
    if kind == dlpack.CUDA_MANAGED and pointer:
        device = runtime.device_of(pointer)  # the number in the capsule need not be one
    return Located(pointer, shape, strides, name, readonly, device, stream, (value, capsule))


def _known(name: str) -> str:
    return require_float(name, " in GPU memory")


def _require_forward(shape, strides) -> None:
    if 0 not in shape and any(stride < 0 for stride in strides):
        raise ValueError(f"got strides {tuple(strides)}, expected non-negative ones")

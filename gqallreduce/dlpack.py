"""DLPack read through its C structure: NumPy's own reader knows no bfloat16, and none of GPUs.

Source: DLPack 1.0, dlpack.h (DLTensor: data, device, ndim, dtype, shape, strides in elements, byte_offset).
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np

CUDA, CUDA_MANAGED = 2, 13
HOST = (1, 3)  # plain, and page-locked by CUDA
_DEVICES = {
    1: "CPU", 2: "CUDA", 3: "CUDA host", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 11: "ROCm host",
    12: "extension", 13: "CUDA managed", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon", 17: "MAIA", 18: "Trainium",
}  # fmt: skip
_DTYPES = {(2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class _Memory:
    """`size` bytes at an address, as a buffer that keeps the capsule, and so the tensor, alive."""

    def __init__(self, address: int, size: int, capsule):
        self.capsule = capsule
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}


class Fields(NamedTuple):
    """Where a tensor's elements are: the first one's address, and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def device_name(number: int) -> str:
    return f"DLPack device {int(number)} ({_DEVICES.get(number, 'unknown')})"


def read(capsule) -> Fields:
    """What a capsule says; it must stay alive as long as the memory is used. TypeError if it is not a float."""
    tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    name = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise TypeError(
            f"got DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes; expected "
            + ", ".join(_DTYPES.values())
        )
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else contiguous(shape)
    if 0 not in shape and any(stride < 0 for stride in strides):
        raise ValueError(f"got strides {strides}, expected non-negative ones")
    itemsize = tensor.bits // 8
    return Fields((tensor.data or 0) + tensor.byte_offset, shape, tuple(stride * itemsize for stride in strides), name)


def view(value) -> tuple[np.ndarray, str]:
    """(array that shares the tensor's memory, dtype name); bfloat16 as uint16. TypeError if it is not a host float."""
    device = value.__dlpack_device__()[0]
    if device not in HOST:
        raise TypeError(
            f"got {type(value).__name__} on {device_name(device)}, expected host memory: copy it there first"
        )
    capsule = value.__dlpack__()
    address, shape, strides, name = read(capsule)
    dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
    if 0 in shape:
        return np.empty(shape, dtype), name
    size = extent(shape, strides, dtype.itemsize)
    memory = np.asarray(_Memory(address, size, capsule)).view(dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, strides), name


def extent(shape, strides, itemsize: int) -> int:
    """Bytes from the first element's begin to the last one's end."""
    if 0 in shape:
        return 0
    return itemsize + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def contiguous(shape: tuple[int, ...], itemsize: int = 1) -> list[int]:
    """Strides in C order."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides

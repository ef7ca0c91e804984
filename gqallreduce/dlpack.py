"""DLPack on the host, read through its C structure: NumPy's own reader knows no bfloat16.

Source: DLPack 1.0, dlpack.h (DLTensor: data, device, ndim, dtype, shape, strides in elements, byte_offset).
"""

from __future__ import annotations

import ctypes

import numpy as np

_CPU, _CUDA_HOST = 1, 3
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


def view(value) -> tuple[np.ndarray, str]:
    """(array that shares the tensor's memory, dtype name); bfloat16 as uint16. TypeError if it is not a host float."""
    device = value.__dlpack_device__()[0]
    if device not in (_CPU, _CUDA_HOST):
        raise TypeError(
            f"got {type(value).__name__} on DLPack device {int(device)}; this version takes buffers in host memory: "
            "copy it there first"
        )
    capsule = value.__dlpack__()
    tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    name = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise TypeError(
            f"got DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes; expected "
            + ", ".join(_DTYPES.values())
        )
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
    if 0 in shape:
        return np.empty(shape, dtype), name
    strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else _contiguous(shape)
    if any(stride < 0 for stride in strides):
        raise ValueError(f"got strides {strides}, expected non-negative ones")
    extent = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    memory = np.asarray(_Memory(tensor.data + tensor.byte_offset, extent * dtype.itemsize, capsule)).view(dtype)
    return np.lib.stride_tricks.as_strided(memory, shape, [stride * dtype.itemsize for stride in strides]), name


def _contiguous(shape: tuple[int, ...]) -> list[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides

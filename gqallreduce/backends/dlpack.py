"""DLPack read through its C structure: NumPy's own reader knows no bfloat16, and none of GPUs.

Source: DLPack 1.0, dlpack.h (DLTensor: data, device, ndim, dtype, shape, strides in elements, byte_offset;
DLManagedTensorVersioned: flags); numbers of the types of 8 bits and less: DLPack 1.1.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np

from gqallreduce.coding.dtypes import require_float

VERSION = (1, 0)
READ_ONLY, IS_COPIED = 1, 2  # flags of a versioned capsule
CUDA, CUDA_MANAGED = 2, 13
HOST = (1, 3)  # plain, and page-locked by CUDA
_DEVICES = {
    1: "CPU", 2: "CUDA", 3: "CUDA host", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 11: "ROCm host",
    12: "extension", 13: "CUDA managed", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon", 17: "MAIA", 18: "Trainium",
}  # fmt: skip
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex"}
_NAMED = {
    6: "bool", 7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn", 11: "float8_e4m3fnuz",
    12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu", 15: "float6_e2m3fn", 16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}  # fmt: skip
# Their arrays never change, so they share and keep them as they like; the capsules do not say that they are read-only.
_IMMUTABLE = ("jax", "jaxlib", "tensorflow")


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


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_named = ctypes.pythonapi.PyCapsule_IsValid
_is_named.restype, _is_named.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _Memory:
    """`size` bytes at an address, as a buffer that keeps the capsule, and so the tensor, alive."""

    def __init__(self, address: int, size: int, readonly: bool, capsule):
        self.capsule = capsule
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, readonly)}


class Fields(NamedTuple):
    """Where a tensor's elements are: the first one's address, and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    readonly: bool


def device_name(number: int) -> str:
    return f"DLPack device {int(number)} ({_DEVICES.get(number, 'unknown')})"


def export(value, **options):
    """The value's capsule, with flags where it has them. BufferError if it does not share its memory."""
    try:
        return value.__dlpack__(max_version=VERSION, **options)
    except TypeError:  # older than DLPack 1.0
        return value.__dlpack__(**options)


def refusal(value, problem: object = "") -> TypeError:
    """What to raise for a value whose memory cannot be had."""
    if getattr(value, "requires_grad", False):
        return TypeError("got a tensor that requires a gradient, expected one that does not: pass tensor.detach()")
    return TypeError(f"got a {type(value).__name__} that does not share its memory: {problem}")


def is_immutable(value) -> bool:
    """Is it an array of JAX or TensorFlow? Told by where its type is defined, so that neither is imported."""
    return type(value).__module__.partition(".")[0] in _IMMUTABLE


def read(capsule) -> Fields:
    """What a capsule says; it must stay alive as long as the memory is used. TypeError if it is not a float."""
    tensor, flags = _opened(capsule)
    name = require_float(dtype_name(tensor.code, tensor.bits, tensor.lanes))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else contiguous(shape)
    if 0 not in shape and any(stride < 0 for stride in strides):
        raise ValueError(f"got strides {strides}, expected non-negative ones")
    itemsize, address = tensor.bits // 8, (tensor.data or 0) + tensor.byte_offset
    return Fields(address, shape, tuple(stride * itemsize for stride in strides), name, bool(flags & READ_ONLY))


def _opened(capsule) -> tuple[_Tensor, int]:
    """(tensor, flags) of a capsule of either kind."""
    if not _is_named(capsule, b"dltensor_versioned"):
        return ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents, 0
    found = ctypes.cast(_pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned)).contents
    if found.major != VERSION[0]:
        raise TypeError(f"got DLPack version {found.major}.{found.minor}, expected 1.x")
    if found.flags & IS_COPIED:
        raise TypeError("got a copy of the array by DLPack, expected its own memory, which the result is written to")
    return found.tensor, found.flags


def dtype_name(code: int, bits: int, lanes: int) -> str:
    """A type as NumPy and others call it."""
    if code in _NAMED:
        name = _NAMED[code]
    elif code in _KINDS:
        name = f"{_KINDS[code]}{bits}"
    else:
        name = f"of DLPack type code {code} with {bits} bits"
    return name if lanes == 1 else f"{name} in vectors of {lanes}"


def view(value) -> tuple[np.ndarray, str]:
    """(array that shares the tensor's memory, dtype name); bfloat16 as uint16. TypeError if it is not a host float."""
    device = value.__dlpack_device__()[0]
    if device not in HOST:
        raise TypeError(
            f"got {type(value).__name__} on {device_name(device)}, expected host memory: copy it there first"
        )
    capsule = export(value)
    address, shape, strides, name, readonly = read(capsule)
    readonly = readonly or is_immutable(value)
    dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
    if 0 in shape:
        memory = np.empty(0, dtype)
        memory.flags.writeable = not readonly
        return memory.reshape(shape), name
    size = extent(shape, strides, dtype.itemsize)
    memory = np.asarray(_Memory(address, size, readonly, capsule)).view(dtype)
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

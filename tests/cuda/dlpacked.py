"""Something with DLPack: a capsule of a struct, as other libraries make it, on whatever device it says."""

import ctypes

from gqallreduce.backends import dlpack


class Managed(ctypes.Structure):
    _fields_ = (("tensor", dlpack._Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Tensor:
    """
    flags
        those of DLPack 1.0; None: its maker knows no version.
    major
        of the version that the capsule states.
    """

    def __init__(
        self, values, code=2, bits=None, device=1, lanes=1, strides=True, offset=0, number=0, flags=None, major=1
    ):
        self.values, self.device, self.number, self.flags = values, device, number, flags
        self.asked: list[dict] = []
        self.shape = (ctypes.c_int64 * max(values.ndim, 1))(*values.shape)
        steps = [stride // values.itemsize for stride in values.strides]
        self.strides = (ctypes.c_int64 * max(values.ndim, 1))(*steps)
        tensor = dlpack._Tensor(
            values.ctypes.data - offset, device, number, values.ndim, code, bits or 8 * values.itemsize, lanes,
            self.shape, self.strides if strides else None, offset,
        )  # fmt: skip
        self.managed = Managed(tensor, None, None)
        self.versioned = dlpack._Versioned(major, 2, None, None, flags or 0, tensor)

    def __dlpack_device__(self):
        return self.device, self.number

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.flags is None and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        if self.flags is None:
            return new(ctypes.addressof(self.managed), b"dltensor", None)
        return new(ctypes.addressof(self.versioned), b"dltensor_versioned", None)

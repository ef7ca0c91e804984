"""A caller's array as one vector in memory order: what may be reduced, and how its elements are reached.

Taken are float32, float64, float16 and bfloat16 arrays on the host, of any shape, in C or Fortran order, or with gaps
at one place (a leading dimension): NumPy arrays, and whatever has DLPack, `__array_interface__` or a buffer.
"""

from __future__ import annotations

import numpy as np

from gqallreduce import _kernels, dlpack

FLOATS = ("float32", "float64", "float16", "bfloat16")
FORMATS = {"float16": 0, "bfloat16": 1, "float64": 2}  # as the kernels number them

_NAMES = {np.dtype(name): name for name in ("float32", "float64", "float16")}  # `dtype.name` is slow


def as_array(value) -> tuple[np.ndarray, str]:
    """(array that shares the value's memory, dtype name); bfloat16 memory is seen as uint16. TypeError if unfit."""
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(
            f"got {type(value).__name__} in GPU memory; GPU buffers are not supported yet: copy it to the host first "
            "(cupy.asnumpy, tensor.cpu())"
        )
    if not isinstance(value, np.ndarray):
        value = _foreign(value)
        if isinstance(value, tuple):
            return value
    name = _NAMES.get(value.dtype) or (value.dtype.name if value.dtype.isnative else "")
    if name not in FLOATS:
        raise TypeError(f"got dtype {value.dtype!r}, expected native {', '.join(FLOATS)}")
    return (value.view(np.uint16) if name == "bfloat16" else value), name


def _foreign(value):
    if hasattr(value, "__dlpack__"):
        return dlpack.view(value)
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        raise TypeError(
            f"got {type(value).__name__}, expected an array: NumPy, or with DLPack, __array_interface__ or a buffer"
        ) from None


class Buffer:
    """An array as a vector.

    shape, order, dtype
        what ranks must agree on; order is "C" or "F" ("C" where both fit).
    flat
        the vector as a float32 or float64 array that shares memory, or None (16 bits, or gaps).
    """

    __slots__ = ("_memory", "array", "dtype", "flat", "order", "owner", "shape", "size")

    def __init__(self, value):
        self.owner = value
        self.array, self.dtype = as_array(value)
        self.shape, self.size = self.array.shape, self.array.size
        flags = self.array.flags
        if flags.c_contiguous:
            self.order, self._memory = "C", self.array.reshape(-1)
        elif flags.f_contiguous:
            self.order, self._memory = "F", self.array.reshape(-1, order="F")
        else:
            self.order, self._memory = _with_gaps(self.array)
        plain = self._memory.ndim == 1 and self.dtype in ("float32", "float64")
        self.flat = self._memory if plain else None

    def require_writable(self, name: str) -> None:
        if not self.array.flags.writeable:
            hint = "; pass out=" if name == "buf" else ""
            raise ValueError(f"{name} is read-only{hint}")

    def load(self, start: int, stop: int, y: np.ndarray) -> None:
        """y := elements [start, stop), as y's dtype. A float64 beyond float32 becomes an infinity."""
        if self.flat is not None and self.flat.dtype == y.dtype:
            y[:] = self.flat[start:stop]
            return
        for at, piece in self._segments(start, stop):
            part = y[at : at + piece.size]
            if self.dtype == y.dtype.name:
                part.reshape(piece.shape)[...] = piece
            else:
                _kernels.widen(np.ascontiguousarray(piece).reshape(-1).view(np.uint8), part, FORMATS[self.dtype])

    def store(self, start: int, stop: int, y: np.ndarray) -> bool:
        """Elements [start, stop) := y, rounded to nearest even; True if a result is not finite."""
        flawed = False
        for at, piece in self._segments(start, stop):
            part = y[at : at + piece.size]
            if self.dtype == y.dtype.name:
                piece[...] = part.reshape(piece.shape)
                flawed |= not bool(np.isfinite(part).all())
            elif piece.flags.c_contiguous:
                flawed |= bool(_kernels.narrow(part, piece.reshape(-1).view(np.uint8), FORMATS[self.dtype]))
            else:
                whole = np.empty(piece.size, piece.dtype)
                flawed |= bool(_kernels.narrow(part, whole.view(np.uint8), FORMATS[self.dtype]))
                piece[...] = whole.reshape(piece.shape)
        return flawed

    def _segments(self, start: int, stop: int):
        """(offset, view) pairs that cover [start, stop): one, or with gaps a partial run, whole runs, a partial run."""
        if self._memory.ndim == 1:
            yield 0, self._memory[start:stop]
            return
        run = self._memory.shape[1]
        at = start
        while at < stop:
            row, inside = divmod(at, run)
            if inside or stop - at < run:
                end = min(stop, (row + 1) * run)
                yield at - start, self._memory[row, inside : inside + end - at]
            else:
                end = stop // run * run
                yield at - start, self._memory[row : end // run]
            at = end

    def c_index(self, positions) -> int:
        """The least C-order index of positions in memory order."""
        if self.order == "C" or len(self.shape) < 2:
            return int(np.min(positions))
        places = np.unravel_index(positions, self.shape, order="F")
        return int(np.min(np.ravel_multi_index(places, self.shape)))

    def overlaps_partly(self, other: Buffer) -> bool:
        """Do the two share memory without being the same?"""
        if self.size == 0 or not np.may_share_memory(self.array, other.array):
            return False
        return self.array.__array_interface__["data"] != other.array.__array_interface__["data"] or (
            self.array.strides != other.array.strides
        )


def _with_gaps(array: np.ndarray) -> tuple[str, np.ndarray]:
    """(order, memory as runs x run) of a C- or Fortran-ordered view with a leading dimension; else ValueError."""
    axes = [axis for axis, extent in enumerate(array.shape) if extent > 1]
    for order, slowest_first in (("C", axes), ("F", axes[::-1])):
        levels: list[list[int]] = []  # [extent, stride], merged from the slowest axis on
        for axis in slowest_first:
            extent, stride = array.shape[axis], array.strides[axis]
            if levels and levels[-1][1] == extent * stride:
                levels[-1] = [levels[-1][0] * extent, stride]
            else:
                levels.append([extent, stride])
        fastest = array.shape[-1 if order == "C" else 0]
        if len(levels) == 1 and array.ndim > 1 and (fastest == 1 or len(axes) == 1):
            levels.append([1, array.itemsize])  # one row of a matrix with a leading dimension
        (runs, leading), (run, stride) = levels if len(levels) == 2 else ((0, 0), (0, 0))
        if stride == array.itemsize and leading > run * stride:
            memory = np.lib.stride_tricks.as_strided(array, (runs, run), (leading, stride))
            return order, memory
    raise ValueError(
        f"got shape {array.shape} with strides {array.strides}, expected C or Fortran order, or such a view with one "
        "leading dimension; copy it first (numpy.ascontiguousarray)"
    )

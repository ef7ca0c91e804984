"""A caller's array as one vector in memory order: what may be reduced, and how its elements are reached.

Taken are float32, float64, float16 and bfloat16 arrays of any shape, in any order of axes that leaves no gaps in
memory, or with gaps at one place (a leading dimension): NumPy arrays, and whatever has DLPack, `__array_interface__`,
`__cuda_array_interface__` or a buffer, in host memory or in that of a CUDA device.
"""

from __future__ import annotations

import sys

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends import dlpack
from gqallreduce.backends.cuda.arrays import located
from gqallreduce.backends.cuda.runtime import runtime
from gqallreduce.backends.overlap import runs, share_a_byte
from gqallreduce.coding import arithmetic
from gqallreduce.coding.dtypes import FLOATS, FORMATS, name_of, require_float
from gqallreduce.coding.layout import form_of
from gqallreduce.coding.order import c_index, in_memory, to_array

_NAMES = {np.dtype(name): name for name in FLOATS if name != "bfloat16"}  # `dtype.name` is slow


def as_array(value) -> tuple[np.ndarray, str]:
    """(array that shares the value's memory, dtype name); bfloat16 memory is seen as uint16. TypeError if unfit."""
    if type(value) is not np.ndarray:
        value = _memory_of(value)
        if isinstance(value, tuple):
            return value
    name = _NAMES.get(value.dtype) or require_float(name_of(value.dtype))
    return (value.view(np.uint16) if name == "bfloat16" else value), name


def _memory_of(value):
    """The array, as plain NumPy or as `as_array` gives it, of what is no plain NumPy array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("got a masked array, expected one without a mask: pass array.filled(0)")
    if isinstance(value, np.generic):
        raise TypeError(
            f"got a NumPy scalar ({name_of(value.dtype)}), of which only a copy could be summed; expected an array: "
            "np.array(value) has 0 dimensions"
        )
    return np.asarray(value) if isinstance(value, np.ndarray) else _foreign(value)  # slices of a matrix are matrices


def _foreign(value):
    """By the first protocol that gives the value's own memory."""
    refused = None
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        try:
            return dlpack.view(value)
        except (BufferError, RuntimeError) as problem:  # read-only arrays of before DLPack 1.0, for some
            refused = dlpack.refusal(value, problem)
    array = _by_interface(value)
    if array is None:
        try:
            array = np.asarray(memoryview(value))
        except (TypeError, ValueError, BufferError):
            raise refused or TypeError(
                f"got {type(value).__name__}, expected an array: NumPy, or with DLPack, a pointer in "
                "__array_interface__, or a buffer; np.array(value) makes one"
            ) from None
    if dlpack.is_immutable(value):
        array.flags.writeable = False
    return array


def _by_interface(value) -> np.ndarray | None:
    """None where `__array_interface__` has no pointer: a bytes object there is a copy."""
    interface = getattr(value, "__array_interface__", None)
    if not isinstance(interface, dict) or not isinstance(interface.get("data"), tuple):
        return None
    if interface.get("mask") is not None:
        raise TypeError(f"got a {type(value).__name__} with a mask, expected an array without")
    return np.asarray(_kernels.Memory(value, interface))  # of the value itself NumPy asks for a buffer first


class Buffer:
    """An array as a vector.

    shape, order, dtype; form
        what ranks must agree on, order as in order.py: "C", "F", or the axes; the three of them.
    located
        None, or where in GPU memory it is (cuda/arrays.py).
    array
        the memory as an array of the processor's; bfloat16 is seen as uint16.
    memory
        the same as a vector, or with gaps as rows of one.
    flat
        the vector as a float32 or float64 array that shares memory, or None (16 bits, or gaps).
    arithmetic
        the operations by which elements are loaded and stored: the host's, until a device's are set.
    """

    turned = False  # as of a Product

    __slots__ = ("_array", "arithmetic", "dtype", "form", "located", "memory", "owner", "readonly")

    def __init__(self, value):
        self.owner, self.arithmetic, self.located = value, arithmetic, None
        if not isinstance(value, np.ndarray) and (found := located(value)) is not None:
            self.located, self._array, self.dtype = found, _view(found), found.dtype
        else:
            self._array, self.dtype = as_array(value)
        self.readonly = not self._array.flags.writeable if self.located is None else self.located.readonly
        self._see_as_vector()

    def copied_to_host(self, processor) -> Buffer:
        """A buffer of the same form and content in host memory, without gaps."""
        made = Buffer.__new__(Buffer)
        vector = processor.on_host(self.arithmetic.contiguous(self.memory)).reshape(-1)
        made.owner = made._array = to_array(vector, self.shape, self.order)
        made.dtype, made.readonly, made.located, made.arithmetic = self.dtype, False, None, arithmetic
        made._see_as_vector()
        return made

    def copy_from_host(self, processor, other: Buffer) -> None:
        """Take over what `copied_to_host` gave, after a change."""
        self.arithmetic.copy(self.memory, processor.adopt(other.memory).reshape(self.memory.shape))

    @classmethod
    def of_vector(cls, vector, processor, dtype: str = "float32") -> Buffer:
        """A vector in a processor's memory."""
        made = cls.__new__(cls)
        made.owner = made._array = vector
        made.dtype, made.readonly, made.located, made.arithmetic = dtype, False, None, processor.arithmetic
        made._see_as_vector()
        return made

    @classmethod
    def of_known(cls, arrays: _kernels.Arrays, number: int) -> Buffer:
        """One of several arrays of known forms."""
        made, form = cls.__new__(cls), arrays.forms.forms[number]
        made.owner, made.memory = arrays.owners[number], arrays.vector(number)
        made._array, made.form, made.dtype = None, form, form.dtype  # which most calls do not ask for
        made.readonly, made.located, made.arithmetic = False, None, arithmetic
        return made

    def _see_as_vector(self) -> None:
        array = self._array
        flags = array.flags
        if flags.c_contiguous:
            order, self.memory = "C", array.ravel()  # a view of our own, also of a vector: callers may reshape theirs
        elif flags.f_contiguous:
            order, self.memory = "F", array.reshape(-1, order="F")
        else:
            order, form, strides = in_memory(array.shape, array.strides, array.itemsize)
            if self.located is None:
                self.memory = np.lib.stride_tricks.as_strided(array, form, strides)
            else:
                self.memory = _view(self.located._replace(shape=form, strides=strides, owner=(self.located.owner,)))
        self.form = form_of(array.shape, order, self.dtype)

    @property
    def array(self):
        if self._array is None:
            self._array = to_array(self.memory, self.form.shape, self.form.order)
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form.shape

    @property
    def order(self) -> str:
        return self.form.order

    @property
    def size(self) -> int:
        return self.memory.size

    @property
    def flat(self):
        return self.memory if self.dtype in ("float32", "float64") and self.memory.ndim == 1 else None

    @property
    def device(self) -> str:
        """In words, where it is."""
        return "in host memory" if self.located is None else f"on CUDA device {self.located.device}"

    @property
    def bounds(self) -> tuple[int, int]:
        """(first address, the one after the last) of the memory that it lies in."""
        if self.located is not None:
            return self.located.pointer, self.located.pointer + self.located.extent
        return _kernels.bounds(self.memory)

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """The Buffers that are read."""
        return (self,)

    @property
    def nbytes(self) -> int:
        """Of its elements, gaps not counted."""
        return self.array.nbytes

    def require_writable(self, name: str) -> None:
        if self.readonly:
            hint = "; pass out=" if name == "buf" else ""
            raise ValueError(f"{name} is read-only{hint}")

    def tell_written(self) -> None:
        """It is about to be written. PyTorch counts that: else autograd would compute with changed values unnoticed."""
        torch = sys.modules.get("torch")
        if torch and isinstance(self.owner, torch.Tensor) and not self.owner.is_inference():
            torch.autograd.graph.increment_version(self.owner)

    def load(self, start: int, stop: int, y: np.ndarray) -> None:
        """y := elements [start, stop), as y's dtype. A float64 beyond float32 becomes an infinity."""
        for at, piece in self._segments(start, stop):
            part = y[at : at + piece.size]
            if self.dtype == _NAMES[y.dtype]:
                self.arithmetic.copy(part.reshape(piece.shape), piece)
            else:
                self.arithmetic.widen(self.arithmetic.contiguous(piece), part, FORMATS[self.dtype])

    def store(self, start: int, stop: int, y: np.ndarray) -> bool | None:
        """Elements [start, stop) := y, rounded to nearest even; True if a result is not finite, None as arithmetic."""
        found = [self._store(piece, y[at : at + piece.size]) for at, piece in self._segments(start, stop)]
        return None if None in found else any(found)

    @property
    def vector(self):
        """Of a buffer made by `of_vector`, that."""
        return self.memory

    def put(self, start: int, values) -> None:
        """Elements from `start` on := values, which are of the memory's own dtype."""
        for at, piece in self._segments(start, start + values.size):
            self.arithmetic.copy(piece, values[at : at + piece.size].reshape(piece.shape))

    def _store(self, piece, part) -> bool | None:
        if self.dtype == _NAMES[part.dtype]:
            self.arithmetic.copy(piece, part.reshape(piece.shape))
            return self.arithmetic.not_finite(part)
        if piece.flags.c_contiguous:
            return self.arithmetic.narrow(part, piece, FORMATS[self.dtype])
        whole = self.arithmetic.contiguous(piece)
        flawed = self.arithmetic.narrow(part, whole, FORMATS[self.dtype])
        self.arithmetic.copy(piece, whole)
        return flawed

    def _segments(self, start: int, stop: int):
        """(offset, view) pairs that cover [start, stop): one, or with gaps a partial run, whole runs, a partial run."""
        if self.memory.ndim == 1:
            yield 0, self.memory[start:stop]
            return
        run = self.memory.shape[1]
        at = start
        while at < stop:
            row, inside = divmod(at, run)
            if inside or stop - at < run:
                end = min(stop, (row + 1) * run)
                yield at - start, self.memory[row, inside : inside + end - at]
            else:
                end = stop // run * run
                yield at - start, self.memory[row : end // run]
            at = end

    def c_index(self, positions) -> int:
        """The least C-order index of positions in memory order."""
        return c_index(positions, self.shape, self.order)

    def _bounds_meet(self, other: Buffer) -> bool:
        """Quickly: False if the two share no memory for certain."""
        here, there = self.memory, other.memory
        return self.located is not None or other.located is not None or np.may_share_memory(here, there)

    def overlaps(self, other: Buffer) -> bool:
        """Do the two share memory?"""
        if self is other:
            return self.size > 0
        if self.size == 0 or other.size == 0 or not self._bounds_meet(other):
            return False
        return share_a_byte(runs(self.memory), runs(other.memory))

    def overlaps_partly(self, other: Buffer) -> bool:
        """Do the two share memory without being the same?"""
        if self.size == 0 or other.size == 0 or not self._bounds_meet(other):
            return False
        mine, others = runs(self.memory), runs(other.memory)
        if (mine, self.shape, self.order, self.dtype) == (others, other.shape, other.order, other.dtype):
            return False
        return share_a_byte(mine, others)


def _view(located):
    return runtime(located.device).view(located)

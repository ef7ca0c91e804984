"""A gradient that is given as a product, in the place of a buffer."""

from __future__ import annotations

import copy
import math

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import arithmetic
from gqallreduce.coding.layout import Form
from gqallreduce.coding.order import c_index, to_array
from gqallreduce.coding.outer import Convolution, Factors, accumulate


class Outer:
    """What can be given for a buffer: the gradient of a layer's weight, as the product of which it is made.

    x
        the layer's input, (samples, inputs), or with more axes before the last; of a convolution (samples, channels,
        height, width). An array as for a buffer, of any float dtype and order.
    delta
        the derivative of the loss by the layer's output, (samples, outputs), or (samples, channels, height, width).
    kernel, stride, padding
        of a convolution, each a number or two (height, width); without a kernel the layer is dense.
    The gradient is the transposed x times delta, (inputs, outputs); of a convolution it has the shape (output channels,
    input channels, *kernel), rounded as float32 products and sums are.

    What is given is checked when it is summed, so that all ranks learn of an error, or when `shape` is asked for:
    TypeError, ValueError for an argument that is none of these.
    """

    def __init__(self, x, delta, *, kernel=None, stride=1, padding=0):
        self.x, self.delta = x, delta
        self._convolution = kernel, stride, padding

    @property
    def convolution(self) -> Convolution | None:
        kernel, stride, padding = self._convolution
        if kernel is None and (stride, padding) != (1, 0):
            raise ValueError(f"got stride={stride!r}, padding={padding!r} without a kernel")
        return None if kernel is None else Convolution.of(kernel, stride, padding)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the gradient."""
        return self.factors_of(Buffer(self.x), Buffer(self.delta)).result

    def factors_of(self, x: Buffer, delta: Buffer) -> Factors:
        return Factors.of(x.shape, delta.shape, self.convolution)

    def room(self) -> np.ndarray:
        """An array for the gradient."""
        return np.empty(self.shape, np.float32)


class Product:
    """As of a Buffer, where both have the same: the vector of a gradient, in the order of its target; not written.

    factors
        the shapes.
    parts
        the Buffers of x and delta.
    turned
        does the gradient's matrix lie column by column?
    """

    readonly, flat = True, None

    def __init__(self, parts: tuple[Buffer, Buffer], factors: Factors, target: Buffer):
        self.parts, self.factors, self.shape = parts, factors, factors.result
        self.turned = target.order == "F" and len(self.shape) == 2
        if target.shape != self.shape or (target.order != "C" and not self.turned):
            got = f"shape {target.shape} and order {target.order}"
            raise ValueError(f"out has {got}, expected {self.shape} and C order, or of a matrix Fortran order")
        self.order, self.dtype = target.order, target.dtype
        self.form = Form(self.shape, self.order, self.dtype, factors)
        self.size = math.prod(self.shape)
        self.nbytes = target.nbytes
        self.located = parts[0].located
        self.arithmetic = arithmetic
        self._gradient = None

    @classmethod
    def of(cls, outer: Outer, target: Buffer) -> Product:
        parts = Buffer(outer.x), Buffer(outer.delta)
        if len({part.device for part in (*parts, target)}) > 1:
            where = f"x is {parts[0].device}, delta {parts[1].device}, out {target.device}"
            raise ValueError(f"{where}, expected all in one memory")
        return cls(parts, outer.factors_of(*parts), target)

    @property
    def device(self) -> str:
        return self.parts[0].device

    def copied_to_host(self, processor) -> Product:
        made = copy.copy(self)
        made.parts, made.located = tuple(part.copied_to_host(processor) for part in self.parts), None
        return made

    def c_index(self, positions) -> int:
        return c_index(positions, self.shape, self.order)

    def matrices(self) -> list[np.ndarray]:
        """x and delta as float32 matrices of a row for each sample; copies where they are not that."""
        found = []
        for part, shape in zip(self.parts, self.factors.matrices, strict=True):
            if part.flat is not None and part.flat.dtype == np.float32 and part.order == "C":
                found.append(part.flat.reshape(shape))
            else:
                vector = np.empty(part.size, np.float32)
                part.load(0, part.size, vector)
                found.append(np.ascontiguousarray(to_array(vector, part.shape, part.order)).reshape(shape))
        return found

    @property
    def memory(self) -> np.ndarray:
        """The gradient as a float32 vector. It is formed once."""
        if self._gradient is None:
            self._gradient = np.empty(self.size, np.float32)
            for _ in accumulate(self.factors, *self.matrices(), self._gradient, self.turned):
                pass
        return self._gradient

    def load(self, start: int, stop: int, y: np.ndarray) -> None:
        """y := elements [start, stop) of the gradient, as y's dtype."""
        y[:] = self.memory[start:stop]

    def overlaps_partly(self, other: Buffer) -> bool:
        return any(part.overlaps(other) for part in self.parts)


def source_of(value, target: Buffer | None) -> Buffer | Product:
    """What is summed: an array, or an Outer, whose gradient is then in the target's order."""
    if isinstance(value, Outer) and target is None:
        raise TypeError("out: expected an array for the gradient of a gq.Outer, or no `out` at all")
    return Product.of(value, target) if isinstance(value, Outer) else Buffer(value)


def written(buf, out):
    """What a call writes and returns: `out`, or else `buf`, with new arrays for gradients given as products."""
    if out is not None:
        return out
    if isinstance(buf, Outer):
        return buf.room()
    if isinstance(buf, (list, tuple)) and any(isinstance(each, Outer) for each in buf):
        return [each.room() if isinstance(each, Outer) else each for each in buf]
    return buf


def without_flaws(matrix: np.ndarray) -> np.ndarray:
    """Itself, or with zeros for what is not finite: values of which no number of the gradient is made may be that."""
    return matrix if np.isfinite(matrix).all() else np.where(np.isfinite(matrix), matrix, np.float32(0))

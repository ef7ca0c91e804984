"""Gradients that are products: of a layer's input x and the loss's derivative `delta` by its output, over all samples.

Of a dense layer the gradient is the transposed x times delta. A convolution is a dense layer whose samples are the
places of its output, and whose input there is the part of the image under the kernel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gqallreduce.coding.products import multiplier

_TOGETHER = 1 << 22  # values of the matrices that are multiplied at one time
_PRODUCTS = 1 << 23  # of one kernel call: less than a millisecond
_ROWS = 32  # of one at least, which each read delta from memory together


class Convolution(NamedTuple):
    """Of a layer in two dimensions, with images of shape (samples, channels, height, width); height before width."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, kernel, stride=1, padding=0) -> Convolution:
        """From numbers, or pairs of them."""
        pairs = [("kernel", kernel, 1), ("stride", stride, 1), ("padding", padding, 0)]
        return cls(*(_pair(*each) for each in pairs))

    def places(self, extents: tuple[int, int]) -> tuple[int, int]:
        """Extents of the output."""
        every = zip(extents, self.kernel, self.stride, self.padding, strict=True)
        return tuple((extent + 2 * padding - kernel) // stride + 1 for extent, kernel, stride, padding in every)

    def patches(self, images: np.ndarray) -> np.ndarray:
        """What lies under the kernel: (samples x places, channels x kernel)."""
        padded = np.pad(images, [(0, 0), (0, 0), *((each, each) for each in self.padding)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.kernel, axis=(2, 3))
        windows = windows[:, :, :: self.stride[0], :: self.stride[1]].transpose(0, 2, 3, 1, 4, 5)
        return windows.reshape(math.prod(windows.shape[:3]), -1)


def _pair(name: str, value, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or not all(isinstance(each, (int, np.integer)) and each >= least for each in pair):
        raise ValueError(f"{name}={value!r}, expected an integer of {least} or more, or two")
    return int(pair[0]), int(pair[1])


class Factors(NamedTuple):
    """What ranks agree on of a gradient that is given as a product: the shapes of x and delta.

    A dense layer's are (samples, inputs) and (samples, outputs), or have more axes before the last.
    """

    x: tuple[int, ...]
    delta: tuple[int, ...]
    convolution: Convolution | None = None

    @classmethod
    def of(cls, x: tuple[int, ...], delta: tuple[int, ...], convolution: Convolution | None = None) -> Factors:
        """Checked: ValueError if they are no layer's."""
        got = f"got x of shape {x}, delta of {delta}"
        if convolution is None:
            if len(x) < 2 or x[:-1] != delta[:-1]:
                images = "; for a convolution gq.Outer(x, delta, kernel=...)" if len(x) == len(delta) == 4 else ""
                raise ValueError(f"{got}, expected (samples, inputs), (samples, outputs){images}")
        elif len(x) != 4 or len(delta) != 4 or min(convolution.places(x[2:])) < 1:
            raise ValueError(f"{got}, expected two of (samples, channels, height, width)")
        elif (x[0], *convolution.places(x[2:])) != (delta[0], *delta[2:]):
            expected = (x[0], delta[1], *convolution.places(x[2:]))
            raise ValueError(f"{got}, expected {expected} of delta, by {convolution}")
        if 0 in x + delta:
            raise ValueError(f"{got}, expected no extent of 0")
        return cls(x, delta, convolution)

    @property
    def result(self) -> tuple[int, ...]:
        """The gradient's shape: (inputs, outputs), or (output channels, input channels, *kernel)."""
        if self.convolution is None:
            return self.x[-1], self.delta[-1]
        return self.delta[1], self.x[1], *self.convolution.kernel

    @property
    def matrices(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of x and of delta, (rows, columns): a row for each sample, whose values have sizes of their own."""
        if self.convolution is None:
            rows = math.prod(self.x[:-1])
            return (rows, self.x[-1]), (rows, self.delta[-1])
        return (self.x[0], math.prod(self.x[1:])), (self.x[0], math.prod(self.delta[1:]))

    @property
    def terms(self) -> int:
        """How many products each number of the gradient sums up."""
        return self.matrices[0][0] if self.convolution is None else self.delta[0] * math.prod(self.delta[2:])

    def spread_x(self, x: np.ndarray) -> np.ndarray:
        """A matrix of x, of any number of samples, with a row for each term."""
        return x if self.convolution is None else self.convolution.patches(x.reshape(-1, *self.x[1:]))

    def spread_delta(self, delta: np.ndarray) -> np.ndarray:
        """The same of delta."""
        if self.convolution is None:
            return delta
        channels, *places = self.delta[1:]
        return delta.reshape(-1, channels, *places).transpose(0, 2, 3, 1).reshape(-1, channels)

    def operands(self, x: np.ndarray, delta: np.ndarray, turned: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(p, q) of matrices of any number of samples: the gradient, as a matrix, is the transposed p times q.

        turned
            that matrix lies column by column: (q, p).
        """
        p, q = self.spread_x(x), self.spread_delta(delta)
        return (q, p) if turned != (self.convolution is not None) else (p, q)

    @property
    def together(self) -> int:
        """How many samples are multiplied at one time."""
        terms = self.terms // self.matrices[0][0]
        return max(1, _TOGETHER // (terms * (self.result[0] + math.prod(self.result[1:]))))


def accumulate(factors: Factors, x, delta, y, turned: bool = False, **how):
    """A generator that yields between kernel calls: y := the gradient of matrices of any number of samples.

    y
        float32 vector, of the gradient as a matrix row by row, or `turned` column by column.
    how
        add=True: y += the gradient; subtract=True: y -= that.
    The order of additions follows from the shapes.
    """
    for begin in range(0, len(x), factors.together):
        p, q = factors.operands(x[begin : begin + factors.together], delta[begin : begin + factors.together], turned)
        rank, columns = q.shape
        p, q = (np.ascontiguousarray(each).reshape(-1) for each in (p, q))
        times_q = multiplier(q, rank)
        yield
        step = max(_ROWS, _PRODUCTS // (rank * columns) // _ROWS * _ROWS) * columns
        for at in range(0, len(y), step):
            times_q(p, y[at : at + step], at // columns, **how)
            yield
        how = how or {"add": True}

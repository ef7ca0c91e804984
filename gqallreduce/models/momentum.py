"""Momentum that is formed before gradients are summed, so that what is compressed is smoother than a gradient.

m[t] = beta m[t-1] + g[t], as optimizers have it, of the average (or sum) g of all ranks' gradients. Without compression
both classes give the same m; they differ in where the error of a sum goes.

What is kept of a tensor lies where its gradients do, in host memory or on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

import numpy as np

from gqallreduce.coding.layout import Form
from gqallreduce.coding.order import to_array, to_vector
from gqallreduce.runtime.memory import sum_of_squares


class Kept:
    """What is kept of one tensor: two vectors of its elements in memory order, in the memory of a processor.

    form
        of the tensor.
    now
        the vector that the next gradient is added to; None before a step has taken effect.
    after
        that of the step under way: `now` once it has taken effect. Memory for it is there before the sums begin.
    """

    def __init__(self, processor, form: Form, now=None):
        self.processor, self.form, self.now, self.after = processor, form, now, None

    @classmethod
    def of_array(cls, array: np.ndarray, host) -> Kept:
        """In host memory, from an array in the tensor's shape, which it makes its own."""
        return cls(host, Form(array.shape, "C", array.dtype.name), np.ascontiguousarray(array).reshape(-1))

    @property
    def array(self) -> np.ndarray:
        """A copy of `now` in host memory, in the tensor's shape."""
        return np.array(to_array(self.processor.on_host(self.now), self.form.shape, self.form.order))

    def move(self, processor, form: Form) -> None:
        """From now on it lies in this processor's memory, in the order of this form, with room for the next vector."""
        now, moves = self.now, processor is not self.processor
        if now is not None and (moves or form.order != self.form.order):
            now = processor.adopt(np.array(to_vector(self.array, form.order)).reshape(-1))
        after = None if moves else self.after
        if after is None:
            after = _room(processor, form)
        self.processor, self.form, self.now, self.after = processor, form, now, after

    def add_to(self, vector, factor: float) -> None:
        """vector += factor * now."""
        if self.now is None:
            return
        arithmetic, workspace = self.processor.arithmetic, self.processor.workspace
        lent = workspace.take(vector.nbytes)
        product = lent[: vector.nbytes].view(vector.dtype)
        arithmetic.multiply(self.now, factor, product)
        arithmetic.accumulate(product, vector)
        workspace.give(lent)

    def keep(self, memory) -> None:
        """after := the elements of a Buffer's `memory`, gaps left out."""
        self.processor.arithmetic.copy(self.after.reshape(memory.shape), memory)

    def scale(self, factor: float) -> bool:
        """after := factor * now; is it finite?"""
        if self.after is None:
            self.after = _room(self.processor, self.form)
        with np.errstate(over="ignore"):
            self.processor.arithmetic.multiply(self.now, factor, self.after)
        if self.form.dtype == "float32":
            return math.isfinite(sum_of_squares(self.processor, self.after))
        return bool(np.isfinite(self.after).all())

    def take_over(self) -> None:
        """The step has taken effect."""
        self.now, self.after = self.after, self.now


def _room(processor, form: Form):
    dtype = np.dtype(form.dtype)
    nbytes = form.size * dtype.itemsize
    return processor.workspace.take(nbytes)[:nbytes].view(dtype)


class Momentum:
    """The result of a sum is m, alike on all ranks: each gives beta m[t-1] + its own gradient.

    An error that is fed back is part of the momentum; what a rank does not send yet is delayed, not multiplied.
    Source: Tang et al., 1-bit Adam, ICML 2021, algorithm 1, line 5; differs: the factor 1 - beta is the optimizer's.

    beta
        in [0, 1).
    average, size
        are results averages of so many ranks, or sums? Of a sum each rank gives a share.
    """

    alike = True  # what is kept is the same on all ranks

    def __init__(self, beta: float, average: bool, size: int):
        self._factor = beta if average else beta / size
        self.kind = "momentum of averages" if average else "momentum of sums"

    def add_to(self, kept: Kept, vector) -> None:
        """Make a gradient what this rank gives."""
        kept.add_to(vector, self._factor)

    def note(self, kept: Kept, memory) -> None:
        """Of a sum, in the `memory` of its Buffer."""
        kept.keep(memory)


class MomentumCorrection:
    """Each rank gives the momentum of its own gradients, u[t] = beta u[t-1] + g[t], and keeps it.

    What was not sent is added up with the momentum it has gathered since. Source: Lin et al., Deep Gradient
    Compression, ICLR 2018, section 3.2, equation 4; differs: no masking of momentum where values were sent.
    """

    alike, kind = False, "momentum of a rank's own gradients"

    def __init__(self, beta: float):
        self._beta = beta

    def add_to(self, kept: Kept, vector) -> None:
        """Make a gradient what this rank gives."""
        kept.add_to(vector, self._beta)
        kept.keep(vector)  # the sum is written over the gradient

    def note(self, kept: Kept, memory) -> None:
        """Of a sum nothing is kept."""


def momentum_of(momentum: float, correction: float, average: bool, size: int) -> Momentum | MomentumCorrection | None:
    """By the options of a Reducer. ValueError for unfit ones."""
    for name, beta in {"momentum": momentum, "momentum_correction": correction}.items():
        if isinstance(beta, bool) or not isinstance(beta, Real) or not 0 <= beta < 1:
            raise ValueError(f"{name}={beta!r}, expected a number from 0 (none) to below 1")
    if momentum and correction:
        raise ValueError("got momentum and momentum_correction, expected one of them")
    if correction:
        return MomentumCorrection(float(correction))
    return Momentum(float(momentum), average, size) if momentum else None


def clip_factor(most: float, norms: Iterable[float]) -> float:
    """What gradients of these norms are multiplied by so that their Euclidean norm together is at most `most`.

    1 where it is no number, so that a NaN is reported where it is.
    """
    norm = math.hypot(*norms)
    return most / norm if math.isfinite(norm) and norm > most else 1.0


def wide_norm(array: np.ndarray) -> float:
    """Of a float64 array, also where its squares are no float64."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        norm = math.sqrt(float(np.sum(np.square(array, dtype=np.float64))))
        if (norm > 1e-100 and math.isfinite(norm)) or not array.size:
            return norm
        largest = float(np.max(np.abs(array)))
        if not 0 < largest < math.inf:
            return largest
        return largest * math.sqrt(float(np.sum(np.square(array / largest, dtype=np.float64))))

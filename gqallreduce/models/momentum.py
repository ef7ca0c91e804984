"""Momentum that is formed before gradients are summed, so that what is compressed is smoother than a gradient.

m[t] = beta m[t-1] + g[t], as optimizers have it, of the average (or sum) g of all ranks' gradients. Without compression
both classes give the same m; they differ in where the error of a sum goes.

Arrays are NumPy's, or on a GPU those of a library with the same operators; what is kept lies where the gradients do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

import numpy as np


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
        self._factor, self.kept, self._spare = beta if average else beta / size, {}, {}
        self.kind = "momentum of averages" if average else "momentum of sums"

    def add_to(self, name: str, gradient: np.ndarray) -> None:
        """Make a gradient what this rank gives."""
        if name in self.kept:
            gradient += self._factor * self.kept[name]

    def following(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What `kept` has to be once a step with these results has taken effect."""
        self._spare, found = {}, self._spare
        for name, each in sums.items():
            if name in found and type(found[name]) is type(each) and found[name].shape == each.shape:
                found[name][...] = each
            else:
                found[name] = each.copy(order="K")
        return found

    def take_over(self, following: dict[str, np.ndarray]) -> None:
        """The step has taken effect."""
        self._spare, self.kept = self.kept, following


class MomentumCorrection:
    """Each rank gives the momentum of its own gradients, u[t] = beta u[t-1] + g[t], and keeps it.

    What was not sent is added up with the momentum it has gathered since. Source: Lin et al., Deep Gradient
    Compression, ICLR 2018, section 3.2, equation 4; differs: no masking of momentum where values were sent.
    """

    alike, kind = False, "momentum of a rank's own gradients"

    def __init__(self, beta: float):
        self._beta, self.kept, self._next = beta, {}, {}

    def add_to(self, name: str, gradient: np.ndarray) -> None:
        """Make a gradient what this rank gives."""
        if name in self.kept:
            gradient += self._beta * self.kept[name]
        self._next[name] = gradient.copy(order="K")  # the sum is written over the gradient

    def following(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What `kept` has to be once a step with these results has taken effect."""
        return self._next

    def take_over(self, following: dict[str, np.ndarray]) -> None:
        """The step has taken effect."""
        self.kept, self._next = following, {}


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

"""Codecs that sum other vectors than the buffer: some of its values, coefficients, the factors of a matrix.

`bind` of such a codec gives an Indirect. In a call its `sums` makes vectors of a tensor's own values; each is summed
over all ranks by another codec, on every schedule, as if it were the buffer, and what the sums stand for is the result.
Or it makes a message of them, which all ranks get. Results follow from sums and messages alone, so they are the same on
all ranks. All works on NumPy arrays in host memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gqallreduce.coding.layout import BLOCK, Grid

# With feedback own values are at most so large where they are projected: no product or residual leaves float32 then.
LARGEST_PROJECTED = 2.0**100
ALL_ALIKE = 0xFFFF, 0xFFFFFFFF  # hop and author of the stream that all ranks draw from, which no encoding has
ALONE = 0x80000000  # plus a rank: with hop 0xFFFF the author of that from which the rank draws choices of its own


class Sum(NamedTuple):
    """A vector to be summed over all ranks: the yield gives back what this rank's encodings of it lost, float32, or
    None if nothing is or without feedback, and `values` are the sum then.

    own
        of which tensor.
    values
        float32, of one size on all ranks.
    codec
        whose messages carry it, not bound.
    origin
        (numbers of its elements) -> the elements of the buffer by which errors name them.
    mark
        64 bits of what all ranks must know alike for it: a message with another mark is refused. 0 for nothing.
    """

    own: Own
    values: np.ndarray
    codec: object
    origin: object
    mark: int = 0


class Gathered(NamedTuple):
    """A message that all ranks get: the yield gives back those of all ranks, a row of bytes each.

    own
        of which tensor.
    message
        uint8, of one size on all ranks.
    """

    own: Own
    message: np.ndarray


class Own(ABC):
    """A rank's own values of one tensor in a call, as float32 vectors in memory order, and where its result goes.

    size
        how many values.
    rank, ranks
        this rank, and of how many.
    number
        of the key, alike on all ranks: a hash.
    feedback
        are errors kept? Then `values` are what is left in the residual: a codec takes from them what it has sent.
    learned
        what the State of the key holds: name -> array or plain value; None at first.
    step
        how many calls of the key have succeeded.
    turned
        of a gradient that is given as a product: does its matrix lie column by column?
    values
        own values plus the residual, as far as formed, until the result is stored there; written by the codec only with
        `feedback`.
    """

    size: int
    rank: int
    ranks: int
    number: int
    feedback: bool
    learned: dict | None
    step: int
    turned: bool
    values: np.ndarray

    @abstractmethod
    def draw(self):
        """A stream of random numbers that is alike on all ranks, and new in each call."""

    @abstractmethod
    def stream_of(self, rank: int):
        """The stream from which a rank draws choices of its own in this call."""

    @abstractmethod
    def matrices(self) -> list[np.ndarray]:
        """Of a gradient that is given as a product: x and delta (outer.py), float32, finite; not to be written."""

    @abstractmethod
    def form(self, begin: int, stop: int) -> None:
        """values[begin:stop] := own values plus the residual."""

    @abstractmethod
    def add_residual(self, begin: int, stop: int) -> None:
        """values[begin:stop] += the residual, with feedback: as `form`, where own values are written there."""

    @abstractmethod
    def limit(self, begin: int, stop: int, most: float = math.inf) -> None:
        """Refuse the call, on all ranks, if a magnitude among values[begin:stop] is above `most` or not finite.

        Before the last Sum or Gathered, which tells them.
        """

    @abstractmethod
    def result(self, begin: int, stop: int) -> np.ndarray:
        """Room for a block of the result, to be written and stored before the next is asked for."""

    @abstractmethod
    def store(self, begin: int, stop: int, y) -> None:
        """A block of the sum is written to `y`, and `values` there are what is not sent: what rounding to the buffer's
        dtype loses is added to them."""

    def blocks(self, unit: int = 1) -> list[tuple[int, int]]:
        """All elements in blocks of about BLOCK that end between units; between two of them, yield."""
        step = max(1, BLOCK // max(unit, 1)) * max(unit, 1)
        return [(begin, min(begin + step, self.size)) for begin in range(0, self.size, step)]


class Indirect(ABC):
    """A codec that sums other vectors, for buffers of one form."""

    working = np.dtype(np.float32)

    def runs(self, columns: Grid) -> Grid:
        """Elements whose errors depend on each other's sizes."""
        return Grid(1)

    @property
    @abstractmethod
    def summed(self) -> list[tuple[object, int]]:
        """(codec, elements) of the vectors that a call sums, in order; where calls differ, of the usual one."""

    @property
    def gathered(self) -> int:
        """Bytes of the message that all ranks get."""
        return 0

    @abstractmethod
    def sums(self, own: Own):
        """A generator: forms all values, or gets the matrices, and stores all of the result. It yields None between
        kernel calls, an Ask (preparing.py), a Sum, or a Gathered; the same on all ranks, and none before all values are
        formed. Returns what the State of the key holds after the call, None for what it held before.
        """


def sum_whole(own: Own, codec, mark: int = 0, look=None):
    """The generator that sums all values as they are; `look(sums)` is called before they are stored."""
    y = own.result(0, own.size)
    for begin, stop in own.blocks():
        own.form(begin, stop)
        y[begin:stop] = own.values[begin:stop]
        yield
    lost = yield Sum(own, y, codec, lambda numbers: numbers, mark)
    if look is not None:
        look(y)
    for begin, stop in own.blocks():
        if own.feedback:
            own.values[begin:stop] = 0 if lost is None else lost[begin:stop]
        own.store(begin, stop, y[begin:stop])
        yield


@dataclass(frozen=True)
class Whole(Indirect):
    """All of so many values are summed as they are, by a codec."""

    size: int
    codec: object

    @property
    def summed(self):
        return [(self.codec, self.size)]

    def sums(self, own):
        return sum_whole(own, self.codec)

"""Small exchanges of a call: arrays of numbers that all ranks must know. Stages of one lane each (call.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.message import Incoming, Outgoing
from gqallreduce.transport.call import OneLane

# Their lanes in tags; those of data are below. ANSWERS: what readers of exposed values tell, of all lanes of a call.
FIRST, NAMES, PREPARE, NOT_FINITE, VERIFY, PACKETS, TIMES, ANSWERS = range(8, 16)
FIRST_WORDS = 20


class Exchange(OneLane, ABC):
    """ceil(log2 P) rounds; in each, something is sent to one rank and received from another.

    first_lane, signature
        what its tag is made of.
    """

    def __init__(self, rank: int, size: int, lane: int, signature: int = 0):
        self.rank, self.size, self.first_lane, self.signature = rank, size, lane, signature
        self.waiting: list[Incoming] = []
        self.finished = False
        self._step, self._came = 1, None

    def can_advance(self) -> bool:
        return all(item.ready for item in self.waiting)

    def advance(self, messages) -> None:
        """The next round, once what is due has come."""
        if self._came is not None:
            self._take(self._came)
            self._step *= 2
        self.finished = self._step >= self.size
        if self.finished:
            return
        given = self._given()
        self._came = np.empty_like(given)
        source, to = (self.rank - self._step) % self.size, (self.rank + self._step) % self.size
        item = Incoming(source, self._came.reshape(-1).view(np.uint8), given.nbytes)
        self.waiting = [item]
        messages.receive(item)
        messages.send(Outgoing(to, given.reshape(-1).view(np.uint8), given.nbytes))

    def account(self, running: _kernels.NativeExchange) -> None:
        """The runtime in C++ is done with it: what it found lies in `found`."""
        if self.spent is not None:
            running.count(self.spent)

    @abstractmethod
    def _given(self) -> np.ndarray:
        """What is sent in this round: a copy."""

    @abstractmethod
    def _take(self, came: np.ndarray) -> None:
        """What has come in this round."""


class _Whole(Exchange):
    """All of `found` is sent in each round.

    given
        this rank's values.
    """

    def __init__(self, rank, size, lane, values: np.ndarray, signature: int = 0):
        super().__init__(rank, size, lane, signature)
        self.given, self.found = values, values.copy()

    def _given(self) -> np.ndarray:
        return self.found.copy()


class Largest(_Whole):
    """`found`: element by element the largest value of all ranks."""

    def native(self) -> _kernels.NativeRounds | None:
        if self.found.dtype.str not in ("<u8", "<f8"):
            return None
        return _kernels.NativeRounds(self.rank, self.size, self.found, gather=False)

    def go_on(self, running: _kernels.NativeExchange) -> None:
        """The runtime has begun it already."""
        self.found = running.values

    def _take(self, came: np.ndarray) -> None:
        np.maximum(self.found, came, out=self.found)


class FromRank(_Whole):
    """`found`: the values of rank `root`, which those that have them pass on."""

    root = 0

    def _take(self, came: np.ndarray) -> None:
        """A rank at distance d from the root has them after the last round whose step is at most d."""
        if (self.rank - self.root) % self.size >= self._step:
            self.found = came


class Gather(Exchange):
    """`found`: the values of all ranks, a row each."""

    def __init__(self, rank, size, lane, values: np.ndarray, signature: int = 0):
        super().__init__(rank, size, lane, signature)
        self._rows = np.zeros((size, len(values)), values.dtype)
        self._rows[0] = values  # row i is that of rank (this rank - i)

    def native(self) -> _kernels.NativeRounds:
        return _kernels.NativeRounds(self.rank, self.size, self._rows, gather=True)

    def go_on(self, running: _kernels.NativeExchange) -> None:
        """The runtime has begun it already."""
        self._rows = running.values.view(self._rows.dtype).reshape(self._rows.shape)

    def _given(self) -> np.ndarray:
        return self._rows[: min(self._step, self.size - self._step)].copy()

    def _take(self, came: np.ndarray) -> None:
        self._rows[self._step : self._step + len(came)] = came

    @property
    def found(self) -> np.ndarray:
        return self._rows[(self.rank - np.arange(self.size)) % self.size]


class Total(Gather):
    """`found`: the sum of all ranks' values, added in order of ranks."""

    @property
    def found(self) -> np.ndarray:
        rows = super().found
        return np.add.accumulate(rows, dtype=rows.dtype)[-1]

"""A rank's own values of one tensor of a call with a codec that sums other vectors (coding/indirect.py)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import without_flaws
from gqallreduce.coding.frame import LARGEST_STEP, NO_RANK
from gqallreduce.coding.indirect import ALL_ALIKE, ALONE, Own, Sum
from gqallreduce.hashing import hash64
from gqallreduce.runtime.flaws import own_flaws
from gqallreduce.runtime.operand import Operand

if TYPE_CHECKING:
    from gqallreduce.runtime.indirect import IndirectOperation

_LARGEST = float(np.finfo(np.float32).max)


class OwnValues(Own):
    """Of one tensor of an IndirectOperation.

    bound
        its Indirect.
    """

    def __init__(self, operation: IndirectOperation, bound, given: Operand, begin: int):
        self._operation, self.bound, self._given, self._begin = operation, bound, given, begin
        self.rank, self.ranks = operation.plan.rank, operation.plan.size
        self.size, self.number = given.source.size, given.stream
        self.feedback, self.learned = given.new_residual is not None, given.learned
        self.step, self.turned = given.step, given.source.turned
        self._sums, self._room = 0, None
        self._x = _float32_of(given.source)  # None if it is loaded and stored in another way
        self._y = self._x if given.target is given.source else _float32_of(given.target)
        if self.feedback:
            self.values = given.new_residual
        elif self._x is not None:
            self.values = self._x
        else:
            self.values = operation.lend(self.size, np.float32)

    def draw(self):
        return _kernels.Stream(self.number, *ALL_ALIKE, self._given.step & LARGEST_STEP)

    def stream_of(self, rank: int):
        return _kernels.Stream(self.number, ALL_ALIKE[0], ALONE + rank, self._given.step & LARGEST_STEP)

    # --- own values ---

    def matrices(self):
        product = self._given.source
        given = product.matrices()
        found = [without_flaws(each) for each in given]
        if any(one is not other for one, other in zip(found, given, strict=True)):
            gradient = np.empty(self.size, np.float32)
            product.load(0, self.size, gradient)
            flawed = np.flatnonzero(~np.isfinite(gradient))
            if len(flawed):
                self._note(self.rank, flawed)
        return found

    def form(self, begin, stop):
        source, v, residual = self._given.source, self.values[begin:stop], None
        if not self.feedback:
            if self._x is None:
                source.load(begin, stop, v)
            flawed = self._operation.arithmetic.not_finite(v)
        else:
            residual, x = self._given.residual[begin:stop], v
            if self._x is not None:
                x = self._x[begin:stop]
            else:
                source.load(begin, stop, v)
            flawed = self._operation.arithmetic.add_finite(x, residual, v)
        if flawed:
            self._note_flaws(begin, v, residual)

    def add_residual(self, begin, stop):
        v, residual = self.values[begin:stop], self._given.residual[begin:stop]
        if self._operation.arithmetic.add_finite(v, residual, v):
            self._note_flaws(begin, v, residual)

    def limit(self, begin, stop, most=math.inf):
        v, largest = self.values[begin:stop], np.empty(1, np.float32)
        _kernels.largest_of_rows(v, largest)  # an infinity for what is not finite
        if not largest[0] <= min(most, _LARGEST):
            self._note(NO_RANK, begin + np.flatnonzero(~(np.abs(v) <= min(most, _LARGEST))))

    def _note_flaws(self, begin: int, v, residual) -> None:
        own = own_flaws(v, residual)
        rank, bad = (self.rank, own) if own.any() else (NO_RANK, ~np.isfinite(v))
        self._note(rank, begin + np.flatnonzero(bad))

    def _note(self, rank: int, elements) -> None:
        self._operation.flaws.note((0, 0), (rank, self._number_of(elements)))

    def _number_of(self, elements) -> int:
        """Of the first of these, in C order, among those of all tensors."""
        return self._begin + self._given.source.c_index(elements)

    # --- sums ---

    def operand(self, asked: Sum) -> Operand:
        """Of the Operation that sums a vector."""
        values, errors = asked.values, None
        if self._operation.flaws:  # which are noted
            values[~np.isfinite(values)] = 0
        exact = asked.codec.unbiased and asked.codec.deterministic
        if self.feedback and not exact:
            errors = self._operation.lend(values.size, np.float32)
            errors[:] = 0
        buffer = Buffer.of_vector(values, self._operation.processor)
        stream = hash64(self.number, self._sums) if self._sums else self.number
        self._sums += 1

        def locate(numbers) -> int:
            return self._number_of(asked.origin(numbers))

        return Operand(buffer, buffer, None, errors, self._given.step, stream, locate=locate)

    # --- the result ---

    def result(self, begin, stop):
        return self._scratch(stop - begin) if self._y is None else self._y[begin:stop]

    def store(self, begin, stop, y):
        operation, target, scale = self._operation, self._given.target, self._operation.plan.scale
        if self._y is not None:
            flawed, stored = operation.arithmetic.scale(y, scale), y
        else:
            stored = y * np.float32(scale)
            flawed = target.store(begin, stop, stored)
            target.load(begin, stop, stored)
            if self.feedback and target.dtype != "float64":
                self._keep_rounding(begin, stop, y - stored / np.float32(scale))
        if flawed:
            self._note(NO_RANK, begin + np.flatnonzero(~np.isfinite(stored)))

    def _keep_rounding(self, begin: int, stop: int, error) -> None:
        """Add what a buffer of 16 bits lost, alike on all ranks, to the residual of this rank's share."""
        low, high = (self.size * rank // self.ranks for rank in (self.rank, self.rank + 1))
        low, high = max(low, begin), min(high, stop)
        if low < high:
            self.values[low:high] += error[low - begin : high - begin]

    def ended(self, learned: dict | None) -> None:
        if learned is not None:
            self.learned = learned

    def _scratch(self, size: int):
        if self._room is None or self._room.size < size:
            self._room = self._operation.lend(size, np.float32)
        return self._room[:size]

    def end(self) -> None:
        """The arrays are lent no more."""
        self._operation = self._given = self.values = self._room = self._x = self._y = None


def _float32_of(buffer: Buffer) -> np.ndarray | None:
    """Its elements as a vector of float32, if they are one."""
    return buffer.flat if buffer.dtype == "float32" else None

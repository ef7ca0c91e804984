"""A tensor of a call of which a shorter vector is summed (coding/transform.py)."""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.frame import NO_RANK
from gqallreduce.coding.layout import BLOCK
from gqallreduce.coding.preparing import Prepared
from gqallreduce.coding.transform import ALL_ALIKE
from gqallreduce.runtime.flaws import own_flaws
from gqallreduce.runtime.values import Values


class Shortened(Values):
    """Source, target and new residual of this object are vectors of coefficients; those of the call are in `_given`.

    The new residual of the coefficients is what their encodings lose, and is added to that of the buffer at the end.
    """

    __slots__ = ("_begin", "_drawn", "_given", "_transform")

    def __init__(self, operation, tensor, given):
        self._given, self._transform = given, tensor.codec.transform
        self._drawn = None
        size, processor = self._transform.form.size, operation.processor
        source = Buffer.of_vector(operation.lend(size, np.dtype(np.float32)), processor)
        target, errors = source, None
        if given.target.dtype != "float32":
            target = Buffer.of_vector(operation.lend(size, given.target.array.dtype), processor, given.target.dtype)
        if given.new_residual is not None:
            errors = operation.lend(size, np.dtype(np.float32))
            errors[:] = 0
        mine = given._replace(source=source, target=target, residual=None, new_residual=errors)
        super().__init__(operation, tensor, mine)

    def prepare(self):
        """Steps: the coefficients of own values, and what they leave out into the new residual."""
        given, transform, operation = self._given, self._transform, self._operation
        self._drawn = transform.draw(operation.stream_of(self.tensor.number, *ALL_ALIKE))
        self.source.flat[:], flawed = 0, False
        for begin in range(0, given.source.size, BLOCK):
            yield
            here = slice(begin, min(begin + BLOCK, given.source.size))
            x = self.values_of(given.source, here.start, here.stop)
            residual = None if given.residual is None else given.residual[here]
            v = x if given.new_residual is None else given.new_residual[here]
            if operation.arithmetic.add_finite(x, residual, v) if v is not x else operation.arithmetic.not_finite(x):
                self._note_flaws(begin, x, residual)
                flawed = True
            transform.shorten(self._drawn, begin, v, self.source.flat)
        if given.new_residual is not None:
            for begin in range(0, given.source.size, BLOCK):
                yield
                transform.leave(self._drawn, begin, given.new_residual[begin : begin + BLOCK], self.source.flat)
        if flawed:  # that is noted, with the element's number in the buffer
            self.source.flat[~np.isfinite(self.source.flat)] = 0
        steps = super().prepare()
        return Prepared(self.codec) if steps is None else (yield from steps)

    def _note_flaws(self, begin: int, x, residual) -> None:
        """Note own values that are not finite, also those in no coefficient: for lane 0, chunk 0, of which every rank
        receives a message."""
        with np.errstate(over="ignore", invalid="ignore"):
            v = x if residual is None else x + residual
            own = own_flaws(v, residual)
        rank, bad = (self._operation.plan.rank, own) if own.any() else (NO_RANK, ~np.isfinite(v))
        number = self.tensor.begin + self._given.source.c_index(begin + np.flatnonzero(bad))
        self._operation.flaws.note((0, 0), (rank, number))

    def conclude(self):
        """Steps: finished coefficients become the result, and what their encodings lost is added to the residual."""
        given, transform, errors = self._given, self._transform, self.new_residual
        for begin in range(0, given.target.size, BLOCK):
            here = slice(begin, min(begin + BLOCK, given.target.size))
            y = self._operation.scratch(0, here.stop - here.start, given.target.array.dtype)
            transform.lengthen(self._drawn, begin, self.target.vector, y, add=False)
            given.target.put(begin, y)
            if errors is not None:
                transform.lengthen(self._drawn, begin, errors, given.new_residual[here], add=True)
            yield

    def locate(self, extent, where) -> int:
        elements = self._transform.origin(self._drawn, extent.start + where)
        return self.tensor.begin + self._given.source.c_index(elements)

"""What is not finite among the values of an Operation: who had it, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.frame import NO_RANK
from gqallreduce.coding.layout import Chunk, Span
from gqallreduce.coding.preparing import Parts, alone
from gqallreduce.errors import NonFiniteError, WireError

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation

_OVERFLOWING = np.float32(2.0**103)  # a smaller addend cannot carry a finite float32 to infinity


class Flaws(dict):
    """place -> (rank or NO_RANK, number of the element) of the first value that is not finite, as far as known."""

    def __init__(self, operation: Operation):
        self._operation = operation

    def end(self) -> None:
        """The operation is over."""
        self._operation = None

    @property
    def first(self) -> tuple[int, int] | None:
        return min(self.values(), default=None)

    def note(self, place, flaw: tuple[int, int]) -> None:
        """Note (rank or NO_RANK, number of the element); the lowest stays."""
        self[place] = min(flaw, self.get(place, flaw))

    def find_in(self, place, chunk: Chunk) -> None:
        """Note what could not be encoded of a chunk."""
        running = self._operation.running.get(place)
        for extent in chunk.extents:
            if running is None:
                x, residual = self._operation.values_of(extent).own(extent)
            else:
                x, residual = Chunk.part(running, extent), None
            self.find(place, extent, x, residual, own=running is None)

    def find(self, place, extent: Span, x, residual, own: bool, formed: bool = False) -> None:
        """Note why an extent cannot be sent: own values of this rank that are not finite, else an overflow.

        formed
            x is own values + residual already.
        """
        operation, values = self._operation, self._operation.values_of(extent)
        x, residual = (
            operation.processor.on_host(x),
            None if residual is None else operation.processor.on_host(residual),
        )
        with np.errstate(over="ignore", invalid="ignore"):
            v = x if formed or residual is None else x + residual
            mine = np.flatnonzero(own_flaws(v, residual)) if own and not operation.derived else ()
        if len(mine):
            self.note(place, (operation.plan.rank, values.locate(extent, mine)))
        else:
            self.note(place, (NO_RANK, values.locate(extent, self._too_large(values, extent, v, own))))

    def find_read(self, place, extent: Span, values, rank: int) -> None:
        """Note what is not finite of values that were read: own ones of the rank, or of a sum if it is negative."""
        where = np.flatnonzero(~np.isfinite(values))
        author = NO_RANK if rank < 0 or self._operation.derived else rank
        self.note(place, (author, self._operation.values_of(extent).locate(extent, where)))

    def _too_large(self, values, extent: Span, v, own: bool) -> np.ndarray:
        """The finite values for which an extent cannot be sent."""
        parts = list(values.parts(extent))
        for part, here in parts:
            where = np.flatnonzero(~values.codec_of(part).carries(v[here]))
            if not len(where) and (len(parts) == 1 or not self._can_send(part, v[here], own)):
                where = np.argmax(np.abs(v[here]), keepdims=True)  # none is too large by itself, all are for a norm
            if len(where):
                return where + here.start
        return np.argmax(np.abs(v), keepdims=True)

    def _can_send(self, part: Span, v, own: bool) -> bool:
        """Is a part of a batch not what made its encoding fail?"""
        operation, prepared = self._operation, None
        codec = operation.codec_of(part) if own else operation.codec_of(part).of_sums
        wire, stream = np.empty(operation.codec.nbytes_bound(part.regions), np.uint8), operation.stream(0, 0)
        if codec.prepare is not None if own else codec.prepares:
            prepared = alone(codec.prepare(Parts([part], lambda _: (v, None, None), operation.workspace)))
        selected = prepared and prepared.selected
        return codec.encode(v, None, None, wire, part, stream, selected and selected[0]) != NOT_FINITE

    def find_overflow(self, place, extent: Span, y) -> None:
        """Note where a finished sum leaves the range of float32 (in y, or None), or else that of the buffer."""
        operation, values = self._operation, self._operation.values_of(extent)
        where = [] if y is None else np.flatnonzero(~np.isfinite(operation.processor.on_host(y)))
        if not len(where):
            back = operation.lend(extent.size, values.working, "flawed")
            values.load_result(extent, back)
            where = np.flatnonzero(~np.isfinite(operation.processor.on_host(back)))
            operation.give_back("flawed")
        self.note(place, (NO_RANK, values.locate(extent, where)))


def own_flaws(v, residual) -> np.ndarray:
    """Which of v = x + residual are not finite since x is not: an infinity may also be the sum of two finite values."""
    flaws = ~np.isfinite(v)
    if residual is not None:
        flaws &= np.isnan(v) | (np.abs(residual) < _OVERFLOWING)
    return flaws


def not_finite(flaw: tuple[int, int], keys, sources, size: int) -> NonFiniteError:
    """The error of a flaw: with the key that the number of the element belongs to, and its C-order index.

    WireError if there is no such element, or rank: a frame said so.
    """
    rank, number = flaw
    at, total = 0, sum(source.size for source in sources)
    if number >= total or not (rank < size or rank == NO_RANK):
        raise WireError(f"got a frame that names element {number} of rank {rank}, expected one of {total} of {size}")
    while number >= sources[at].size:
        number, at = number - sources[at].size, at + 1
    return NonFiniteError(None if rank == NO_RANK else rank, keys[at], number)

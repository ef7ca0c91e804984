"""A Share instruction under way: ranks that encoded one value alike keep a slice each of the error that was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gqallreduce.coding.layout import Chunk
from gqallreduce.scheduling.instructions import Share

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Sharing:
    """Keeps copies of this rank's slices of the running values, until those are replaced by what was decoded."""

    def __init__(self, operation: Operation, instruction: Share, chunk: Chunk, running: list):
        self._operation, self._slices = operation, []
        for values, begin, stop, now in self._slices_of(instruction, chunk, running):
            before = operation.lend(stop - begin, values.working, (self, values, begin))
            operation.arithmetic.copy(before, now)
            self._slices.append((values, begin, stop, now, before))

    def _slices_of(self, instruction: Share, chunk: Chunk, running: list):
        """(values, begin, stop, running value) of this rank's slice of each piece that a codec may lose of."""
        for piece in chunk.pieces:
            at = 0
            for part in piece.parts:
                begin, stop = part.share(instruction.index, instruction.of)
                now = running[piece.number][at + begin - part.start : at + stop - part.start]
                values = self._operation.values[part.tensor]
                if not values.codec.linear:
                    yield values, begin, stop, now
                at += part.size

    def end(self) -> None:
        """The running values are decoded ones now: the differences go into the new residuals."""
        operation = self._operation
        for values, begin, stop, now, before in self._slices:
            operation.arithmetic.subtract(before, now, before)
            values.add_error(begin, stop, before)
            operation.give_back((self, values, begin))

"""An Encode instruction under way: a chunk becomes a message, one kernel call at a time."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gqallreduce.coding import frame
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Piece, of
from gqallreduce.coding.message import Receipt
from gqallreduce.scheduling.instructions import Encode

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Encoding:
    """Of a rank's own values or of a running value.

    made, sealed
        the message, of kind *not finite* if a value of the chunk is; is it complete?
    """

    def __init__(self, operation: Operation, instruction: Encode, lane: int, piece: Piece):
        self.operation, self._instruction, self._piece = operation, instruction, piece
        self._place = lane, instruction.chunk
        self.made, self.sealed = operation.processor.make_frame(piece.bound), False
        own = instruction.own and operation.codec.lifts
        self._stream = operation.own_stream if own else operation.stream(instruction.hop, instruction.author)
        self._header = frame.Header(
            frame.DATA, operation.step, operation.signature, 0, instruction.author, instruction.hop, lane
        )
        self._selecting = self._selected = None
        self._extent = self._offset = 0

    def advance(self) -> Receipt | None:
        """One kernel call more; a Receipt if a device knows how it went, for which `seal` waits."""
        operation, piece = self.operation, self._piece
        if self._extent == 0 and self._place in operation.flaws:
            self.seal(False)
            return None
        if operation.codec.selects and self._selected is None:
            self._select()
            return None
        if piece.extents:
            self._encode_extent()
            self._extent += 1
            if self._extent < len(piece.extents):
                return None
        receipt = None
        if self._place not in operation.flaws:
            receipt = operation.processor.ship(self.made, self._header, self._offset)
        if receipt is None:
            self.seal(False)
        return receipt

    def seal(self, flawed: bool) -> None:
        """The message is made; it says so if a value is not finite."""
        operation, made, piece = self.operation, self.made, self._piece
        if flawed:
            operation.find_flaws(self._place, piece)
        if self._place in operation.flaws:
            rank, index = operation.flaws[self._place]
            operation.processor.mark(made, self._header._replace(kind=frame.NOT_FINITE, word=index, rank=rank))
        else:
            operation.spent.selected += operation.codec.entries(made.nbytes - frame.SIZE, piece.regions)
        if self._stream is not operation.own_stream:
            operation.spent.saturated += self._stream.clipped
        if self._selected is not None and not self._instruction.own:
            self._selected.release()
        self.sealed = True

    def _select(self) -> None:
        """One step of choosing what is encoded."""
        operation, piece = self.operation, self._piece
        if self._instruction.own:
            self._selected = operation.own_selection(piece)
            return
        if self._selecting is None:
            owing = operation.owing if self._instruction.alone else None
            self._selecting = operation.selecting(piece, operation.running[self._place], owing)
        self._selected = operation.step_of(self._selecting)

    def _encode_extent(self) -> None:
        """One that is not finite does not end it: the first flaw in C order may lie in a later one."""
        operation, piece, own = self.operation, self._piece, self._instruction.own
        region, began = piece.extents[self._extent], perf_counter()
        codec = operation.codec if own else operation.codec.sums
        if own:
            x, owed = operation.own(region)
        else:
            x, owed = piece.part(operation.running[self._place], region), None
        owing = of(operation.owing, region) if self._instruction.alone else None
        kept = None if self._selected is None else self._selected[self._extent]
        nbytes = codec.encode(x, owed, owing, self.made.payload[self._offset :], region, self._stream, kept)
        if nbytes == NOT_FINITE:
            operation.find_flaw(self._place, region, x, owed, own=own)
        else:  # a device, which has one extent, may be the only one to know it
            self._offset = self._offset + nbytes if self._offset else nbytes
        operation.spent.encode += perf_counter() - began

"""An Encode instruction under way: a chunk becomes a message, one kernel call at a time."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gqallreduce.coding import frame
from gqallreduce.coding.arithmetic import LARGEST_WITH_ERROR
from gqallreduce.coding.codec import NOT_FINITE
from gqallreduce.coding.layout import Chunk
from gqallreduce.coding.message import Receipt
from gqallreduce.scheduling.instructions import Encode

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Encoding:
    """Of a rank's own values or of a running value.

    made, sealed
        the message; is it complete? If a value of the chunk is not finite, it has the kind *not finite*.
    """

    def __init__(self, operation: Operation, instruction: Encode, lane: int, chunk: Chunk):
        self.operation, self._instruction, self._chunk = operation, instruction, chunk
        self._place = lane, instruction.chunk
        bound = chunk.exact_bound if instruction.exact else chunk.bound
        self.made, self.sealed = operation.processor.make_frame(bound), False
        self._stream = operation.own_stream if instruction.own else None
        if self._stream is None:
            self._stream = operation.stream(instruction.hop, instruction.author)
        self._selecting = self._selected = None
        self._selections: list = []  # to be released
        if instruction.exact:
            self._prepared = True
        elif instruction.own:
            self._selected = operation.own_selection(chunk)
            self._prepared = True
        else:
            self._prepared = not operation.codec.of_sums.prepares
        self._extent = self._offset = 0

    def advance(self) -> Receipt | None:
        """One kernel call more; a Receipt if a device knows how it went, for which `seal` waits."""
        operation, extents = self.operation, self._chunk.extents
        if self._extent == 0 and self._place in operation.flaws:
            self.seal(False)
            return None
        if not self._prepared:
            self._prepare_sums()
            return None
        if extents:
            self._encode_extent()
            self._extent += 1
            if self._extent < len(extents):
                return None
        receipt = None
        if self._place not in operation.flaws:
            receipt = operation.processor.ship(self.made, self._header(frame.DATA, self._offset), self._offset)
        if receipt is None:
            self.seal(False)
        return receipt

    def seal(self, flawed: bool) -> None:
        """The message is made; it says so if a value is not finite."""
        operation, made, chunk = self.operation, self.made, self._chunk
        if flawed:
            operation.flaws.find_in(self._place, chunk)
        if self._place in operation.flaws:
            rank, number = operation.flaws[self._place]
            operation.processor.mark(made, self._header(frame.NOT_FINITE, number, rank))
        elif not self._instruction.exact:
            operation.spent.selected += operation.codec.entries(made.payload[: made.nbytes - frame.SIZE], chunk.extents)
        if self._stream is not operation.own_stream:
            operation.spent.saturated += self._stream.clipped
        for selection in self._selections:
            selection.release()
        self.sealed = True

    def _header(self, kind: int, word, rank: int | None = None) -> frame.Header:
        operation, instruction = self.operation, self._instruction
        rank = instruction.author if rank is None else rank
        return frame.Header(kind, operation.step, operation.frames, word, rank, instruction.hop, self._place[0])

    def _prepare_sums(self) -> None:
        """One step of choosing what of running values is encoded."""
        operation = self.operation
        if self._selecting is None:
            running = operation.running[self._place]
            self._selecting = operation.prepare_sums(self._chunk, running, self._instruction.alone)
        found = operation.step_of(self._selecting)
        if found is not None:
            self._selected, self._selections = found
            self._prepared = True

    def _error_is_shared(self, codec) -> bool:
        """Do several ranks, which make this encoding alike, keep its error between them?"""
        own, alone = self._instruction.own, self._instruction.alone
        return self.operation.feeds_back and not (own or alone or codec.exact)

    def _encode_extent(self) -> None:
        """One that is not finite does not end it: the first flaw in C order may lie in a later one."""
        operation, own = self.operation, self._instruction.own
        extent, began = self._chunk.extents[self._extent], perf_counter()
        values, codec = operation.values_of(extent), operation.coder_of(extent, self._instruction.exact, sums=not own)
        if own:
            x, residual = values.own(extent)
        else:
            x, residual = Chunk.part(operation.running[self._place], extent), None
        lossy = self._instruction.alone and (own or not codec.exact)  # exact sums lose nothing
        kept = None if self._selected is None else self._selected[self._extent]
        errors = values.errors(extent, known=kept is not None) if lossy else None
        wire = self.made.payload[self._offset :]
        if self._error_is_shared(codec) and operation.arithmetic.exceeds(x, LARGEST_WITH_ERROR):
            nbytes = NOT_FINITE  # here it has an error of its own values besides
        else:
            nbytes = codec.encode(x, residual, errors, wire, extent, self._stream, kept)
        if nbytes == NOT_FINITE:
            operation.flaws.find(self._place, extent, x, residual, own=own)
        else:  # a device, which has one extent, may be the only one to know it
            self._offset = self._offset + nbytes if self._offset else nbytes
        values.keep(extent, errors)
        operation.spent.encode += perf_counter() - began

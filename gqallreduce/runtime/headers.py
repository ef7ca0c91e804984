"""The headers of the messages that a lane receives: read one after the other, checked against the expected wires."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame, Incoming, Receipt
from gqallreduce.errors import WireError

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Headers:
    """Of one lane of an operation."""

    __slots__ = ("_head", "_lane", "_operation")

    def __init__(self, operation: Operation, lane: int):
        self._operation, self._lane, self._head = operation, lane, None

    def read(self, item: Incoming, messages) -> Receipt | Incoming | None:
        """All of a message that has arrived, into `item.heads`; a Receipt, to come again, if a device has yet to give
        one. ForeignFrame if the message is none of this call's. Values that are exposed are read at once; if they are
        not any more, what is due of their owner then.

        messages
            what fetches those, a Channel.
        """
        processor = self._operation.processor
        while len(item.heads) < len(item.wires):
            at = 0
            if item.heads:
                at, header = item.heads[-1]
                at += frame.SIZE + (header.word if header.kind == frame.DATA else 0)
            if self._head is None:
                self._head, receipt = processor.head(item.buffer, at, item.nbytes)
                if receipt is not None and not receipt.ready:
                    return receipt
            header = self._accepted(item, at)
            if header.kind == frame.EXPOSED:
                found = messages.fetched(item, header.word)
                if found is None:
                    return messages.never(item.source)
                header = self._fetched(item, header, *found)
            processor.give_wire(self._head)
            self._head = None
            item.heads.append((at, header))
        return None

    def _accepted(self, item: Incoming, at: int) -> frame.Header:
        """The header at `at`; ForeignFrame unless it belongs to the next wire, and to this call."""
        operation, wire = self._operation, item.wires[len(item.heads)]
        try:
            header = frame.read(self._head)
        except WireError:
            raise ForeignFrame(item.source) from None
        ours = (header.signature, header.step, header.lane) == (operation.frames, operation.step, self._lane)
        if header.kind == frame.DATA:
            ours = ours and header.rank == wire.author and at + frame.SIZE + header.word <= item.nbytes
        if header.kind == frame.EXPOSED:
            ours = ours and header.rank == wire.author and header.word == self._exposed_nbytes(wire)
            ours = ours and len(item.wires) == 1 and item.nbytes == frame.SIZE + frame.EXPOSURE
        if not ours or header.kind not in (frame.DATA, frame.NOT_FINITE, frame.EXPOSED):
            raise ForeignFrame(item.source)
        return header

    def _exposed_nbytes(self, wire) -> int:
        """Bytes of a wire's values, if it is these as they are; else -1."""
        operation = self._operation
        chunk = operation.plan.pieces[self._lane][wire.chunk]
        nbytes = 0
        for extent in chunk.extents:
            codec = operation.coder_of(extent, wire.exact, sums=False)
            if not codec.verbatim:
                return -1
            nbytes += extent.size * codec.working.itemsize
        return nbytes or -1

    def _fetched(self, item: Incoming, header: frame.Header, own: bool, summed: bool) -> frame.Header:
        """The header of a message with values that were exposed, now that they are in it; or of a flaw, if they
        are unchecked and one is not finite."""
        if own or summed:
            self._look_at(item, header, own)
        place = self._lane, item.wires[0].chunk
        flaw = self._operation.flaws.get(place)
        if flaw is not None:
            header = header._replace(kind=frame.NOT_FINITE, rank=flaw[0], word=flaw[1])
            item.nbytes = frame.SIZE
        else:
            header = header._replace(kind=frame.DATA)
        header.write(item.buffer)
        return header

    def _look_at(self, item: Incoming, header: frame.Header, own: bool) -> None:
        """Note what is not finite of values that were read, and that no rank has checked."""
        wire, at = item.wires[0], frame.SIZE
        place = self._lane, wire.chunk
        for extent in self._operation.plan.pieces[self._lane][wire.chunk].extents:
            codec = self._operation.coder_of(extent, wire.exact, sums=False)
            end = at + extent.size * codec.working.itemsize
            values = np.asarray(item.buffer[at:end]).view(codec.working)
            if not np.isfinite(values).all():
                self._operation.flaws.find_read(place, extent, values, header.rank if own else -1)
            at = end

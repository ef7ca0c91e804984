"""The headers of the messages that a lane receives: read one after the other, checked against the expected wires."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    def read(self, item: Incoming) -> Receipt | None:
        """All of a message that has arrived, into `item.heads`; a Receipt, to come again, if a device has yet to give
        one. ForeignFrame if the message is none of this call's."""
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
        if not ours or header.kind > frame.NOT_FINITE:
            raise ForeignFrame(item.source)
        return header

"""A wire under way to be decoded: the bytes behind its header, one extent after the other."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gqallreduce.coding import frame
from gqallreduce.coding.layout import Chunk, Span, of
from gqallreduce.coding.message import Incoming
from gqallreduce.errors import WireError

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Decoding:
    """Of one wire of a message, made here or received; `exact`: of one that was encoded without loss."""

    def __init__(self, operation: Operation, made, number: int, exact: bool):
        self._operation, self._made, self._offset, self._exact = operation, made, 0, exact
        if isinstance(made, Incoming):
            at, header = made.heads[number]
            self._payload = operation.processor.wire(made.buffer, at + frame.SIZE, at + frame.SIZE + header.word)
        else:
            self._payload = made.payload[: made.nbytes - frame.SIZE]

    def into(self, running: list, extent: Span, adds: bool) -> None:
        """An extent becomes a part of running values, or is added to it."""
        began, sums = perf_counter(), self._operation.coder_of(extent, self._exact, sums=True)
        decode = sums.decode_add if adds else sums.decode
        self._offset += decode(self._payload[self._offset :], Chunk.part(running, extent), extent)
        self._operation.spent.decode += perf_counter() - began

    def into_result(self, place, extent: Span) -> bool | None:
        """An extent of a finished chunk becomes the result, in its dtype and scale: is a value not finite?"""
        operation, began, flawed = self._operation, perf_counter(), False
        codec = operation.coder_of(extent, self._exact, sums=False)
        values, payload = operation.values_of(extent), self._payload[self._offset :]
        if values.direct:
            y = of(values.target.flat, extent)
            self._offset += codec.decode(payload, y, extent, operation.plan.scale, extent.streams)
        else:
            y = operation.scratch(1, extent.size, values.working)
            self._offset += codec.decode(payload, y, extent)
            flawed = values.store(extent, y, place)
        operation.spent.decode += perf_counter() - began
        return flawed

    def close(self) -> None:
        """All extents have been decoded."""
        if self._offset != len(self._payload):
            raise WireError(
                f"got {len(self._payload)} bytes after the header of a message, expected {self._offset} for its values"
            )
        if isinstance(self._made, Incoming):
            self._operation.processor.give_wire(self._payload)

"""Carries out a rank's instructions on arrays: one lane of an operation, an instruction on one extent at a time.

The one rule: what you send is what you keep. A value that was encoded is replaced by what its bytes decode to, here as
on all other ranks, and the difference is added to residuals: by a single holder all of it, by each of several a slice.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gqallreduce.coding import frame
from gqallreduce.coding.layout import Chunk
from gqallreduce.coding.message import Frame, Incoming, Outgoing
from gqallreduce.runtime.decoding import Decoding
from gqallreduce.runtime.encoding import Encoding
from gqallreduce.runtime.headers import Headers
from gqallreduce.runtime.receipts import AwaitsReceipts
from gqallreduce.runtime.sharing import Sharing
from gqallreduce.runtime.trace import NAMES, WAIT
from gqallreduce.scheduling import instructions as code

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Lane(AwaitsReceipts):
    """A program counter, and what the instruction under way remembers.

    finished
        nothing is left to do.
    slots
        number -> message, made here or due.
    at, extent
        the next instruction, and the next extent of its chunk.
    """

    def __init__(self, operation: Operation, number: int):
        super().__init__(operation.processor)
        self.operation, self.number = operation, number
        self.plan, self.spent = operation.plan, operation.spent
        self.program, self.pieces = self.plan.program, self.plan.pieces[number]
        self.slots: dict[int, Frame] = {}
        self.finished = self._ending = False
        self.at = self.extent = 0
        self._chosen: set[int] = set()
        self._encoding: Encoding | None = None
        self._selected: list | None = None  # of the own values that begin a sum
        self._decoding: Decoding | None = None
        self._opening = None
        self._sharing: Sharing | None = None
        self._headers = Headers(operation, number)
        self._stopped = None  # when it began to wait, if it is traced

    def can_advance(self) -> bool:
        """Is there what it waits for?"""
        waiting = self.waiting
        if not waiting or isinstance(waiting[0], Incoming):
            return not waiting or any(item.ready for item in waiting)
        with self.operation.active():
            return waiting[0].ready

    def advance(self, messages) -> None:
        """Go on until it must wait, is finished, or the progress engine wants to poll.

        messages
            with `send(Outgoing)` and `receive(Incoming)`.
        """
        operation, program, trace = self.operation, self.program, self.operation.trace
        if trace is not None and self.waiting:
            trace.add(WAIT, self._stopped, perf_counter(), repr(operation.key), self.number)
        self.waiting = []
        with operation.active():
            while True:
                if not self._settled():
                    return
                if self.at == len(program):
                    self._end()
                    return
                instruction, began = program[self.at], perf_counter()
                _CARRY_OUT[type(instruction)](self, instruction, messages)
                if trace is not None:
                    self._trace(instruction, began)
                if self.waiting or perf_counter() >= operation.poll_at:
                    return

    def _trace(self, instruction, began: float) -> None:
        """Note an instruction, or a part of it, that takes time."""
        self._stopped, operation = perf_counter(), self.operation
        name = NAMES.get(type(instruction))
        if name is not None:
            operation.trace.add(
                name, began, self._stopped, repr(operation.key), self.number, chunk=getattr(instruction, "chunk", -1)
            )

    def _end(self) -> None:
        """Finished, once all that was asked of a device is done."""
        receipt = None if self._ending else self.processor.settle()
        if receipt is None:
            self.finished = True
        else:
            self._ending = True
            self._when(receipt, lambda flawed: None)

    def sent(self, made: Frame) -> None:
        """One of its messages has left."""
        with self.operation.active():
            self._unused(made)

    def _unused(self, made: Frame) -> None:
        """One use less: by the program, or by a message that is sent."""
        made.uses -= 1
        if not made.uses:
            self.processor.give_frame(made)

    # --- extent by extent ---

    def _next(self) -> None:
        self.at, self.extent = self.at + 1, 0

    def _end_of_extent(self, chunk: Chunk) -> bool:
        """Was that the last extent of the chunk?"""
        self.extent += 1
        return self.extent >= len(chunk.extents)

    # --- messages ---

    def _post(self, instruction, messages) -> None:
        bound = self.plan.bound(self.number, instruction.wires)
        item = Incoming(instruction.source, self.processor.make_room(bound), bound, instruction.wires)
        self.slots[instruction.slot] = item
        messages.receive(item)
        self.at += 1

    def _join(self, instruction, messages) -> None:
        bound = self.plan.bound(self.number, instruction.wires)
        parts = [self.slots[slot].message(number) for slot, number in instruction.parts]
        buffer, nbytes, receipt = self.processor.join(parts, bound)
        self.slots[instruction.slot] = Frame(buffer, None, nbytes, receipt, bound)
        self.at += 1

    def _transmit(self, instruction, messages) -> None:
        made = self.slots[instruction.slot]
        if made.receipt is not None and not made.receipt.ready:
            self.waiting = [made.receipt]
            return
        made.uses += 1
        messages.send(Outgoing(instruction.to, made.data, made.bound, made))
        self.at += 1

    def _wait(self, instruction, messages) -> None:
        item = self.slots[instruction.slot]
        if not item.ready:
            self.waiting = [item]
        elif self._opened(item, messages):
            self.at += 1

    def _wait_any(self, instruction, messages) -> None:
        left = [slot for slot in instruction.slots if slot not in self._chosen]
        if not left:
            self.at = instruction.end
            return
        slot = self._opening
        if slot is None:
            slot = self._opening = next((slot for slot in left if self.slots[slot].ready), None)
        if slot is None:
            self.waiting = [self.slots[slot] for slot in left]
        elif self._opened(self.slots[slot], messages):
            self._opening = None
            self._chosen.add(slot)
            self.at = instruction.targets[instruction.slots.index(slot)]

    def _opened(self, item: Incoming, messages) -> bool:
        """Read and check the headers of a message that has arrived; False if a device has yet to give one."""
        receipt = self._headers.read(item, messages)
        if receipt is not None:
            self.waiting = [receipt]
        return receipt is None

    def _jump(self, instruction, messages) -> None:
        self.at = instruction.target

    def _release(self, instruction, messages) -> None:
        self._unused(self.slots.pop(instruction.slot))
        self.at += 1

    # --- values ---

    def _encode(self, instruction, messages) -> None:
        if self._encoding is None:
            chunk = self.pieces[instruction.chunk]
            self._encoding = Encoding(self.operation, instruction, self.number, chunk)
        receipt = self._encoding.advance()
        if receipt is not None:
            self._when(receipt, self._encoding.seal)
        if self._encoding.sealed or receipt is not None:
            self.slots[instruction.slot], self._encoding = self._encoding.made, None
            self.at += 1

    def _begin_sum(self, instruction, messages) -> None:
        """Begin a running value, with this rank's own."""
        operation, place, chunk = self.operation, (self.number, instruction.chunk), self.pieces[instruction.chunk]
        running = operation.room(place, chunk)
        if chunk.extents:
            extent, began = chunk.extents[self.extent], perf_counter()
            y = chunk.part(running, extent)
            if self.extent == 0:
                self._selected = operation.own_selection(chunk) if operation.codec.of_sums.exact else None
            selected = None if self._selected is None else self._selected[self.extent]
            flawed, residual = operation.begin_sum(extent, y, selected, instruction.clears)
            self.spent.encode += perf_counter() - began
            self._found(flawed, lambda: operation.flaws.find(place, extent, y, residual, own=True, formed=True))
            if not self._end_of_extent(chunk):
                return
        self._next()

    def _decode(self, instruction, messages) -> None:
        """Decode a wire into a running value or the result, or add it; note if it says that a value is not finite."""
        operation, place, chunk = self.operation, (self.number, instruction.chunk), self.pieces[instruction.chunk]
        if self._decoding is None:
            header = self.slots[instruction.part.slot].header_of(instruction.part.number)
            if header.kind == frame.NOT_FINITE:
                operation.flaws.note(place, (header.rank, header.word))
            if place in operation.flaws:
                self._next()
                return
            self._decoding = self._decoding_of(instruction.part, instruction.exact)
        if instruction.result:
            operation.drop(place, chunk)
        running = None if instruction.result else operation.room(place, chunk)
        if chunk.extents:
            extent = chunk.extents[self.extent]
            if instruction.result:
                flawed = self._decoding.into_result(place, extent)
                self._found(flawed, lambda: operation.flaws.find_overflow(place, extent, None))
            else:
                self._decoding.into(running, extent, instruction.adds)
            if not self._end_of_extent(chunk):
                return
        self._end_of_wire()

    def _decoding_of(self, part, exact: bool = False) -> Decoding:
        return Decoding(self.operation, self.slots[part.slot], part.number, exact)

    def _end_of_wire(self) -> None:
        """All of it has been decoded; the next instruction."""
        decoding, self._decoding = self._decoding, None
        decoding.close()
        self._next()

    def _share(self, instruction, messages) -> None:
        """Decode what several ranks encoded alike into the running value, and keep a slice of the error."""
        operation, place, chunk = self.operation, (self.number, instruction.chunk), self.pieces[instruction.chunk]
        if place in operation.flaws or operation.codec.of_sums.exact:  # what is exact decodes to what is there
            self._next()
            return
        running = operation.room(place, chunk)
        if self._decoding is None:
            self._decoding = self._decoding_of(instruction.part)
            if operation.feeds_back:
                self._sharing = Sharing(operation, instruction, chunk, running)
        if chunk.extents:
            self._decoding.into(running, chunk.extents[self.extent], adds=False)
            if not self._end_of_extent(chunk):
                return
        if self._sharing is not None:
            self._sharing.end()
            self._sharing = None
        self._end_of_wire()

    def _drop(self, instruction, messages) -> None:
        self.operation.drop((self.number, instruction.chunk), self.pieces[instruction.chunk])
        self.at += 1

    def _finish(self, instruction, messages) -> None:
        """A running value that nothing will replace becomes the result."""
        operation, place, chunk = self.operation, (self.number, instruction.chunk), self.pieces[instruction.chunk]
        if chunk.extents and (self.extent or place not in operation.flaws):
            extent, began = chunk.extents[self.extent], perf_counter()
            y = chunk.part(operation.running[place], extent)
            flawed = operation.finish(place, extent, y)
            self.spent.decode += perf_counter() - began
            seen = y if operation.values_of(extent).direct or operation.codec.of_sums.exact else None
            self._found(flawed, lambda: operation.flaws.find_overflow(place, extent, seen))
            if not self._end_of_extent(chunk):
                return
        self._next()


_CARRY_OUT = {
    code.Post: Lane._post, code.Encode: Lane._encode, code.Join: Lane._join, code.Transmit: Lane._transmit,
    code.Wait: Lane._wait, code.WaitAny: Lane._wait_any, code.Jump: Lane._jump, code.BeginSum: Lane._begin_sum,
    code.Decode: Lane._decode, code.Share: Lane._share, code.Drop: Lane._drop, code.Release: Lane._release,
    code.Finish: Lane._finish,
}  # fmt: skip

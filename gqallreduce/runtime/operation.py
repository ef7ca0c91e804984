"""One call on a Plan: a rank's own values, the running sums, the finished ones, and what is not finite among them.

Nothing here waits. On a device, what a kernel found is not known when it returns: `settle` gives a Receipt then.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.layout import BatchPiece, Chunk, Piece, Span
from gqallreduce.coding.preparing import Parts, Prepared
from gqallreduce.runtime import native
from gqallreduce.runtime.batch import Batch
from gqallreduce.runtime.flaws import Flaws
from gqallreduce.runtime.interpreter import Lane
from gqallreduce.runtime.lending import Lending
from gqallreduce.runtime.operand import Operand, Operands, step_of
from gqallreduce.runtime.plan import Plan
from gqallreduce.runtime.preparation import prepare
from gqallreduce.runtime.values import Values
from gqallreduce.stats import Spent


class Operation(Lending):
    """A place is a (lane, chunk).

    given
        the tensors, as the Plan has them.
    key, signature, frames
        for errors; what tells its messages from others', as far as is known before the codecs are prepared, and what
        is in their headers.
    spent
        what it cost.
    poll_at
        time (of time.perf_counter) at which the operation must return to the progress engine.
    running
        place -> the running values of its pieces.
    flaws
        what is not finite among them.
    trace
        where what its lanes do is noted (trace.py), or None.
    """

    first_lane = 0
    trace = None
    poll_at = math.inf

    def __init__(self, plan: Plan, given: Operands | list[Operand], key, signature: int, spent: Spent):
        super().__init__(plan.processor, plan.widest)
        self.plan, self.spent = plan, spent
        self.key, self.signature, self.frames, self.given = key, signature, signature, given
        self.step = step_of(given) & frame.LARGEST_STEP
        self.flaws = Flaws(self)

    # --- what is made when Python works on the values ---

    @cached_property
    def values(self) -> list:
        """The Values of each tensor; at the end, the Batch of all if some are worked on together."""
        found: list = [Values(self, *each) for each in zip(self.plan.tensors, self.given, strict=True)]
        if self.plan.batched:
            found.append(Batch(self, found[:]))
        return found

    @cached_property
    def running(self) -> dict[tuple[int, int], list]:
        return {}

    @property
    def tensors(self) -> list[Values]:
        return self.values[: len(self.given)]

    @cached_property
    def own_stream(self):
        """Of the rounding of own values, where sums are exact; else None."""
        return self.stream(0, self.plan.rank) if self.codec.of_sums.exact else None

    @cached_property
    def _counters(self) -> tuple:
        """(keys, steps) of random streams."""
        if len(self.given) == 1:
            return self.given[0].stream, self.step
        keys = np.array([each.stream for each in self.given], np.uint64)
        return keys, np.array([each.step & frame.LARGEST_STEP for each in self.given], np.uint32)

    # --- what the progress engine asks ---

    @property
    def codec(self):
        return self.plan.codec

    @property
    def feeds_back(self) -> bool:
        return self.given[0].new_residual is not None

    @property
    def derived(self) -> bool:
        """Are its tensors made of a call's values, which were looked at for values that are not finite?"""
        return self.given[0].locate is not None

    @property
    def lanes(self) -> int:
        return self.plan.lanes

    @property
    def lanes_at_once(self) -> int:
        return self.plan.lanes_at_once

    def most_under_way(self, limit: int) -> int:
        """The most messages of at most `limit` bytes that a lane has under way at once, in one direction."""
        return max(1, self.plan.messages) * max(1, -(-self.plan.longest // limit))

    def lane(self, number: int) -> Lane:
        return Lane(self, number)

    def stages(self):
        """Of a call: what its codecs must know first, then itself; where there is nothing to wait for, at once."""
        if self.plan.prepares:
            yield from prepare(self, self.signature)
        if self.plan.size > 1 or not self.processor.batches:
            yield self
        else:
            self._run()

    def native(self):
        """For the runtime in C++, once the codecs are prepared; None if Python must carry it out."""
        made = native.native_operation(self)
        if made is None and self.processor.pool is not None:
            self.spent.also("carried out by Python: this codec has no kernels in C++")
        return made

    def answer(self, running, event) -> None:
        """What the runtime tells of `running`, which `native` returned: a flaw is noted, anything else raised."""
        native.answer(self, running, event)

    def account(self, running) -> None:
        """The runtime is done with it."""
        native.account(self, running)

    def _run(self) -> None:
        """On a single rank and the host, where no lane waits: all of them, one after the other."""
        running = self.native()
        if running is not None:
            native.run_alone(self, running)
            return
        for number in range(self.lanes):
            lane = self.lane(number)
            while not lane.finished:
                lane.advance(None)

    def active(self):
        """A context manager that makes the device and the stream of the call's arrays current."""
        return self.processor.active(self.given[0].source.located, self.key)

    @property
    def learned(self) -> list[dict | None]:
        """Of each tensor, what its codec has learned; nothing if none has."""
        found = [each.learned for each in self.tensors] if self.codec.learns else []
        return [] if found.count(None) == len(found) else found

    def stream(self, hop: int, author: int):
        """The random numbers of an encoding."""
        keys, steps = self._counters
        return _kernels.Stream(keys, hop, author, steps)

    def stream_of(self, tensor: int, hop: int, author: int):
        """Those of one tensor."""
        stream = self.stream(hop, author)
        return stream if len(stream) == 1 else stream.alone(tensor)

    def to_prepare(self) -> list[tuple]:
        """(generator, what takes the Prepared that it returns, None) of every codec that must find something out."""
        if not self.plan.prepares:
            return []
        found = [(each.prepare(), each.prepared, None) for each in self.tensors if each.batch is None]
        for together in self.plan.batched.values():
            batch = self.values[-1]
            found.append((batch.prepare(together), partial(batch.prepared, together), None))
        return [each for each in found if each[0] is not None]

    def prepare_all(self, codec) -> None:
        """The codecs of all tensors have been prepared elsewhere, as this one."""
        for together in self.plan.batched.values():
            self.values[-1].prepared(together, Prepared(codec))
        for number, each in enumerate(self.tensors):
            if each.batch is None:
                unit = float(codec.unit[number]) if len(self.tensors) > 1 else codec.unit
                each.prepared(Prepared(codec.knowing(unit=unit)))

    def mark(self, number: int, mark: int) -> None:
        """Of a vector of the call; 0 for none."""
        self.frames = _kernels.marked(self.frames, number, mark)

    def end(self) -> None:
        """Give everything borrowed back; also after an error. Without cycles, so that the buffers are free at once."""
        own_stream = self.__dict__.get("own_stream")
        if own_stream is not None:
            self.spent.saturated += own_stream.clipped
        for values in self.__dict__.pop("values", ())[: len(self.given)]:
            values.release()
        self.give_all_back()
        self.flaws.end()

    def values_of(self, extent: Span):
        return self.values[extent.piece.tensor]

    def codec_of(self, extent: Span):
        return self.values[extent.piece.tensor].codec_of(extent)

    def coder_of(self, extent: Span, exact: bool, sums: bool):
        """What encodes and decodes own values, or sums, of an extent: the codec, or what loses nothing."""
        if exact:
            return self.plan.tensors[extent.segment].exact
        codec = self.codec_of(extent)
        return codec.of_sums if sums else codec

    # --- memory ---

    def room(self, place, chunk: Chunk) -> list:
        """The running values, or room for new ones: the result's own memory where it fits, which costs nothing."""
        found = self.running.get(place)
        if found is None:
            found = self.running[place] = [self._room_of(place, piece) for piece in chunk.pieces]
        return found

    def _room_of(self, place, piece: Piece):
        values = self.values[piece.tensor]
        return values.memory(piece) if values.direct else self.lend(piece.size, values.working, (place, piece.number))

    def drop(self, place, chunk: Chunk) -> None:
        """Running values that are not needed any more."""
        if self.running.pop(place, None) is not None:
            for piece in chunk.pieces:
                if not self.values[piece.tensor].direct:
                    self.give_back((place, piece.number))

    # --- what is encoded ---

    def own_selection(self, chunk: Chunk) -> list | None:
        """What of a chunk of own values is encoded, one of each extent; None for all."""
        found = []
        for piece in chunk.pieces:
            kept = self.values[piece.tensor].selected(piece)
            if kept is None:
                return None
            found += kept
        return found

    def prepare_sums(self, chunk: Chunk, running: list, alone: bool):
        """Steps that choose what of running values is encoded: of each tensor, within its piece.

        A generator; returns one of each extent, and the selections to be released. `alone`: the error goes into the new
        residual, where the values are formed.
        """
        found, selections = [], []
        for piece in chunk.pieces:
            if not piece.extents:
                continue
            values, whole = self.values[piece.tensor], piece.extents[0] if isinstance(piece, BatchPiece) else None

            def load(extent, values=values):
                return Chunk.part(running, extent), None, values.errors(extent) if alone else None

            parts = Parts(piece.extents, load, self.workspace, whole)
            prepared = yield from values.codec_of(piece.extents[0]).of_sums.prepare(parts)
            if whole is not None and alone:
                values.keep(whole, values.errors(whole))
            selections.append(prepared.selected)
            found += prepared.selected
        return found, selections

    def step_of(self, selecting):
        """One more kernel call of a selection; what it returns in the end, None before."""
        began = perf_counter()
        try:
            next(selecting)
        except StopIteration as done:
            return done.value
        finally:
            self.spent.encode += perf_counter() - began
        return None

    def begin_sum(self, extent: Span, y, selected=None, clears: bool = False) -> tuple[bool | None, object]:
        """y := own values + residual, as sums are kept. (Is a value not finite? The residual before.)

        selected
            what of the extent, if sums are exact; None for all.
        clears
            the new residual becomes zero, but for what begins an exact sum with an error.
        """
        values, exact = self.values_of(extent), self.own_stream is not None
        x, residual = values.own(extent)
        errors = values.errors(extent) if exact or clears else None
        flawed = self.codec_of(extent).begin_sum(
            x, residual, errors if exact else None, y, extent, self.own_stream, selected
        )
        if errors is not None and not exact:
            self.arithmetic.clear(errors)
        values.keep(extent, errors)
        return flawed, residual

    # --- the result ---

    def finish(self, place, extent: Span, y) -> bool | None:
        """An extent of a running value becomes the result: is a value not finite?"""
        values = self.values_of(extent)
        if self.codec_of(extent).finish(y, extent):
            return True
        return self.arithmetic.scale(y, self.plan.scale) if values.direct else values.store(extent, y, place)

"""A rank's values in one call: its own, the running sums, and the finished ones in the result.

Also which rank a value that is not finite comes from, and what is owed for rounding a sum to a 16-bit buffer.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce.coding.frame import NO_RANK
from gqallreduce.coding.layout import Piece
from gqallreduce.coding.selection import Parts
from gqallreduce.errors import WireError

_OVERFLOWING = np.float32(2.0**103)  # a smaller addend cannot carry a finite float32 to infinity


class Values:
    """A place is a (lane, chunk). Generators yield before a kernel call when the carrier wants to poll.

    source, target
        Buffers: where the rank's values are, where the result goes; the same memory in an in-place call.
    owed, owing
        residual before and after the call (None without feedback).
    """

    def __init__(self, shared, source, target, owed, owing):
        self.shared = shared  # the Worker: what does not change from call to call
        self.codec, self.processor, self.spent = shared.codec, shared.processor, shared.spent
        self.arithmetic, self.workspace = shared.processor.arithmetic, shared.processor.workspace
        self.source, self.target, self.owed, self.owing = source, target, owed, owing
        self.working = self.codec.working
        self.direct = target.flat is not None and target.flat.dtype == self.working
        self.running: dict[tuple[int, int], np.ndarray] = {}
        self.flaws: dict[tuple[int, int], tuple[int, int]] = {}
        self._lent: dict[object, np.ndarray] = {}
        self._scratch: list[np.ndarray] = []
        self._selection, self._selecting = None, False

    def release(self) -> None:
        if self._selection is not None:
            self._selection.release()
        for buffer in self._lent.values():
            self.workspace.give(buffer)
        self._lent.clear()
        self.running.clear()

    def lend(self, size: int, name=None) -> np.ndarray:
        """An array of the working dtype until the end of the call, or until what is lent to that name is given back."""
        buffer = self.workspace.take(size * self.working.itemsize)
        self._lent[object() if name is None else name] = buffer
        return buffer[: size * self.working.itemsize].view(self.working)

    def scratch(self, which: int, size: int) -> np.ndarray:
        """One of two arrays for a region; its content is lost at the next yield."""
        if not self._scratch:
            self._scratch = [self.lend(self.shared.widest), self.lend(self.shared.widest)]
        return self._scratch[which][:size]

    # --- own and running values ---

    def select(self, piece: Piece, running, owing):
        """What of a piece is encoded: chosen within the whole vector for own values, else within the piece."""
        if running is not None:
            parts = Parts(piece.extents, lambda extent: (part(running, piece, extent), None, of(owing, extent)))
            return (yield from self._timed(self.codec.select(parts, self.workspace)))
        while self._selecting:  # another lane is at it
            yield
        if self._selection is None:
            self._selecting = True
            self._selection = yield from self._timed(self.codec.select(self.own_parts(), self.workspace))
            self._selecting = False
        return self._selection.of(piece)

    def _timed(self, steps):
        """Run a generator of kernel calls, counting its time as encoding."""
        while True:
            began = perf_counter()
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            finally:
                self.spent.encode += perf_counter() - began
            if self.shared.poll_is_due():
                yield

    def own(self, region) -> tuple[np.ndarray, np.ndarray | None]:
        """(x, owed): this rank's own values of a region and what it owes there; x may be scratch 0."""
        flat = self.source.flat
        if flat is not None and flat.dtype == self.working:
            return of(flat, region), of(self.owed, region)
        x = self.scratch(0, region.size)
        self.source.load(region.start, region.start + region.size, x)
        return x, of(self.owed, region)

    def own_parts(self) -> Parts:
        """The whole vector, for `Codec.select` and `Codec.measure`: in one part, if a device has it as such."""
        flat, extents = self.source.flat, self.shared.extents
        if flat is None or flat.dtype != self.working:
            extents = [extent for lane in self.shared.pieces for piece in lane for extent in piece.extents]
        return Parts(extents, lambda extent: (*self.own(extent), of(self.owing, extent)))

    def new(self, place, piece: Piece) -> np.ndarray:
        """Room for a running value: the result's own memory where it fits, which costs nothing."""
        room = self.target.flat[piece.start : piece.stop] if self.direct else self.lend(piece.size, place)
        self.running[place] = room
        return room

    def drop(self, place) -> None:
        """A running value that is not needed any more."""
        if self.running.pop(place, None) is not None and not self.direct:
            self.workspace.give(self._lent.pop(place))

    def form(self, place, piece: Piece):
        """Begin a running value: own values + owed, exactly, or lifted."""
        value = self.new(place, piece)
        for region in piece.extents:
            if self.shared.poll_is_due():
                yield
            began = perf_counter()
            x, owed = self.own(region)
            y = part(value, piece, region)
            flawed = self._own_sum(x, owed, y, region)
            self.spent.encode += perf_counter() - began
            if flawed is None:
                flawed = yield from self.settled()
            if flawed:
                self.find_flaw(place, region, y, owed, own=True, formed=True)

    def settled(self):
        """Wait until all that was asked for is done; was a value not finite?"""
        receipt = self.processor.settle()
        if receipt is None:
            return False
        yield [receipt]
        return receipt.flawed

    def _own_sum(self, x, owed, y, region) -> bool:
        if self.codec.lifts:
            return self.codec.lift(x, owed, of(self.owing, region), y, region, self.shared.own_stream)
        return self.arithmetic.add_finite(x, owed, y)

    def decode(self, piece: Piece, payload, value, add: bool):
        """Decode a wire into a running value, or add it."""
        decode = self.codec.sums.decode_add if add else self.codec.sums.decode
        at = 0
        for region in piece.extents:
            if self.shared.poll_is_due():
                yield
            began = perf_counter()
            at += decode(payload[at:], part(value, piece, region), region)
            self.spent.decode += perf_counter() - began
        _require_end(payload, at)

    # --- the result ---

    def decode_result(self, place, piece: Piece, payload):
        """Decode a finished chunk into the result, in its dtype and scale; it replaces the running value."""
        self.drop(place)
        at, scale = 0, self.shared.scale
        for region in piece.extents:
            if self.shared.poll_is_due():
                yield
            began = perf_counter()
            if self.direct:
                y = of(self.target.flat, region)
                at += self.codec.decode(payload[at:], y, region, scale, region.streams)
            else:
                y = self.scratch(1, region.size)
                at += self.codec.decode(payload[at:], y, region)
                yield from self._round(place, piece, region, y)
            self.spent.decode += perf_counter() - began
        _require_end(payload, at)

    def finish(self, lane: int):
        """Running values that nothing will replace become the result."""
        for place in [place for place in self.running if place[0] == lane and place not in self.flaws]:
            piece = self.shared.pieces[lane][place[1]]
            for region in piece.extents:
                if self.shared.poll_is_due():
                    yield
                began = perf_counter()
                yield from self._finish(place, piece, region, part(self.running[place], piece, region))
                self.spent.decode += perf_counter() - began

    def _finish(self, place, piece: Piece, region, y):
        """A region of a running value becomes the result."""
        flawed = self.codec.lower(y) if self.codec.lifts else False
        if flawed is None:
            flawed = yield from self.settled()
        if not flawed and not self.direct:
            yield from self._round(place, piece, region, y)
            return
        if not flawed:
            flawed = self.arithmetic.scale(y, self.shared.scale)
        if flawed is None:
            flawed = yield from self.settled()
        if flawed:
            self._overflow(place, region, y)

    def _round(self, place, piece: Piece, region, y):
        """Store a region of a finished sum, and owe what a 16-bit buffer loses: that is one more encoding."""
        begin, stop = region.start, region.start + region.size
        rounded = self.scratch(0, region.size)
        self.arithmetic.multiply(y, self.shared.scale, rounded)
        flawed = self.target.store(begin, stop, rounded)
        self._owe_rounding(place, piece, region, y, rounded)
        if flawed is None:
            flawed = yield from self.settled()
        if flawed:
            back = self.lend(region.size, "flawed")
            self.target.load(begin, stop, back)
            self._overflow(place, region, back)
            self.workspace.give(self._lent.pop("flawed"))

    def _owe_rounding(self, place, piece: Piece, region, y, rounded) -> None:
        """Owe this rank's share of what the buffer lost of y; `rounded` is scratch. Worthless if it is not finite."""
        debtors = self.shared.schedule.debtors(place[1], self.shared.size)
        if self.owing is None or not self.shared.short or self.shared.rank not in debtors:
            return
        begin, stop = region.start, region.start + region.size
        low, high = piece.share(debtors.index(self.shared.rank), len(debtors))
        low, high = max(low, begin), min(high, stop)
        if low < high:
            self.target.load(begin, stop, rounded)
            mine = slice(low - begin, high - begin)
            back = rounded[mine]
            self.arithmetic.multiply(back, 1.0 / self.shared.scale, back)
            self.arithmetic.subtract(y[mine], back, back)
            self.arithmetic.accumulate(back, self.owing[low:high])

    # --- what is not finite ---

    def flawed(self, place, flaw: tuple[int, int]) -> None:
        """Note (rank or NO_RANK, C-order index); the lowest stays."""
        self.flaws[place] = min(flaw, self.flaws.get(place, flaw))

    def find_flaws(self, place, piece: Piece) -> None:
        """Note what could not be encoded of a piece."""
        running = self.running.get(place)
        for extent in piece.extents:
            x, owed = self.own(extent) if running is None else (part(running, piece, extent), None)
            self.find_flaw(place, extent, x, owed, own=running is None)

    def find_flaw(self, place, region, x, owed, own: bool, formed: bool = False) -> None:
        """Note why a region cannot be sent: own values of this rank that are not finite, else an overflow.

        formed
            x is own values + owed already.
        """
        x, owed = self.processor.on_host(x), None if owed is None else self.processor.on_host(owed)
        with np.errstate(over="ignore", invalid="ignore"):
            v = x if formed or owed is None else x + owed
            bad = ~np.isfinite(v)
            own_flaws = bad.copy() if own else np.zeros_like(bad)
            if owed is not None:  # an infinity may also be the sum of two finite values
                own_flaws &= np.isnan(v) | (np.abs(owed) < _OVERFLOWING)
        where = np.flatnonzero(own_flaws if own_flaws.any() else ~self.codec.carries(v))
        if not len(where):  # none is too large by itself: the largest, for their norm
            where = np.argmax(np.abs(v), keepdims=True)
        rank = self.shared.rank if own_flaws.any() else NO_RANK
        self.flawed(place, (rank, self.source.c_index(region.start + where)))

    def _overflow(self, place, region, y) -> None:
        where = region.start + np.flatnonzero(~np.isfinite(self.processor.on_host(y)))
        self.flawed(place, (NO_RANK, self.target.c_index(where)))


def of(array, region):
    """The elements of a region, or None of None."""
    return None if array is None else array[region.start : region.start + region.size]


def part(value: np.ndarray, piece: Piece, region) -> np.ndarray:
    """The elements of a region in the running value of its piece."""
    begin = region.start - piece.start
    return value[begin : begin + region.size]


def _require_end(payload, at: int) -> None:
    if at != len(payload):
        raise WireError(f"got {len(payload)} bytes after the header of a message, expected {at} for its values")

"""A rank's values in one call: its own, the running sums, and the finished ones in the result.

Also who is to blame when a value is not finite, and what is owed for rounding a sum to a 16-bit buffer.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.errors import WireError
from gqallreduce.frame import NO_RANK
from gqallreduce.layout import Piece
from gqallreduce.selection import Parts

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
        self.codec, self.workspace, self.spent = shared.codec, shared.workspace, shared.spent
        self.source, self.target, self.owed, self.owing = source, target, owed, owing
        self.working = self.codec.working
        self.direct = target.flat is not None and target.flat.dtype == self.working
        self.running: dict[tuple[int, int], np.ndarray] = {}
        self.flaws: dict[tuple[int, int], tuple[int, int]] = {}
        self._lent: list[np.ndarray] = []
        self._scratch: list[np.ndarray] = []

    def release(self) -> None:
        for buffer in self._lent:
            self.workspace.give(buffer)
        self._lent.clear()
        self.running.clear()

    def lend(self, size: int) -> np.ndarray:
        """An array of the working dtype until the end of the call."""
        buffer = self.workspace.take(size * self.working.itemsize)
        self._lent.append(buffer)
        return buffer.view(self.working)[:size]

    def scratch(self, which: int, size: int) -> np.ndarray:
        """One of two arrays for a region; whoever yields has lost it."""
        if not self._scratch:
            self._scratch = [self.lend(self.shared.widest), self.lend(self.shared.widest)]
        return self._scratch[which][:size]

    # --- own and running values ---

    def own(self, region) -> tuple[np.ndarray, np.ndarray | None]:
        """(x, owed): this rank's own values of a region and what it owes there; x may be scratch 0."""
        flat = self.source.flat
        if flat is not None and flat.dtype == self.working:
            return of(flat, region), of(self.owed, region)
        x = self.scratch(0, region.size)
        self.source.load(region.start, region.start + region.size, x)
        return x, of(self.owed, region)

    def own_parts(self) -> Parts:
        """The whole vector, for `Codec.select`."""
        return Parts(self.shared.regions, lambda region: (*self.own(region), of(self.owing, region)))

    def running_parts(self, piece: Piece, running, owing) -> Parts:
        """A running value, for `Codec.select`."""
        return Parts(piece.regions, lambda region: (part(running, piece, region), None, of(owing, region)))

    def new(self, place, piece: Piece) -> np.ndarray:
        """Room for a running value: the result's own memory where it fits, which costs nothing."""
        self.running[place] = self.target.flat[piece.start : piece.stop] if self.direct else self.lend(piece.size)
        return self.running[place]

    def drop(self, place) -> None:
        """A running value that is not needed any more."""
        running = self.running.pop(place, None)
        if running is not None and running.size and not self.direct:
            number = next(at for at, buffer in enumerate(self._lent) if np.may_share_memory(buffer, running))
            self.workspace.give(self._lent.pop(number))

    def form(self, place, piece: Piece):
        """Begin a running value: own values + owed, exactly, or lifted."""
        value = self.new(place, piece)
        for region in piece.regions:
            if self.shared.poll_is_due():
                yield
            began = perf_counter()
            x, owed = self.own(region)
            y = part(value, piece, region)
            if self._own_sum(x, owed, y, region):
                self.blame(place, region, y, owed, own=True, formed=True)
            self.spent.encode += perf_counter() - began

    def _own_sum(self, x, owed, y, region) -> bool:
        if self.codec.lifts:
            return self.codec.lift(x, owed, of(self.owing, region), y, region, self.shared.own_stream)
        return _add_finite(x, owed, y)

    def decode(self, piece: Piece, payload, value, add: bool):
        """Decode a wire into a running value, or add it."""
        decode = self.codec.sums.decode_add if add else self.codec.sums.decode
        at = 0
        for region in piece.regions:
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
        for region in piece.regions:
            if self.shared.poll_is_due():
                yield
            began = perf_counter()
            if self.direct:
                y = of(self.target.flat, region)
                at += self.codec.decode(payload[at:], y, region, scale, region.streams)
            else:
                y = self.scratch(1, region.size)
                at += self.codec.decode(payload[at:], y, region)
                self._round(place, piece, region, y)
            self.spent.decode += perf_counter() - began
        _require_end(payload, at)

    def finish(self, lane: int):
        """Running values that nothing will replace become the result."""
        for place in [place for place in self.running if place[0] == lane and place not in self.flaws]:
            piece = self.shared.pieces[lane][place[1]]
            for region in piece.regions:
                if self.shared.poll_is_due():
                    yield
                began = perf_counter()
                y = part(self.running[place], piece, region)
                if self.codec.lifts and self.codec.lower(y):
                    self._overflow(place, region, y)
                elif not self.direct:
                    self._round(place, piece, region, y)
                elif _scale(y, self.shared.scale):
                    self._overflow(place, region, y)
                self.spent.decode += perf_counter() - began

    def _round(self, place, piece: Piece, region, y) -> None:
        """Store a region of a finished sum, and owe what a 16-bit buffer loses: that is one more encoding."""
        begin, stop = region.start, region.start + region.size
        rounded = self.scratch(0, region.size)
        np.multiply(y, y.dtype.type(self.shared.scale), out=rounded)
        if self.target.store(begin, stop, rounded):
            self.target.load(begin, stop, rounded)
            self._overflow(place, region, rounded)
            return
        debtors = self.shared.schedule.debtors(place[1], self.shared.size)
        if self.owing is None or not self.shared.short or self.shared.rank not in debtors:
            return
        low, high = piece.share(debtors.index(self.shared.rank), len(debtors))
        low, high = max(low, begin), min(high, stop)
        if low < high:
            self.target.load(begin, stop, rounded)
            mine = slice(low - begin, high - begin)
            back = rounded[mine]
            back *= back.dtype.type(1.0 / self.shared.scale)
            np.subtract(y[mine], back, out=back)
            self.owing[low:high] += back

    # --- what is not finite ---

    def flawed(self, place, flaw: tuple[int, int]) -> None:
        """Note (rank or NO_RANK, C-order index); the lowest stays."""
        self.flaws[place] = min(flaw, self.flaws.get(place, flaw))

    def blame(self, place, region, x, owed, own: bool, formed: bool = False) -> None:
        """Note who made a region that cannot be sent: this rank, if its own values are not finite; else an overflow.

        formed
            x is own values + owed already.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            v = x if formed or owed is None else x + owed
            bad = ~np.isfinite(v)
            guilty = bad.copy() if own else np.zeros_like(bad)
            if owed is not None:  # an infinity may also be the sum of two finite values
                guilty &= np.isnan(v) | (np.abs(owed) < _OVERFLOWING)
        where = np.flatnonzero(guilty if guilty.any() else ~self.codec.carries(v))
        if not len(where):  # none is too large by itself: the largest, for their norm
            where = np.argmax(np.abs(v), keepdims=True)
        rank = self.shared.rank if guilty.any() else NO_RANK
        self.flawed(place, (rank, self.source.c_index(region.start + where)))

    def _overflow(self, place, region, y) -> None:
        where = region.start + np.flatnonzero(~np.isfinite(y))
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
        raise WireError(f"{len(payload)} bytes, of which the values took {at}")


def _add_finite(x, owed, y) -> bool:
    """y := x + owed; True if a value is not finite."""
    if y.dtype == np.float32:
        return _kernels.add_finite(x, owed, y)
    if owed is None:
        y[:] = x
    else:
        np.add(x, owed, out=y)
    return not np.isfinite(y).all()


def _scale(y, factor: float) -> bool:
    """y *= factor; True if a value is not finite."""
    if y.dtype == np.float32:
        return _kernels.scale(y, factor)
    y *= factor
    return not np.isfinite(y).all()

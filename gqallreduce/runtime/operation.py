"""One call on a Plan: a rank's own values, the running sums, the finished ones, and what is not finite among them.

Nothing here waits. On a device, what a kernel found is not known when it returns: `settle` gives a Receipt then.
"""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.frame import NO_RANK
from gqallreduce.coding.layout import Piece, of
from gqallreduce.coding.selection import Parts, Selection
from gqallreduce.runtime.interpreter import Lane
from gqallreduce.runtime.plan import Plan
from gqallreduce.stats import Spent

_OVERFLOWING = np.float32(2.0**103)  # a smaller addend cannot carry a finite float32 to infinity


class Operation:
    """A place is a (lane, chunk).

    source, target
        Buffers: where the rank's values are, where the result goes; the same memory in an in-place call.
    owed, owing
        residual before and after the call (None without feedback).
    key, stream, step, signature
        for errors; what random streams are made of; what tells its frames from others'.
    spent
        what it cost.
    poll_at
        when (by time.perf_counter) the progress engine wants control back.
    running
        place -> the running value.
    flaws
        place -> (rank or frame.NO_RANK, C-order index) of the first value that is not finite.
    """

    first_lane = 0

    def __init__(self, plan: Plan, source, target, owed, owing, key, stream, step: int, signature: int, spent: Spent):
        self.plan, self.codec, self.processor, self.spent = plan, plan.codec, plan.processor, spent
        self.arithmetic, self.workspace = plan.processor.arithmetic, plan.processor.workspace
        self.source, self.target, self.owed, self.owing = source, target, owed, owing
        self.key, self.key64, self.step, self.signature = key, stream, step & frame.LARGEST_STEP, signature
        self.working = self.codec.working
        self.direct = target.flat is not None and target.flat.dtype == self.working
        self.own_stream = self.stream(0, plan.rank) if self.codec.lifts else None
        self.poll_at = math.inf
        self.running: dict[tuple[int, int], np.ndarray] = {}
        self.flaws: dict[tuple[int, int], tuple[int, int]] = {}
        self._lent: dict[object, np.ndarray] = {}
        self._scratch: list[np.ndarray] = []
        self._selection: Selection | None = None
        self._selecting = None

    # --- what the progress engine asks ---

    @property
    def lanes(self) -> int:
        return self.plan.lanes

    @property
    def lanes_at_once(self) -> int:
        return self.plan.lanes_at_once

    def most_under_way(self, longest: int) -> int:
        """The most messages of at most `longest` bytes that a lane has under way at once, in one direction."""
        return max(1, self.plan.messages) * max(1, -(-self.plan.longest // longest))

    def lane(self, number: int) -> Lane:
        return Lane(self, number)

    def active(self):
        """What all work on its arrays is done in."""
        return self.processor.active(self.source.located, self.key)

    @property
    def flaw(self) -> tuple[int, int] | None:
        """(rank or frame.NO_RANK, C-order index) of the first value that is not finite, as far as known here."""
        return min(self.flaws.values(), default=None)

    def stream(self, hop: int, author: int):
        """The random numbers of an encoding."""
        return _kernels.Stream(self.key64, hop, author, self.step)

    def measure(self) -> float | None:
        """For codecs that agree, this rank's number: the largest of all ranks must be given to `agreed`; else None."""
        if not self.codec.agrees:
            return None
        began = perf_counter()
        with self.active():
            number = self.codec.measure(self.own_parts())
        self.spent.encode += perf_counter() - began
        return number

    def agreed(self, largest: float) -> None:
        """Go on with the largest of all ranks' numbers."""
        self.codec = self.codec.agreed(largest)

    def end(self) -> None:
        """Give everything borrowed back; also after an error."""
        if self.own_stream is not None:
            self.spent.saturated += self.own_stream.clipped
        if self._selection is not None:
            self._selection.release()
        for buffer in self._lent.values():
            self.workspace.give(buffer)
        self._lent.clear()
        self.running.clear()
        self._scratch.clear()

    # --- memory ---

    def lend(self, size: int, name=None) -> np.ndarray:
        """An array of the working dtype until the end of the call, or until what is lent to that name is given back."""
        buffer = self.workspace.take(size * self.working.itemsize)
        self._lent[object() if name is None else name] = buffer
        return buffer[: size * self.working.itemsize].view(self.working)

    def give_back(self, name) -> None:
        self.workspace.give(self._lent.pop(name))

    def scratch(self, which: int, size: int) -> np.ndarray:
        """One of two arrays for an extent; its content is lost when another extent is worked on."""
        if not self._scratch:
            self._scratch = [self.lend(self.plan.widest), self.lend(self.plan.widest)]
        return self._scratch[which][:size]

    def room(self, place, piece: Piece) -> np.ndarray:
        """The running value, or room for a new one: the result's own memory where it fits, which costs nothing."""
        found = self.running.get(place)
        if found is None:
            found = self.target.flat[piece.start : piece.stop] if self.direct else self.lend(piece.size, place)
            self.running[place] = found
        return found

    def drop(self, place) -> None:
        """A running value that is not needed any more."""
        if self.running.pop(place, None) is not None and not self.direct:
            self.give_back(place)

    # --- own values ---

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
        flat, extents = self.source.flat, self.plan.extents
        if flat is None or flat.dtype != self.working:
            extents = [extent for lane in self.plan.pieces for piece in lane for extent in piece.extents]
        return Parts(extents, lambda extent: (*self.own(extent), of(self.owing, extent)))

    def own_selection(self, piece: Piece) -> list | None:
        """What of a piece of own values is encoded, chosen within the whole vector; None if that takes more steps.

        A step is one kernel call, made by whichever lane asks.
        """
        if self._selection is None:
            if self._selecting is None:
                self._selecting = self.codec.select(self.own_parts(), self.workspace)
            self._selection = self.step_of(self._selecting)
        return None if self._selection is None else self._selection.of(piece)

    def selecting(self, piece: Piece, running, owing):
        """Steps that choose what of a running value is encoded, within the piece."""
        parts = Parts(piece.extents, lambda extent: (piece.part(running, extent), None, of(owing, extent)))
        return self.codec.select(parts, self.workspace)

    def step_of(self, selecting) -> Selection | None:
        """One more kernel call of a selection; what was selected, once that is known."""
        began = perf_counter()
        try:
            next(selecting)
        except StopIteration as done:
            return done.value
        finally:
            self.spent.encode += perf_counter() - began
        return None

    def form(self, x, owed, y, region) -> bool | None:
        """y := x + owed, exactly, or lifted: is a value not finite?"""
        if self.codec.lifts:
            return self.codec.lift(x, owed, of(self.owing, region), y, region, self.own_stream)
        return self.arithmetic.add_finite(x, owed, y)

    # --- the result ---

    def finish(self, place, piece: Piece, region, y) -> bool | None:
        """A region of a running value becomes the result: is a value not finite?"""
        if self.codec.lifts and self.codec.lower(y):
            return True
        return self.arithmetic.scale(y, self.plan.scale) if self.direct else self.store(place, piece, region, y)

    def store(self, place, piece: Piece, region, y) -> bool | None:
        """Store a region of a finished sum, and owe what a 16-bit buffer loses: that is one more encoding."""
        rounded = self.scratch(0, region.size)
        self.arithmetic.multiply(y, self.plan.scale, rounded)
        flawed = self.target.store(region.start, region.start + region.size, rounded)
        self._owe_rounding(place, piece, region, y, rounded)
        return flawed

    def _owe_rounding(self, place, piece: Piece, region, y, rounded) -> None:
        """Owe this rank's share of what the buffer lost of y; `rounded` is scratch. Worthless if it is not finite."""
        plan, begin, stop = self.plan, region.start, region.start + region.size
        debtors = plan.schedule.debtors(place[1], plan.size)
        if self.owing is None or not plan.short or plan.rank not in debtors:
            return
        low, high = piece.share(debtors.index(plan.rank), len(debtors))
        low, high = max(low, begin), min(high, stop)
        if low < high:
            self.target.load(begin, stop, rounded)
            mine = slice(low - begin, high - begin)
            back = rounded[mine]
            self.arithmetic.multiply(back, 1.0 / plan.scale, back)
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
            x, owed = self.own(extent) if running is None else (piece.part(running, extent), None)
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
        rank = self.plan.rank if own_flaws.any() else NO_RANK
        self.flawed(place, (rank, self.source.c_index(region.start + where)))

    def find_overflow(self, place, region, y) -> None:
        """Note where a finished sum leaves the range of float32 (in y, or None), or else that of the buffer."""
        where = [] if y is None else np.flatnonzero(~np.isfinite(self.processor.on_host(y)))
        if not len(where):
            back = self.lend(region.size, "flawed")
            self.target.load(region.start, region.start + region.size, back)
            where = np.flatnonzero(~np.isfinite(self.processor.on_host(back)))
            self.give_back("flawed")
        self.flawed(place, (NO_RANK, self.target.c_index(region.start + where)))

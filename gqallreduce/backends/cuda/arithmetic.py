"""The operations of arithmetic.py on a device's arrays: each a few launches, which return at once.

What a kernel finds goes into a word of the device: `status`, which the caller reads by `settle` or `ship`, or
`ignored`, where another operation will find the same.
"""

from __future__ import annotations

import contextlib

import numpy as np

from gqallreduce.backends.cuda import adaptive, casts, integers, levels, onebit
from gqallreduce.backends.cuda.frames import Length
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE, region_table
from gqallreduce.backends.cuda.selection import Columns, select_largest
from gqallreduce.coding import arithmetic


class Arithmetic:
    """Of one Device; to be made where it is active."""

    SPREAD_REASON = "the values that levels are learned from were counted in host memory"

    def __init__(self, device):
        self._device, self._runtime, self.launch = device, device.runtime, device.launch
        self.status = device.runtime.zeros(1, np.uint32)
        self.ignored = device.runtime.zeros(1, np.uint32)
        self._length = device.runtime.zeros(1, np.uint64)
        self._histograms = device.runtime.zeros(adaptive.TABLE_WORDS, np.uint32)
        self._constants: dict[bytes, object] = {}

    def forget(self) -> None:
        """What the kernels of a call that failed have left for those that would have followed."""
        self._runtime.clear(self.status)
        self._runtime.clear(self._histograms)

    def _constant(self, packed: bytes):
        """The bytes in device memory, there since they were asked for first."""
        if packed not in self._constants:
            self._constants[packed] = self._device.adopt(np.frombuffer(packed, np.uint8))
        return self._constants[packed]

    def _table(self, span, name: str, table_of):
        """The device's copy of a span's table."""
        if name not in span.tables:
            span.tables[name] = self._device.adopt(table_of(span))
        return span.tables[name]

    # --- buffers ---

    def copy(self, target, source) -> None:
        self._runtime.copy(target, source)

    def clear(self, y) -> None:
        self._runtime.clear(y)

    def contiguous(self, array):
        if array.flags.c_contiguous:
            return array
        made = self._runtime.empty(array.nbytes).view(array.dtype).reshape(array.shape)
        self._runtime.copy(made, array)
        return made

    def widen(self, source, y, number_format: int) -> None:
        casts.buffer_widen(self.launch, source, y, number_format, self.ignored)

    def narrow(self, x, target, number_format: int) -> None:
        casts.buffer_narrow(self.launch, x, target, number_format, self.status)

    def not_finite(self, x) -> None:
        self.add_finite(x, None, x)

    # --- float32 or float64 alike ---

    def add_finite(self, x, e, y) -> None:
        add = casts.buffer_add if y.dtype == np.float32 else casts.wide_add
        add(self.launch, x, e, y, self.status)

    def scale(self, y, factor: float) -> None:
        self._multiply(y, factor, y, self.status)

    def multiply(self, x, factor: float, y) -> None:
        self._multiply(x, factor, y, self.ignored)

    def _multiply(self, x, factor: float, y, status) -> None:
        if y.dtype == np.float32:
            casts.buffer_scale(self.launch, x, factor, y, status)
        else:
            casts.wide_scale(self.launch, x, factor, y, False, NOT_FINITE, status)

    def subtract(self, a, b, y) -> None:
        casts.buffer_subtract(self.launch, a, b, y)

    def exceeds(self, x, limit: float) -> bool:
        """Not looked for: it would have to wait for the device."""
        return False

    def accumulate(self, a, y) -> None:
        casts.buffer_add(self.launch, y, a, y, self.ignored)

    # --- codecs ---

    def plain_encode(self, x, e, r, wire, number_format: int) -> None:
        casts.plain_encode(self.launch, x, e, r, wire, number_format, self.status)

    def plain_decode(self, wire, y, number_format: int, scale: float, add: bool, streaming: bool = False) -> None:
        casts.plain_decode(self.launch, wire, y, number_format, scale, add, self.status)

    def wide_encode(self, x, e, wire) -> None:
        casts.wide_add(self.launch, x, e, wire, self.status)

    def wide_decode(self, wire, y, scale: float, add: bool) -> None:
        casts.wide_scale(self.launch, wire, scale, y, add, MALFORMED, self.status)

    def onebit_encode(self, x, e, r, wire, region) -> None:
        onebit.onebit_encode(self.launch, x, e, r, wire, region, self.status)

    def onebit_decode(self, wire, y, region, scale: float, add: bool) -> None:
        onebit.onebit_decode(self.launch, wire, y, region, scale, add, self.status)

    def levels_encode(self, x, e, r, wire, levels_, l2: bool, region, stream) -> None:
        table = self._constant(levels_.packed)
        levels.levels_encode(self.launch, x, e, r, wire, table, l2, region, stream.alone(region.segment), self.status)

    def levels_decode(self, wire, y, levels_, region, scale: float, add: bool) -> None:
        table = self._constant(levels_.packed)
        levels.levels_decode(self.launch, wire, y, table, region, scale, add, self.status)

    def levels_spread(self, x, e, weight, l2: bool, power: int, region) -> None:
        """On the host, for which it waits."""
        there = [None if each is None else self._device.on_host(each) for each in (x, e)]
        arithmetic.levels_spread(*there, weight, l2, power, region)

    def select_largest(self, parts, pi: int, separate: bool):
        return select_largest(self, parts, pi, separate)

    def select_columns(self, x, e, r, region, pi: int, separate: bool) -> Columns:
        with self._lent(4 * Columns.words(region.units, separate)) as room:  # the encoding comes next on the stream
            kept = Columns.of(room.view(np.uint32), separate)
            adaptive.adaptive_select(self.launch, x, e, r, region, self.columns(region), pi, kept, self.ignored)
            return kept

    @contextlib.contextmanager
    def search(self, listed: int):
        """(search, table, room for so many values) for the launches of a selection."""
        with self._lent(4 * adaptive.SEARCH_WORDS) as room, self._lent(4 * listed) as values:
            yield room.view(np.uint32), self._histograms, values.view(np.float32)

    def adaptive_encode(self, kept: Columns, x, r, wire, region) -> Length:
        v = x if r is None else r
        table = self.columns(region)
        adaptive.adaptive_encode(self.launch, v, r, wire, region, table, kept, self._length, self.status)
        return Length(self._length)

    def adaptive_decode(self, wire, y, region, scale: float, add: bool, streaming: bool = False) -> int:
        with self._lent(8 * (len(region.regions) + 1)) as room:
            table, where = self.columns(region), room.view(np.uint64)
            adaptive.adaptive_decode(self.launch, wire, y, region, table, scale, add, self.status, where)
        return wire.size

    def columns(self, span):
        """The table of a span's columns."""
        return self._table(span, "columns", lambda span: region_table(span, adaptive.units))

    def measure(self, parts, squares: bool):
        """Waits for what it gives."""
        for span, x, e, _ in parts:
            with self._measured(x, e, span, squares) as (largest, totals):
                found = self._device.on_host(largest).view(np.float32), self._device.on_host(totals)
            sizes = (region.size for region in span.regions)
            yield from zip(found[0].tolist(), found[1].tolist(), sizes, strict=True)

    @contextlib.contextmanager
    def _measured(self, x, e, span, squares: bool):
        """(largest, totals) of each region of a span, in lent memory."""
        count = len(span.regions)
        with self._lent(4 * count) as largest, self._lent(8 * count) as totals, self._scratch(span) as scratch:
            given = largest.view(np.uint32), totals.view(np.float64)
            integers.integers_measure(self.launch, x, e, span, self.tiles(span), squares, *given, scratch)
            yield given

    def own_unit(self, x, e, region, clip: float | None):
        with self._measured(x, e, region, bool(clip)) as (largest, totals), self._lent(4 * len(region.regions)) as room:
            units = room.view(np.float32)
            table = self.tiles(region)
            integers.integers_units(self.launch, largest, totals, region, table, clip, units, self.status)
            return units

    def integers_encode_own(self, x, e, r, wire, unit, ternary: bool, region, stream) -> Length:
        one, each = (unit, None) if isinstance(unit, float) else (0.0, unit)
        with self._scratch(region) as scratch:
            where = region, self.tiles(region), stream.alone(region.segment), scratch, self._length, self.status
            integers.integers_encode_own(self.launch, x, e, r, wire, one, each, ternary, *where)
        return Length(self._length)

    def integers_quantize(self, x, e, r, m, unit: float, ternary: bool, region, stream) -> None:
        mine = stream.alone(region.segment)
        integers.integers_quantize(self.launch, x, e, r, m, unit, ternary, region.start, mine, self.status)

    def integers_lower(self, m, unit: float, region) -> None:
        self.scale(m, unit)

    def integers_encode(self, m, wire, unit: float, terms: int, region) -> Length:
        with self._scratch(region) as scratch:
            where = region, self.tiles(region), scratch, self._length, self.status
            integers.integers_encode(self.launch, m, wire, unit, terms, *where)
        return Length(self._length)

    def integers_decode(self, wire, y, unit: float, terms: int, whole: bool, region, scale=1.0, add=False) -> int:
        with self._scratch(region) as scratch:
            where = region, self.tiles(region), scratch, self.status
            integers.integers_decode(self.launch, wire, y, unit, whole, scale, add, terms, *where)
        return wire.size

    def tiles(self, span):
        """The table of a span's tiles."""
        return self._table(span, "tiles", integers.tile_table)

    def _scratch(self, span):
        return self._lent(integers.scratch_nbytes(span))

    @contextlib.contextmanager
    def _lent(self, nbytes: int):
        """Device memory for the launches inside; who gets it next comes after them on the stream."""
        room = self._device.lend(nbytes)
        try:
            yield room
        finally:
            self._device.give_wire(room)

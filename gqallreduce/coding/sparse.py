"""Codecs that send some values of a vector with their places: all but which values those are.

Wire, per region: its elements, its entries and the bytes of what follows (uint32 each); the places of the entries, as
in places.py; then the values at these places, in order, as one region of the codec `values`. Partial sums with
sums=union: union.py.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.arithmetic import LARGEST_WITH_ERROR, exceeds
from gqallreduce.coding.codec import NOT_FINITE, Region, RegionCodec
from gqallreduce.coding.inner import CompositeCodec
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.places import places_bound
from gqallreduce.coding.plain import PlainCodec
from gqallreduce.coding.preparing import Parts, Prepared, alone
from gqallreduce.coding.selection import Fresh
from gqallreduce.coding.union import (
    DENSE,
    HEADER,
    SUM,
    UnionSums,
    finite_values,
    read_sum,
    regions_of,
    union_bound,
    union_of_random,
)
from gqallreduce.errors import WireError


@dataclass(frozen=True)
class SparseCodec(CompositeCodec, RegionCodec):
    """A subclass has the options `values`, a codec, and `sums`, "reselect" or "union"; it says which values are sent.

    contributions
        of how many ranks a sum may be.
    union
        the codec of sums of one tensor in one call, with sums=union.
    """

    contributions: int = field(default=1, init=False, repr=False, compare=False)
    union: UnionSums | None = field(default=None, init=False, repr=False, compare=False)

    host_only = prepares = True
    omega = 1.0

    @abstractmethod
    def most(self, elements: int, total: int) -> int:
        """How many of `elements` values of a vector of `total` are sent."""

    def at_most(self, most: int) -> int:
        """Own values that are sent in one call at most, where `most` are usual."""
        return most

    @abstractmethod
    def select(self, parts, most: int):
        """A generator that yields between kernel calls: the Selection of so many values of a range."""

    @property
    def inner_texts(self) -> tuple[str, ...]:
        return (self.values,)

    @cached_property
    def inner(self) -> RegionCodec:
        """The codec of the values."""
        return self.inner_codecs[0]

    @property
    def deterministic(self) -> bool:
        return self.inner.deterministic

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec:
        inner = self.inner.bind(Form((form.size,), "C", "float32"), size, arithmetic)
        return self.knowing(arithmetic=arithmetic, inner=inner, contributions=size)

    def grid(self, columns: Grid) -> Grid:
        return Grid(1)

    def runs(self, columns: Grid) -> Grid:
        """A bucket of values holds some from anywhere."""
        return self.grid(columns) if isinstance(self.inner, PlainCodec) else Grid(2**62)

    def carries(self, v) -> np.ndarray:
        return self.inner.carries(v)

    # --- which values ---

    def prepare(self, parts):
        return self._select(parts)

    def _select(self, parts):
        return Prepared(self.in_a_call(), (yield from self.select(parts, self.most_of(parts))))

    def most_of(self, parts) -> int:
        """How many values of a range are sent."""
        total = parts.regions[0].total if parts.regions else 0
        return self.most(sum(region.size for region in parts.regions), total)

    def in_a_call(self) -> SparseCodec:
        """With sums of its own."""
        return self.knowing(union=UnionSums(self.read)) if self.sums == "union" else self

    def _selected_here(self, x, residual, new_residual, region, stream):
        parts = Parts([region], lambda _: (x, residual, new_residual), Fresh(), stream=stream)
        return alone(self._select(parts)).selected

    # --- to bytes and back ---

    def nbytes_bound(self, regions: list[Region]) -> int:
        most = self.at_most(max((self.most(region.total, region.total) for region in regions), default=0))
        return self._nbytes(regions, most, most * self.contributions)

    def nbytes_usual(self, regions: list[Region]) -> int:
        """Of sums with places as random ones overlap; of own values the most."""
        elements, most = sum(region.size for region in regions), self._most_usual(regions)
        return self._nbytes(regions, most, union_of_random(elements, most, self.contributions))

    def nbytes_in_lanes(self, regions: list[Region]) -> int:
        """Of sums that of usual entries, none in one place: the bound, all entries of all ranks, is P times as much."""
        if not self.sums_grow:
            return self.nbytes_bound(regions)
        most = self._most_usual(regions)
        return self._nbytes(regions, most, most * self.contributions)

    def _most_usual(self, regions: list[Region]) -> int:
        elements = sum(region.size for region in regions)
        return max((self.most(elements, region.total) for region in regions), default=0)

    def _nbytes(self, regions: list[Region], most: int, summed: int) -> int:
        """The most bytes, of at most so many own values, and of sums with at most so many entries."""
        elements = sum(region.size for region in regions)
        # Each region cuts a bucket of the values at its start, and one at its end.
        cut = 2 * sum(region.size > 0 for region in regions)
        values = self._inner_bound(min(elements, most)) + cut * self._inner_bound(1)
        places = sum(places_bound(region.size, min(region.size, most)) for region in regions)
        own = HEADER * len(regions) + places + values
        return own if self.sums == "reselect" else max(own, union_bound(regions, summed))

    def _inner_bound(self, entries: int) -> int:
        return self.inner.nbytes_bound([inner_region(self.inner, 0, entries)])

    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int:
        if selected is None:
            chosen = self._selected_here(x, residual, new_residual, region, stream)
            nbytes = self._encode(chosen[0], new_residual, wire, region, stream)
            chosen.release()
            return nbytes
        return self._encode(selected, new_residual, wire, region, stream)

    def _encode(self, kept, new_residual, wire, region, stream) -> int:
        large = self.sums == "reselect" and new_residual is not None and exceeds(kept.value, LARGEST_WITH_ERROR)
        if large or not kept.finite:  # a sum's error may be added to an own one
            return NOT_FINITE
        if self.values == "raw":
            return _kernels.sparse_encode(kept.index, kept.value, kept.counts, new_residual, wire, region.table)
        at = first = place = 0
        for each, entries in zip(regions_of(region), kept.counts.tolist(), strict=True):
            mine = slice(first, first + entries)
            errors = None if new_residual is None else new_residual[place : place + each.size]
            drawn = stream if len(stream) == 1 else stream.alone(each.segment)
            nbytes = self._encode_region(kept.index[mine], kept.value[mine], errors, wire[at:], each, drawn)
            if nbytes == NOT_FINITE:
                return NOT_FINITE
            at, first, place = at + nbytes, first + entries, place + each.size
        return at

    def _encode_region(self, index, value, new_residual, wire, region, stream) -> int:
        at = HEADER + _kernels.places_write(index, region.size, wire[HEADER:])
        errors = None if new_residual is None else np.empty(index.size, np.float32)
        inner = inner_region(self.inner, region.start, index.size)
        nbytes = self.inner.encode(np.ascontiguousarray(value), None, errors, wire[at:], inner, stream)
        if nbytes == NOT_FINITE:
            return NOT_FINITE
        if errors is not None:
            _kernels.put_at(new_residual, index, errors.view(np.uint8))
        at += nbytes
        wire[:HEADER].view(np.uint32)[:] = region.size, index.size, at - HEADER
        return at

    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int:
        if self.values == "raw":
            return _kernels.sparse_decode(wire, y, region.table, scale, False, self.sums_grow)
        y[:] = 0
        return self._decode(wire, y, region, scale)

    def decode_add(self, wire, y, region: Region) -> int:
        if self.values == "raw":
            return _kernels.sparse_decode(wire, y, region.table, 1.0, True, self.sums_grow)
        return self._decode(wire, y, region, 1.0)

    def _decode(self, wire, y, region, scale) -> int:
        at = place = 0
        for each in regions_of(region):
            nbytes, places, values = self.read(wire[at:], each, scale)
            here = y[place : place + each.size]
            if places is None:
                here += values.copy().view(np.float32)
            else:
                _kernels.add_at(here, places, values)
            at, place = at + nbytes, place + each.size
        return at

    def read(self, wire, region, scale=1.0):
        """(bytes, places or None for all, bytes of float32 values) of a region's message."""
        elements, entries, nbytes = _header(wire)
        if elements != region.size:
            raise WireError(f"{self.name}: a message of {elements} values, expected {region.size}")
        if nbytes > len(wire) - HEADER:
            raise WireError(f"{self.name}: {len(wire) - HEADER} bytes, expected {nbytes} as the message says")
        body = wire[HEADER : HEADER + nbytes]
        if self.sums == "union" and entries & SUM:
            places, values = read_sum(body, region.size, entries)
            if scale != 1.0:
                values = (values.copy().view(np.float32) * np.float32(scale)).view(np.uint8)
            return HEADER + nbytes, places, values
        places, at = _kernels.places_read(body, region.size, entries)
        if self.values == "raw" and scale == 1.0 and nbytes == at + 4 * entries:
            return HEADER + nbytes, places, finite_values(body[at:])
        values = np.empty(entries, np.float32)
        at += self.inner.decode(body[at:], values, inner_region(self.inner, region.start, entries), scale)
        if at != nbytes:
            raise WireError(f"{self.name}: {nbytes} bytes, of which {at} are read")
        return HEADER + nbytes, places, values.view(np.uint8)

    # --- sums ---

    @property
    def sums_grow(self) -> bool:
        return self.sums == "union"

    @property
    def of_sums(self):
        if self.sums == "reselect":
            return self
        return self.union or UnionSums(self.read)

    def begin_sum(self, x, residual, new_residual, y, region: Region, stream, selected=None) -> bool:
        if self.sums == "reselect":
            return super().begin_sum(x, residual, new_residual, y, region, stream)
        wire = np.empty(self.nbytes_bound([region]), np.uint8)
        nbytes = self.encode(x, residual, new_residual, wire, region, stream, selected)
        if nbytes == NOT_FINITE:
            self.arithmetic.add_finite(x, residual, y)
            return True
        self.of_sums.decode(wire[:nbytes], y, region)
        return False

    def entries(self, payload, extents) -> int:
        entries = at = 0
        for _ in [each for extent in extents for each in regions_of(extent)]:
            _, found, nbytes = _header(payload[at:])
            entries, at = entries + (found & ~SUM & ~DENSE), at + HEADER + nbytes
        return entries


def one_of_k_and_ratio(codec: type, given: dict) -> None:
    """ValueError if both are given."""
    if given.get("k") and given.get("ratio"):
        raise ValueError(f"{codec.name}: got k and ratio, expected one of them")


def inner_region(codec: RegionCodec, start: int, entries: int) -> Region:
    """Of the values of a region, for their codec."""
    return Region(start, entries, codec.grid(Grid(4096)), start + entries)


def _header(wire) -> tuple[int, int, int]:
    """(elements, entries, bytes behind it)."""
    if len(wire) < HEADER:
        raise WireError(f"{len(wire)} bytes of a sparse message, expected {HEADER} and more")
    return tuple(wire[:HEADER].copy().view(np.uint32).tolist())

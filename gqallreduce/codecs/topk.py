"""The largest values of a vector with their places, the values by any codec of fixed levels.

Wire, per region: its elements, its entries and the bytes of what follows (uint32 each); the places of the entries, as
in gqallreduce/coding/places.py; then the values at these places, in order, as one region of the codec `values`.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from gqallreduce.coding import arithmetic
from gqallreduce.coding.arithmetic import LARGEST_WITH_ERROR, exceeds
from gqallreduce.coding.codec import NOT_FINITE, Codec, Region, RegionCodec, integer, register
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.coding.places import places_bound, read_places, write_places
from gqallreduce.coding.plain import PlainCodec
from gqallreduce.coding.preparing import Parts, Prepared, alone
from gqallreduce.coding.selection import Fresh, select_most
from gqallreduce.coding.text import codec_of, resolved
from gqallreduce.errors import WireError

_HEADER = 12


@register
class TopK(RegionCodec):
    """top-k: exactly the k nonzero values of largest magnitude, fewer if fewer exist. Use it with /ef.

    k
        how many of a vector; 0: as `ratio` says. Of a partial sum of m of its n values ceil(k m / n).
    ratio
        k = max(1, floor(ratio n)), 0 < ratio <= 1; 0.0 if k is given.
    values
        how the values travel: raw, float16, bfloat16, or a level codec with its options, as in
        values=qsgd(bits=4, bucket=64); not those that learn.
    Ties are broken by memory order. Of own values the largest of the whole vector are sent, of a partial sum those of
    the range at hand.
    Error: |v|^2 is left of each value not sent, so that |v - C(v)|^2 <= (1 - k/n) |v|^2 with values=raw; of the others
    what their codec loses.
    Cost: at most 2 bytes per entry, or a bit per value where that is less, and those of `values`; 12 bytes per block of
    2^18 values and 2 per 65536. Device arrays go through host memory.
    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018, definition 2.1 (top_k); differs: of
    partial sums the largest are selected again, and what that leaves goes into a residual, so that nothing is lost.
    """

    k: int = 0
    ratio: float = 0.01
    values: str = "raw"

    name = "topk"
    source = "Stich et al., Sparsified SGD with memory, NeurIPS 2018"
    example = "direct/topk(ratio=0.01)/ef"
    host_only = prepares = True
    omega = 1.0

    def __post_init__(self):
        integer(self, "k", 0, 2**62)
        if not self.k and not (isinstance(self.ratio, float) and 0 < self.ratio <= 1):
            raise ValueError(f"topk: ratio={self.ratio!r}, expected a number above 0, up to 1")
        object.__setattr__(self, "ratio", 0.0 if self.k else self.ratio)
        if not isinstance(self.values, str):
            raise ValueError(f"topk: values={self.values!r}, expected a codec")
        object.__setattr__(self, "values", resolved(self.inner))

    @classmethod
    def make(cls, given: dict) -> Codec:
        if given.get("k") and given.get("ratio"):
            raise ValueError("topk: got k and ratio, expected one of them")
        return super().make(given)

    @cached_property
    def inner(self) -> RegionCodec:
        """The codec of the values."""
        found = codec_of(self.values)
        if not isinstance(found, (PlainCodec, LevelCodec)) or found.learns:
            raise ValueError(
                f"topk: values={self.values}, expected raw, float16, bfloat16 or a level codec that does not learn"
            )
        return found.with_feedback() if self.contracted else found

    @property
    def deterministic(self) -> bool:
        return self.inner.deterministic

    def with_feedback(self):
        if self.inner.with_feedback() is self.inner:
            return self
        made = self.knowing(contracted=True)
        vars(made).pop("inner", None)
        return made

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec:
        inner = self.inner.bind(Form((form.size,), "C", "float32"), size, arithmetic)
        return self.knowing(arithmetic=arithmetic, inner=inner)

    def grid(self, columns: Grid) -> Grid:
        return Grid(1)

    def runs(self, columns: Grid) -> Grid:
        """A bucket of values holds some from anywhere."""
        return self.grid(columns) if isinstance(self.inner, PlainCodec) else Grid(2**62)

    def carries(self, v) -> np.ndarray:
        return self.inner.carries(v)

    # --- which values ---

    def _most(self, elements: int, total: int) -> int:
        """How many of `elements` values of a vector."""
        if self.k:
            return min(elements, -(-self.k * elements // max(total, 1)))
        return min(elements, max(1, math.floor(self.ratio * elements)))

    def prepare(self, parts):
        return self._select(parts)

    def _select(self, parts):
        elements = sum(region.size for region in parts.regions)
        total = parts.regions[0].total if parts.regions else 0
        return Prepared(self, (yield from select_most(parts, self._most(elements, total))))

    def _selected_here(self, x, residual, new_residual, region):
        parts = Parts([region], lambda _: (x, residual, new_residual), Fresh())
        return alone(self._select(parts)).selected

    # --- to bytes and back ---

    def nbytes_bound(self, regions: list[Region]) -> int:
        elements = sum(region.size for region in regions)
        most = max((self._most(region.total, region.total) for region in regions), default=0)
        # Each region cuts a bucket of the values at its start, and one at its end.
        cut = 2 * sum(region.size > 0 for region in regions)
        values = self._inner_bound(min(elements, most)) + cut * self._inner_bound(1)
        places = sum(places_bound(region.size, min(region.size, most)) for region in regions)
        return _HEADER * len(regions) + places + values

    def _inner_bound(self, entries: int) -> int:
        return self.inner.nbytes_bound([self._inner_region(0, entries)])

    def _inner_region(self, start: int, entries: int) -> Region:
        return Region(start, entries, self.inner.grid(Grid(4096)), start + entries)

    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int:
        if selected is None:
            chosen = self._selected_here(x, residual, new_residual, region)
            nbytes = self._encode(chosen[0], new_residual, wire, region, stream)
            chosen.release()
            return nbytes
        return self._encode(selected, new_residual, wire, region, stream)

    def _encode(self, kept, new_residual, wire, region, stream) -> int:
        if not kept.finite or (new_residual is not None and exceeds(kept.value, LARGEST_WITH_ERROR)):
            return NOT_FINITE
        at = first = place = 0
        for each, entries in zip(_each(region), kept.counts.tolist(), strict=True):
            mine = slice(first, first + entries)
            errors = None if new_residual is None else new_residual[place : place + each.size]
            nbytes = self._encode_region(kept.index[mine], kept.value[mine], errors, wire[at:], each, stream)
            if nbytes == NOT_FINITE:
                return NOT_FINITE
            at, first, place = at + nbytes, first + entries, place + each.size
        return at

    def _encode_region(self, index, value, new_residual, wire, region, stream) -> int:
        at = _HEADER + write_places(index, region.size, wire[_HEADER:])
        errors = None if new_residual is None else np.empty(index.size, np.float32)
        inner = self._inner_region(region.start, index.size)
        nbytes = self.inner.encode(np.ascontiguousarray(value), None, errors, wire[at:], inner, stream)
        if nbytes == NOT_FINITE:
            return NOT_FINITE
        if errors is not None:
            new_residual[index] = errors
        at += nbytes
        wire[:_HEADER].view(np.uint32)[:] = region.size, index.size, at - _HEADER
        return at

    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int:
        y[:] = 0
        return self._decode(wire, y, region, scale)

    def decode_add(self, wire, y, region: Region) -> int:
        return self._decode(wire, y, region, 1.0)

    def _decode(self, wire, y, region, scale) -> int:
        at = place = 0
        for each in _each(region):
            nbytes, places, values = self._read(wire[at:], each, scale)
            y[place + places] += values
            at, place = at + nbytes, place + each.size
        return at

    def _read(self, wire, region, scale):
        """(bytes, places, values) of a region's message."""
        elements, entries, nbytes = _header(wire)
        if elements != region.size:
            raise WireError(f"topk: a message of {elements} values, expected {region.size}")
        if nbytes > len(wire) - _HEADER:
            raise WireError(f"topk: {len(wire) - _HEADER} bytes, expected {nbytes} as the message says")
        body = wire[_HEADER : _HEADER + nbytes]
        places, at = read_places(body, region.size)
        if places.size != entries:
            raise WireError(f"topk: {places.size} places, expected {entries} as the message says")
        values = np.empty(entries, np.float32)
        at += self.inner.decode(body[at:], values, self._inner_region(region.start, entries), scale)
        if at != nbytes:
            raise WireError(f"topk: {nbytes} bytes, of which {at} are read")
        return _HEADER + nbytes, places, values

    def entries(self, payload, extents) -> int:
        entries = at = 0
        for _ in [each for extent in extents for each in _each(extent)]:
            _, found, nbytes = _header(payload[at:])
            entries, at = entries + found, at + _HEADER + nbytes
        return entries


def _each(region) -> list[Region]:
    """The regions of a Span, or the one."""
    return getattr(region, "regions", [region])


def _header(wire) -> tuple[int, int, int]:
    """(elements, entries, bytes behind it)."""
    if len(wire) < _HEADER:
        raise WireError(f"topk: {len(wire)} bytes, expected {_HEADER} and more")
    return tuple(wire[:_HEADER].copy().view(np.uint32).tolist())

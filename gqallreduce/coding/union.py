"""Sums of sparse vectors, kept exactly: the places that any contribution has, with the sums of their values.

Wire, per region: 12 bytes as of own values (topk.py), the highest bit of the entries set; the places, as in places.py,
and a float32 for each; or, where that is shorter, with the next bit set too, no places and a float32 for every element.
"""

from __future__ import annotations

import math

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import NOT_FINITE, Region
from gqallreduce.coding.places import places_bound
from gqallreduce.errors import WireError

HEADER = 12
SUM, DENSE = 1 << 31, 1 << 30
# Where more of the elements than one of so many may differ from zero, all are looked at.
_SCANNED = 16


def union_bound(regions: list[Region], most: int) -> int:
    """The most bytes of regions of which at most so many elements together are not zero."""
    elements = sum(region.size for region in regions)
    places = sum(places_bound(region.size, min(region.size, most)) for region in regions)
    return HEADER * len(regions) + min(4 * elements, places + 4 * min(elements, most))


def union_of_random(elements: int, most: int, contributions: int) -> int:
    """Of how many elements one or more contributions have a value, if each has so many at random places: expected."""
    if contributions == 1 or not elements:
        return most
    none = 1.0  # by multiplication, which is alike on all machines
    for _ in range(contributions):
        none *= 1 - min(most, elements) / elements
    return math.ceil(elements * (1 - none))


def regions_of(extent) -> list[Region]:
    """Of a Span, or the one."""
    return getattr(extent, "regions", [extent])


class UnionSums:
    """The codec of partial sums of one tensor: float32 values to bytes and back without loss, so with no residual.

    It remembers the places where something was added to a range, so that only those are looked at when the range is
    encoded.

    read
        (wire, region) -> (bytes, places or None for all, bytes of float32 values) of a message, of own values or a sum.
    """

    exact, prepares = True, False

    def __init__(self, read):
        self._read = read
        self._touched: dict[int, list[np.ndarray] | None] = {}  # of a range by its start; None: anywhere

    def encode(self, x, residual, new_residual, wire, region: Region, stream, selected=None) -> int:
        """NOT_FINITE if a sum is not."""
        index = self._places(x, region)
        value = x[index]
        if not _kernels.all_finite(value):
            return NOT_FINITE
        if not value.all():  # contributions that cancel
            index, value = index[value != 0], value[value != 0]
        at = first = place = 0
        for each in regions_of(region):
            last = len(index) if place + each.size == region.size else int(np.searchsorted(index, place + each.size))
            mine = x[place : place + each.size]
            at += _write(index[first:last] - np.uint32(place), value[first:last], mine, wire[at:])
            first, place = last, place + each.size
        return at

    def _places(self, x, region: Region) -> np.ndarray:
        """Ascending, of all values that are not zero, and maybe some more."""
        touched = self._touched.get(region.start)
        if touched is None:
            return np.flatnonzero(x).astype(np.uint32)
        if len(touched) == 1:
            return touched[0]
        merged = _sorted_once(np.concatenate(touched))
        self._touched[region.start] = [merged]
        return merged

    def decode(self, wire, y, region: Region) -> int:
        self._touched[region.start] = []
        y[:] = 0
        return self.decode_add(wire, y, region)

    def decode_add(self, wire, y, region: Region) -> int:
        at = place = 0
        touched = self._touched.get(region.start)
        for each in regions_of(region):
            nbytes, places, values = self._read(wire[at:], each)
            here = y[place : place + each.size]
            if places is None:
                here += values.copy().view(np.float32)
                touched = None
            else:
                _kernels.add_at(here, places, values)
                if touched is not None:
                    touched.append(places + np.uint32(place))
            at, place = at + nbytes, place + each.size
        if touched is not None and sum(map(len, touched)) > region.size // _SCANNED:
            touched = None
        self._touched[region.start] = touched
        return at


def _sorted_once(places: np.ndarray) -> np.ndarray:
    """Ascending, each once. np.unique goes by a hash table: ten times as long."""
    places.sort()
    first = np.ones(len(places), bool)
    np.not_equal(places[1:], places[:-1], out=first[1:])
    return places[first]


def read_sum(body, elements: int, entries: int) -> tuple[np.ndarray | None, np.ndarray]:
    """(places or None for all, bytes of float32 values) of a sum, from what is behind its header, or WireError."""
    count = entries & ~SUM & ~DENSE
    places, at = (None, 0) if entries & DENSE else _kernels.places_read(body, elements, count)
    if (places is None and count != elements) or len(body) != at + 4 * count:
        raise WireError(
            f"topk: {len(body)} bytes of a sum of {elements} values with {count} entries, expected {at + 4 * count}"
        )
    return places, finite_values(body[at:])


def finite_values(values: np.ndarray) -> np.ndarray:
    """These bytes of float32 values, if all are finite, else WireError."""
    if not _kernels.all_finite(values.copy().view(np.float32)):
        raise WireError("got a value that is not finite")
    return values


def _write(index, value, x, wire) -> int:
    if _kernels.places_nbytes(index, x.size) + 4 * len(index) <= 4 * x.size:
        at = HEADER + _kernels.places_write(index, x.size, wire[HEADER:])
        entries = SUM | len(index)
    else:
        at, entries, value = HEADER, SUM | DENSE | x.size, x
    wire[at : at + 4 * len(value)].view(np.float32)[:] = value
    at += 4 * len(value)
    wire[:HEADER].view(np.uint32)[:] = x.size, entries, at - HEADER
    return at

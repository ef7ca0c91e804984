"""Launches of adaptive.cu: selection, ordered entries, decoding.

`regions` is the device's copy of region_table(span, units) of the span at hand. What is kept of each unit is in
Columns: one selection over a vector serves all its pieces.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gqallreduce.backends.cuda.launching import TEAM_THREADS, THREADS, blocks_for, blocks_of_teams, by_units, geometry
from gqallreduce.coding.layout import Span

SEARCH_WORDS = 6  # uint32, of what a search leaves for adaptive_count
TABLE_WORDS = 2 * 4096  # uint32, of a search's histograms

_SCAN_THREADS = 1024
_HISTOGRAMS = 896  # blocks at most, of 32 KiB of shared memory: an H100 has 924 at a time, each to be cleared and added
_DIGITS = ((19, 12), (7, 12), (0, 7))  # of a magnitude: the bits below, the bits

units = attrgetter("units")  # of a region, for region_table


class Columns(NamedTuple):
    """What is kept of each unit, uint32: magnitudes above `threshold` and the first `ties` that equal it, both per side
    (one, or two with separate signs), and the number of its `first` entry; one more of these is the number of all.
    """

    threshold: object
    ties: object
    first: object
    sides: int

    @staticmethod
    def words(units: int, separate: bool) -> int:
        """The size of the array that `of` takes."""
        return (4 if separate else 2) * units + units + 1

    @classmethod
    def of(cls, words, separate: bool) -> Columns:
        """Views of one uint32 array of the device."""
        sides = 2 if separate else 1
        end = words.size // (2 * sides + 1) * sides
        return cls(words[:end], words[end : 2 * end], words[2 * end :], sides)

    def part(self, begin: int, end: int) -> Columns:
        """Those of the units [begin, end)."""
        place = slice(self.sides * begin, self.sides * end)
        return Columns(self.threshold[place], self.ties[place], self.first[begin : end + 1], self.sides)


def adaptive_search(launch, parts, pi: int, separate: bool, search, table, status) -> None:
    """Find the thresholds of a range of less than 2^32 elements: `search` (SEARCH_WORDS, any) is what `adaptive_count`
    takes.

    parts
        (span, x, e, r) of each part, gone through once for each of three digits, so that each may be loaded when asked
        for; where there is an e there must be an r, in which v = x + e is left.
    table
        TABLE_WORDS zeros; zeros again afterwards.
    """
    sides, elements = np.uint32(1 + separate), 0
    for number, (shift, width) in enumerate(_DIGITS):
        first = number == 0
        digit = np.int32(shift), np.int32(width), None if first else search, sides, table, status
        for span, x, e, r in parts:
            given = (x, e, r) if first else (x if r is None else r, None, None)
            elements += span.size if first else 0
            if span.size:
                arguments = *given, np.uint64(span.size), *digit
                blocks = min(blocks_for(span.size), _HISTOGRAMS)
                launch("adaptive", "adaptive_histogram", blocks, THREADS, *arguments)
        k = max(1, elements // pi) if first else 0
        launch("adaptive", "adaptive_digit", 1, _SCAN_THREADS, table, np.int32(width), np.uint32(k), sides, search)


def adaptive_count(launch, v, span: Span, regions, search, columns: Columns) -> None:
    """What each unit of a span keeps of v, into `columns`; the spans of a selection in memory order."""
    if span.size:
        arguments = v, *_place(span, regions), search, columns.threshold, columns.ties, columns.first
        by_units(launch, "adaptive", "adaptive_count", span, (*arguments, np.uint32(columns.sides)))
        _scan(launch, v, span, regions, search, columns)


def adaptive_select(launch, x, e, r, span: Span, regions, pi: int, columns: Columns, status) -> None:
    """As adaptive_count, but one value in pi of each unit. An e wants an r, in which v is left."""
    if span.size:
        arguments = x, e, r, *_place(span, regions), np.uint64(pi), columns.threshold, columns.ties, columns.first
        by_units(launch, "adaptive", "adaptive_select", span, (*arguments, np.uint32(columns.sides)), status)
        _scan(launch, x if r is None else r, span, regions, None, columns)


def adaptive_encode(launch, v, r, wire, span: Span, regions, columns: Columns, length, status) -> None:
    """Write the messages of a span's regions, and into `length`, a uint64, how many bytes they are. Where errors are
    kept, r is v. NOT_FINITE where a value of v is not, kept or not.
    """
    blocks, teams = blocks_of_teams(span)
    kept = columns.threshold, columns.ties, columns.first, np.uint32(columns.sides)
    arguments = v, r, wire, *_place(span, regions), *kept, length, np.uint32(teams), status
    launch("adaptive", "adaptive_encode", max(blocks, 1), TEAM_THREADS, *arguments)


def adaptive_decode(launch, wire, y, span: Span, regions, scale: float, add: bool, status, where) -> None:
    """The messages of a span's regions, which `wire` holds and nothing else.

    where
        len(span.regions) + 1 uint64, any.
    """
    count = np.uint64(len(span.regions))
    launch("adaptive", "adaptive_walk", 1, 32, wire, np.uint64(wire.size), regions, count, where, status)
    arguments = wire, y, *_place(span, regions), where, np.float32(scale), np.int32(add)
    by_units(launch, "adaptive", "adaptive_decode", span, arguments, status)


def _scan(launch, v, span: Span, regions, search, columns: Columns) -> None:
    arguments = v, *_place(span, regions), search, columns.ties, columns.first, np.uint32(columns.sides)
    launch("adaptive", "adaptive_scan", 1, _SCAN_THREADS, *arguments)


def _place(span: Span, regions) -> tuple:
    return *geometry(span), regions, np.uint64(len(span.regions))

"""Launches of adaptive.cu: selection, ordered entries, decoding.

`regions` is the device's copy of region_table(span, units) of the span at hand. What is kept of each unit is in
Columns: one selection over a vector serves all its pieces.

A selection over a vector goes through it twice: once for the first digit of the threshold, once for the second, when
the values that agree with the first are listed.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gqallreduce.backends.cuda.launching import TEAM_THREADS, THREADS, by_units, geometry
from gqallreduce.coding.layout import Span

SEARCH_WORDS = 6  # uint32, of what a search leaves for adaptive_count
TABLE_WORDS = 2 * 4096  # uint32, of a search's histograms

_SCAN_THREADS = 1024
_HISTOGRAM_THREADS = 512
_HISTOGRAMS = (
    396  # blocks at most, of 32 KiB of shared memory: an H100 has as many at a time, each to be cleared and added
)
_DIGITS = ((19, 12), (7, 12), (0, 7))  # of a magnitude: the bits below, the bits
_REFINING = 1056  # blocks at most of those that add a histogram of listed values
_WARP = 32
_ONE_OF = 16  # values that may be listed

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


class Part(NamedTuple):
    """A part of a range that is selected from: what is kept of its units, and which values may be.

    listed
        listed_size(span) float32, any.
    """

    span: Span
    regions: object
    columns: Columns
    listed: object


def listed_size(span: Span) -> int:
    return span.size // _ONE_OF


def adaptive_search(launch, loaded, parts: list[Part], pi: int, search, table, status) -> None:
    """Find the thresholds of a range of less than 2^32 elements in at least one part: `search` (SEARCH_WORDS, any) is
    what `adaptive_count` takes, with what this leaves in the parts.

    loaded
        (span, x, e, r) of each part, gone through once for each of three digits, so that each may be loaded when asked
        for; where there is an e there must be an r, in which v = x + e is left.
    table
        TABLE_WORDS zeros; zeros again afterwards.
    """
    sides = np.uint32(parts[0].columns.sides)
    elements = sum(part.span.size for part in parts)
    shifts, widths = zip(*(map(np.int32, digit) for digit in _DIGITS), strict=True)

    def next_digit(number: int, k: int = 0) -> None:
        launch("adaptive", "adaptive_digit", 1, _SCAN_THREADS, table, widths[number], np.uint32(k), sides, search)

    for span, x, e, r in loaded:
        blocks = min(-(-span.size // (4 * _HISTOGRAM_THREADS)), _HISTOGRAMS)
        arguments = x, e, r, np.uint64(span.size), shifts[0], sides, table, status
        launch("adaptive", "adaptive_histogram", blocks, _HISTOGRAM_THREADS, *arguments)
    next_digit(0, max(1, elements // pi))
    for part, (span, x, _, r) in zip(parts, loaded, strict=True):
        kept = part.columns.threshold, part.columns.ties, part.listed, sides
        arguments = *_place(span, part.regions), shifts[1], widths[1], search, *kept, table
        blocks = min(_blocks_of_warps(span, _HISTOGRAM_THREADS), _HISTOGRAMS)
        launch("adaptive", "adaptive_sift", blocks, _HISTOGRAM_THREADS, _formed(x, r), *arguments)
    next_digit(1)
    for part, (span, x, _, r) in zip(parts, loaded, strict=True):
        arguments = *_place(span, part.regions), widths[2], search, part.columns.ties, part.listed, sides, table
        blocks = min(_blocks_of_warps(span, THREADS), _REFINING)
        launch("adaptive", "adaptive_refine", blocks, THREADS, _formed(x, r), *arguments)
    next_digit(2)


def adaptive_count(launch, v, part: Part, search) -> None:
    """What each unit of a part keeps of v, into its columns; the parts of a selection in memory order."""
    span, regions, columns, listed = part
    if span.size:
        kept = columns.threshold, columns.ties, columns.first, listed, np.uint32(columns.sides)
        arguments = v, *_place(span, regions), search, *kept
        launch("adaptive", "adaptive_count", _blocks_of_warps(span, THREADS), THREADS, *arguments)
        _scan(launch, v, span, regions, search, columns)


def _formed(x, r):
    return x if r is None else r


def _blocks_of_warps(span: Span, threads: int) -> int:
    """Blocks with a warp for each unit."""
    return -(-span.units // (threads // _WARP))


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
    kept = columns.threshold, columns.ties, columns.first, np.uint32(columns.sides)
    arguments = v, r, wire, *_place(span, regions), *kept, length, status
    launch("adaptive", "adaptive_encode", max(_blocks_of_warps(span, TEAM_THREADS), 1), TEAM_THREADS, *arguments)


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

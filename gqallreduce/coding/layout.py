"""Where the vector is cut: columns, chunks, lanes, blocks.  A pure function of shape, order, dtype, P and scheme.

A buffer is seen as one vector in memory order. *Units* (columns or buckets) lie on a grid over it. It is cut into as
many *chunks* as the schedule has, and each chunk into a *piece* for each lane, between units if there are enough of
them, else anywhere; lanes run the same schedule side by side. A piece is encoded *block* by block, so that no kernel
call takes long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gqallreduce._kernels import Regions
from gqallreduce.coding.order import axes
from gqallreduce.coding.outer import Factors

COLUMN_LEAST = 32
COLUMN_MOST = 32767
COLUMN_FLAT = 4096
MERGED_MOST = 1 << 14  # of short columns: runs below twice as much, so below COLUMN_MOST
BLOCK = 1 << 18


class Form(NamedTuple):
    """What ranks agree on of a buffer; its order as in order.py.

    factors
        of one that is given as a product (outer.py), what ranks agree on of that.
    counts
        of the elements of each chunk, where the caller says; None where the codec's units do.
    """

    shape: tuple[int, ...]
    order: str
    dtype: str
    factors: Factors | None = None
    counts: tuple[int, ...] | None = None

    @property
    def kept(self) -> tuple[tuple[int, ...], str, str]:
        """What a key's buffers have in common."""
        return self[:3]

    @property
    def compared(self) -> tuple:
        """What ranks compare as the shape."""
        found = self.shape if self.factors is None else (self.shape, *self.factors)
        return found if self.counts is None else (found, self.counts)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@lru_cache(4096)
def form_of(shape: tuple[int, ...], order: str, dtype: str) -> Form:
    """Of an array: one object for equal ones, which are looked up and compared in every call."""
    return Form(shape, order, dtype)


@dataclass(frozen=True)
class Grid:
    """Runs of `run` elements, each cut into `parts` nearly equal units; a last, shorter run is cut by its end alone."""

    run: int
    parts: int = 1

    def boundary(self, unit: int) -> int:
        """First element of a unit."""
        whole, part = divmod(unit, self.parts)
        return whole * self.run + part * self.run // self.parts

    def unit(self, element: int) -> int:
        """The unit that holds an element."""
        whole, inside = divmod(element, self.run)
        return whole * self.parts + ((inside + 1) * self.parts - 1) // self.run

    def count(self, start: int, size: int) -> int:
        """Units, whole or cut off, in `size` elements from `start` on."""
        return self.unit(start + size - 1) - self.unit(start) + 1 if size else 0

    def tallest(self) -> int:
        return -(-self.run // self.parts)

    def merged(self, least: int) -> Grid:
        """With runs that are shorter than `least` joined until they are not; `least` is at most MERGED_MOST."""
        return self if self.run >= least else Grid(self.run * -(-least // self.run))


class Region(NamedTuple):
    """`size` elements of a flattened tensor of `total` elements, from element `start` on.

    segment
        the number of the tensor in its call.
    """

    start: int
    size: int
    grid: Grid
    total: int
    segment: int = 0

    STREAM_LEAST = 1 << 21  # no part of the format

    @property
    def units(self) -> int:
        return self.grid.count(self.start, self.size)

    @property
    def streams(self) -> bool:
        """Is the vector so long that what is written here has left the caches by the time it is read again?

        At 8 MiB an array and the others of a call, several ranks of a machine together, fill a last-level cache.
        """
        return self.total >= self.STREAM_LEAST

    @property
    def geometry(self) -> tuple[int, int, int]:
        """(start, run, parts), as a device's kernels take it."""
        return self.start, self.grid.run, self.grid.parts

    @property
    def row(self) -> tuple[int, int, int, int, int]:
        """Of a table of regions."""
        return self.size, *self.geometry, self.segment

    @property
    def table(self) -> Regions:
        """As the host's kernels take it."""
        return Regions([self.row])


class Span:
    """Regions, at least one, worked on in one go: consecutive ones of one tensor, or one each of several small tensors.

    In the wire each region keeps its own message, one after the other.

    units
        of all regions; one that is cut between regions counts in each.
    tables
        what a device keeps of the span, by name.
    piece, at
        the Piece or BatchPiece that it is part of, and where in it.
    """

    __slots__ = ("_table", "at", "grid", "piece", "regions", "segment", "size", "start", "tables", "total", "units")

    def __init__(self, regions: list[Region]):
        first = regions[0]
        self.regions, self.tables = regions, {}
        self.start, self.size = first.start, sum(region.size for region in regions)
        self.grid, self.total, self.segment = first.grid, first.total, first.segment
        self.units = sum(region.units for region in regions)
        self.piece, self.at, self._table = None, 0, None

    @property
    def table(self) -> Regions:
        """Of all regions, as the host's kernels take it."""
        if self._table is None:
            self._table = Regions([region.row for region in self.regions])
        return self._table

    streams = Region.streams
    STREAM_LEAST = Region.STREAM_LEAST
    geometry = Region.geometry


def columns(shape: tuple[int, ...], order: str) -> Grid:
    """The columns of a buffer.

    With two or more axes: the fastest-varying axis in memory, merged with the next ones until a column has at least 32
    elements; a run over 32767 is cut into nearly equal parts. With fewer: runs of 4096.
    """
    if len(shape) < 2:
        return Grid(COLUMN_FLAT)
    run = 1
    for axis in reversed(axes(len(shape), order)):
        run *= shape[axis]
        if run >= COLUMN_LEAST:
            break
    run = max(run, 1)
    return Grid(run, -(-run // COLUMN_MOST))


def cut(size: int, pieces: int, grid: Grid) -> list[int]:
    """pieces + 1 boundaries of nearly equal pieces: between units if there are at least that many, else inside."""
    units = grid.count(0, size)
    if units < pieces:
        return [piece * size // pieces for piece in range(pieces + 1)]
    return [grid.boundary(piece * units // pieces) for piece in range(pieces)] + [size]


def blocks(start: int, stop: int, grid: Grid) -> list[tuple[int, int]]:
    """[start, stop) in blocks of at most BLOCK elements that end between units (a larger unit is a block)."""
    found = []
    while start < stop:
        end = min(start + BLOCK, stop)
        if end < stop:
            boundary = grid.boundary(grid.unit(end))
            end = boundary if boundary > start else min(grid.boundary(grid.unit(end) + 1), stop)
        found.append((start, end))
        start = end
    return found


class Piece:
    """Elements [start, stop) of one tensor, in regions (blocks).

    tensor
        its number in the call.
    number
        this piece's among those of its Chunk.
    first
        the number of its first region in the tensor.
    """

    __slots__ = ("bound", "extents", "first", "number", "regions", "start", "stop", "tensor")

    def __init__(self, start: int, stop: int, grid: Grid, total: int, tensor: int = 0):
        self.start, self.stop, self.tensor = start, stop, tensor
        self.regions = [Region(begin, end - begin, grid, total, tensor) for begin, end in blocks(start, stop, grid)]
        self.bound = self.first = self.number = 0
        self.extents: list[Span] = []

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def parts(self) -> list[Piece]:
        return [self]

    def share(self, index: int, of: int) -> tuple[int, int]:
        """[begin, end) of the index-th of `of` nearly equal slices."""
        return self.start + index * self.size // of, self.start + (index + 1) * self.size // of


class BatchPiece:
    """Pieces of several small tensors, end to end: one kernel call works on all of them.

    parts
        the Pieces.
    """

    __slots__ = ("bound", "extents", "number", "parts", "regions", "size")

    tensor = -1  # what stands for all tensors, last in their list

    def __init__(self, parts: list[Piece]):
        self.parts, self.number = parts, 0
        self.regions = [region for piece in parts for region in piece.regions]
        self.size, self.bound = sum(piece.size for piece in parts), sum(piece.bound for piece in parts)
        self.extents: list[Span] = []


class Chunk:
    """What a lane holds of one of the schedule's chunks: a piece of each of its tensors, in one message.

    bound, exact_bound
        the most bytes of the message, by the codec and without loss.
    extents
        what is encoded at once, of all pieces.
    """

    __slots__ = ("bound", "exact_bound", "extents", "pieces", "regions")

    def __init__(self, pieces: list[Piece | BatchPiece]):
        self.pieces, self.extents = pieces, []
        for number, piece in enumerate(pieces):
            piece.number = number
        self.regions = [region for piece in pieces for region in piece.regions]
        self.bound = sum(piece.bound for piece in pieces)
        self.exact_bound = self.bound

    def work_on(self, extents_of) -> None:
        """Cut the pieces into extents: `extents_of(regions)` gives those of consecutive regions of one tensor."""
        for piece in self.pieces:
            at = 0
            for part in piece.parts:
                part.extents = extents_of(part.regions)
                for extent in part.extents:
                    extent.piece, extent.at = piece, at
                    at += extent.size
            if isinstance(piece, BatchPiece):
                piece.extents = [Span(piece.regions)]
                piece.extents[0].piece = piece
            self.extents += piece.extents

    @staticmethod
    def part(values: list, extent: Span):
        """The elements of an extent in the arrays of the pieces."""
        return values[extent.piece.number][extent.at : extent.at + extent.size]


def of(array, region: Region):
    """The elements of a region in an array of the whole vector's, or None of None."""
    return None if array is None else array[region.start : region.start + region.size]

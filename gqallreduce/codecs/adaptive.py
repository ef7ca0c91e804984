"""Dryden's adaptive quantization: the largest values only, one bit each, in compressed sparse columns.

Wire, per region: for each column the offset of its first entry (uint32, in entries), the mean of its sent positive
values and of its sent negative ones (float32 each, 0 if there is none); the number of entries (uint32); then the
entries, columns in order, rows ascending: uint16 = row << 1 | (1 if positive). Regions follow each other. With
coding=golomb shorter codes stand for the entries: csrc/gq/golomb.hpp.
"""

from __future__ import annotations

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import NOT_FINITE, Region, RegionCodec, choice, integer, register
from gqallreduce.coding.layout import MERGED_MOST, Grid, Span
from gqallreduce.coding.preparing import Prepared


@register
class Adaptive(RegionCodec):
    """Send exactly max(1, n // pi) nonzero values, fewer if fewer exist, each as the mean of its sign in its column.

    Of the n values of a vector, or with scope=column of those of each column; the means are those of the sent values.

    pi
        the proportion: one value in pi is sent. pi=1 sends every nonzero value.
    scope
        matrix: the largest of the rank's whole vector (the poster's rule; a re-encoded partial sum selects within
        the range at hand); column: the largest of each column.
    signs
        joint: by magnitude alone; separate: the number is split in proportion to the counts of each sign.
    column
        shorter columns of a matrix are joined until they have so many elements; 1: each has means of its own.
    coding
        fixed: 16 bits per sent value; golomb: Golomb-Rice codes of the gaps between sent values.
    Ties are broken by memory order. What is not sent decodes to zero: use it with error feedback.
    Error: for given regions the column means minimise the squared error; |v|^2 is left of each value not sent.
    Cost: 2 bytes per sent value + 12 bytes per column + 4 per block; the ratio tends to 2 pi. With coding=golomb about
    log2(pi) + 2.5 bits per sent value + 12 bytes per column + 9 per block; device arrays go through host memory.
    Source: Dryden, Moon, Jacobs and Van Essen, MLHPC 2016; poster LLNL-POST-729415; differs: exact selection and exact
    means (no sampling), decode overwrites the whole chunk, ties bounded, so that replicas agree and nothing is lost.
    """

    pi: int = 64
    scope: str = "matrix"
    signs: str = "joint"
    column: int = 1024
    coding: str = "fixed"

    name = "adaptive"
    source = "Dryden et al., MLHPC 2016; poster LLNL-POST-729415"
    example = "direct/adaptive(pi=64)/ef"
    deterministic = batches = True
    omega = 1.0

    def __post_init__(self):
        integer(self, "pi", 1, 2**31 - 1)
        choice(self, "scope", "matrix", "column")
        choice(self, "signs", "joint", "separate")
        integer(self, "column", 1, MERGED_MOST)
        choice(self, "coding", "fixed", "golomb")

    @property
    def host_only(self) -> bool:
        return self.coding == "golomb"

    @property
    def prepares(self) -> bool:
        return self.scope == "matrix"

    def grid(self, columns: Grid) -> Grid:
        return columns.merged(self.column)

    def nbytes_bound(self, regions: list[Region]) -> int:
        return self._nbytes(regions, max((max(1, region.total // self.pi) for region in regions), default=0))

    def nbytes_usual(self, regions: list[Region]) -> int:
        """The regions have the same share of the sent values as of all values."""
        return self._nbytes(regions, max(1, sum(region.size for region in regions) // self.pi))

    def _nbytes(self, regions: list[Region], most: int) -> int:
        """The most bytes of regions if at most so many values are sent; with scope=column as many as columns send."""
        if self.scope == "column":
            most = sum(region.units * self._column_share(region) for region in regions)
        nbytes = sum(12 * region.units + 4 for region in regions) + 2 * min(sum(each.size for each in regions), most)
        if self.coding == "golomb":
            nbytes += sum(_kernels.golomb_bound(region.table, 0) for region in regions)
        return nbytes

    @property
    def prepare(self):
        """Of own values, the largest of each tensor; of partial sums, of a piece."""
        return self._select if self.prepares else None

    def _select(self, parts):
        selected = yield from self.arithmetic.select_largest(parts, self.pi, self.signs == "separate")
        return Prepared(self, selected)

    def coder(self):
        separate, of_columns, golomb = self.signs == "separate", self.scope == "column", self.coding == "golomb"
        return _kernels.adaptive_coder(self.pi, separate, of_columns, golomb)

    def encode(self, x, residual, new_residual, wire, region: Region, stream=None, selected=None) -> int:
        if selected is None:
            separate = self.signs == "separate"
            selected = self.arithmetic.select_columns(x, residual, new_residual, region, self.pi, separate)
        if self.coding == "fixed":
            return self.arithmetic.adaptive_encode(selected, x, new_residual, wire, region)
        message = np.empty(_kernels.adaptive_nbytes(region.table, selected.index.size), np.uint8)
        nbytes = self.arithmetic.adaptive_encode(selected, x, new_residual, message, region)
        return nbytes if nbytes == NOT_FINITE else _kernels.golomb_encode(message[:nbytes], wire, region.table)

    def decode(self, wire, y, region: Region, scale: float = 1.0, streaming: bool = False) -> int:
        return self._decode(wire, y, region, scale, False, streaming)

    def decode_add(self, wire, y, region: Region) -> int:
        return self._decode(wire, y, region, 1.0, True, False)

    def _decode(self, wire, y, region, scale, add, streaming) -> int:
        if self.coding == "fixed":
            return self.arithmetic.adaptive_decode(wire, y, region, scale, add, streaming)
        message, nbytes = _kernels.golomb_decode(wire, region.table)
        self.arithmetic.adaptive_decode(message, y, region, scale, add, streaming)
        return nbytes

    def entries(self, payload, extents: list[Span]) -> int:
        if self.coding == "fixed":
            return (len(payload) - sum([12 * extent.units + 4 * len(extent.regions) for extent in extents])) // 2
        entries = at = 0
        for extent in extents:
            found, nbytes = _kernels.golomb_entries(payload[at:], extent.table)
            entries, at = entries + found, at + nbytes
        return entries

    def _column_share(self, region: Region) -> int:
        return max(1, region.grid.tallest() // self.pi)

"""Selection of the k largest magnitudes of a range on a device: selection.py's result, found without waiting."""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.cuda import adaptive
from gqallreduce.backends.cuda.adaptive import Columns
from gqallreduce.errors import Error

_MOST = 1 << 32


class Selection(list):
    """The Columns kept of each part; `of` a piece, of the piece's units; `release()` gives the memory back."""

    def __init__(self, columns: Columns, firsts: list[int], kept, release):
        super().__init__(kept)
        self._columns, self._firsts, self.release = columns, firsts, release

    def of(self, piece) -> list[Columns]:
        begin, end = self._firsts[piece.first], self._firsts[piece.first + len(piece.regions)]
        return [self._columns.part(begin, end)] if piece.regions else []


def select_largest(arithmetic, parts, pi: int, separate: bool, workspace):
    """As selection.select_largest, of less than 2^32 values; a generator that needs no poll."""
    spans = parts.regions
    elements, units = sum(span.size for span in spans), sum(span.units for span in spans)
    if elements >= _MOST:
        raise Error(f"got {elements} values to select from on a GPU, expected fewer than 2^32: split the buffer")
    room = workspace.take(4 * Columns.words(units, separate))
    columns = Columns.of(room[: 4 * Columns.words(units, separate)].view(np.uint32), separate)
    firsts, kept = [0], []
    with arithmetic.search() as (search, table):
        adaptive.adaptive_search(arithmetic.launch, parts, pi, separate, search, table, arithmetic.ignored)
        for span, x, _, owing in parts:
            regions = arithmetic.columns(span)
            kept.append(columns.part(firsts[-1], firsts[-1] + span.units))
            v = x if owing is None else owing
            adaptive.adaptive_count(arithmetic.launch, v, span, regions, search, kept[-1])
            for region in span.regions:
                firsts.append(firsts[-1] + region.units)
    yield
    return Selection(columns, firsts, kept, lambda: workspace.give(room))

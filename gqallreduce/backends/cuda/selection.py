"""Selection of the k largest magnitudes of a range on a device: selection.py's result, found without waiting."""

from __future__ import annotations

import itertools

import numpy as np

from gqallreduce.backends.cuda import adaptive
from gqallreduce.backends.cuda.adaptive import Columns, Part, listed_size
from gqallreduce.backends.cuda.launching import first_units
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


def select_largest(arithmetic, parts, pi: int, separate: bool):
    """As selection.select_largest, of less than 2^32 values; a generator that needs no poll."""
    spans, workspace = parts.regions, parts.workspace
    elements, units = sum(span.size for span in spans), sum(span.units for span in spans)
    if elements >= _MOST:
        raise Error(f"got {elements} values to select from on a GPU, expected fewer than 2^32: split the buffer")
    room = workspace.take(4 * Columns.words(units, separate))
    columns = Columns.of(room[: 4 * Columns.words(units, separate)].view(np.uint32), separate)
    begins = list(itertools.accumulate((span.units for span in spans), initial=0))
    kept = [columns.part(*ends) for ends in itertools.pairwise(begins)]
    with arithmetic.search(sum(map(listed_size, spans))) as (search, table, listed):
        places, at = [], 0
        for span, mine in zip(spans, kept, strict=True):
            places.append(Part(span, arithmetic.columns(span), mine, listed[at : at + listed_size(span)]))
            at += listed_size(span)
        if places:
            adaptive.adaptive_search(arithmetic.launch, parts, places, pi, search, table, arithmetic.ignored)
        for place, (_, x, _, new_residual) in zip(places, parts, strict=True):
            adaptive.adaptive_count(arithmetic.launch, x if new_residual is None else new_residual, place, search)
    firsts = [0]  # found after the launches: there may be many regions
    for begin, span in zip(begins, spans, strict=False):
        firsts += [begin + first for first in first_units(span, "units before", adaptive.units)[1:]]
    yield
    return Selection(columns, firsts, kept, lambda: workspace.give(room))

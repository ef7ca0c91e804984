"""Several small tensors of a call that are worked on together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.layout import BatchPiece, Piece, Span
from gqallreduce.coding.preparing import Parts, Prepared
from gqallreduce.runtime.values import Values, fit

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Batch:
    """All tensors, for extents that hold regions of several small ones: they are put end to end in scratch memory."""

    direct = False
    working = np.dtype(np.float32)

    def __init__(self, operation: Operation, tensors: list[Values]):
        self._operation, self._tensors = operation, tensors
        self._prepared: dict[int, Prepared] = {}  # block -> of its tensors
        self._coders: dict[int, object] = {}
        for together in operation.plan.batched.values():
            for number in together.numbers:
                tensors[number].batch = self
        self._sources = [_float32(tensor.source.flat) for tensor in tensors]
        self._targets = [_float32(tensor.target.flat) for tensor in tensors]
        self._plain = all(each is not None for each in self._sources + self._targets)
        self._residuals = self._new_residuals = None
        if operation.feeds_back:
            if not operation.derived:
                self._residuals = [tensor.residual for tensor in tensors]
            self._new_residuals = [tensor.new_residual for tensor in tensors]

    def codec_of(self, extent: Span):
        codec, _ = self.prepared_of(self._tensors[extent.segment])
        return codec

    def prepared_of(self, tensor: Values) -> tuple:
        """(codec, what is selected of own values or None) of a tensor."""
        found = self._prepared.get(tensor.tensor.block)
        return (tensor.codec, None) if found is None else (found.codec, found.selected)

    def coder_of(self, tensor: Values):
        """One for all tensors of a block, whose codec has been prepared together."""
        codec, selected = self.prepared_of(tensor)
        if codec is tensor.codec:
            return fit(tensor.tensor.coder, selected)
        block = tensor.tensor.block
        if block not in self._coders:
            self._coders[block] = fit(codec.coder(), selected)
        return self._coders[block]

    def _others(self, extent: Span, arrays: list):
        """(tensor, region, slice of the extent's arrays) of regions that are none of these float32 vectors."""
        return () if self._plain else (each for each in self._each(extent) if arrays[each[1].segment] is None)

    def _each(self, extent: Span):
        at = 0
        for region in extent.regions:
            yield self._tensors[region.segment], region, slice(at, at + region.size)
            at += region.size

    def own(self, extent) -> tuple:
        x, residual = self._scratch(0, extent), None
        _kernels.gather(self._sources, extent.table, x)
        for tensor, region, here in self._others(extent, self._sources):
            tensor.load(region, x[here])
        if self._residuals is not None:
            residual = self._scratch(2, extent)
            _kernels.gather(self._residuals, extent.table, residual)
        return x, residual

    def _scratch(self, which: int, extent: Span):
        return self._operation.scratch(which, extent.size, self.working)

    def prepare(self, together):
        """What `Codec.prepare` gives for the tensors of a block."""

        def load(extent):
            return *self.own(extent), self.errors(extent)

        known = self._operation.workspace, together.whole, None, self._operation.plan.rank, self._operation.plan.size
        return self.codec_of(together.whole).prepare(Parts([together.cut], load, *known))

    def prepared(self, together, found: Prepared) -> None:
        """Selecting has written the new residuals of whole tensors."""
        self._prepared[together.block] = found
        if found.selected is not None:
            self.keep(together.whole, self.errors(together.whole))

    def selected(self, piece: Piece | BatchPiece) -> list | None:
        """Of a batch of pieces, or of a piece alone."""
        found = self._prepared.get(self._tensors[piece.parts[0].tensor].tensor.block)
        return None if found is None or found.selected is None else found.selected.of(piece)

    def errors(self, extent, known: bool = False):
        if self._new_residuals is None:
            return None
        errors = self._scratch(3, extent)
        if known:
            _kernels.gather(self._new_residuals, extent.table, errors)
        return errors

    def keep(self, extent, errors) -> None:
        if errors is not None:
            _kernels.scatter(errors, self._new_residuals, extent.table)

    def store(self, extent, y, place) -> bool | None:
        rounded, arithmetic = self._scratch(0, extent), self._operation.arithmetic
        arithmetic.multiply(y, self._operation.plan.scale, rounded)
        _kernels.scatter(rounded, self._targets, extent.table)
        flawed = arithmetic.not_finite(rounded)
        for tensor, region, here in self._others(extent, self._targets):
            mine = (each for each in extent.piece.parts if each.tensor == region.segment)
            (piece,) = (each for each in mine if each.start <= region.start < each.stop)
            flawed = tensor.store_scaled(region, piece, y[here], rounded[here], place) or flawed
        return flawed

    def parts(self, extent):
        for _, region, here in self._each(extent):
            part = Span([region])
            part.piece = extent.piece
            yield part, here

    def load_result(self, extent, y) -> None:
        for tensor, region, here in self._each(extent):
            tensor.load_result(region, y[here])

    def locate(self, extent, where) -> int:
        for tensor, region, here in self._each(extent):
            mine = where[(where >= here.start) & (where < here.stop)]
            if len(mine):
                return tensor.locate(region, mine - here.start)
        raise AssertionError("no element is named")


def _float32(flat):
    return flat if flat is not None and flat.dtype == np.float32 else None

"""The tensors of a call: a rank's own values, its residual before and after, and the memory of the result.

An extent is a part of one tensor, or of a batch of small ones; both are asked for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.indirect import ALL_ALIKE, ALONE
from gqallreduce.coding.layout import BatchPiece, Piece, Region, Span, of
from gqallreduce.coding.preparing import Parts, Prepared
from gqallreduce.hashing import hash64

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation


class Values:
    """One tensor.

    source, target
        Buffers: where the rank's values are, where the result goes; the same memory in an in-place call.
    residual, new_residual
        before and after the call; None without feedback.
    codec
        bound, and as prepared for this call.
    number, step
        what its random streams are made of.
    learned
        what the State of the key holds, before the call or, once the codec is prepared, after it.
    working
        the dtype of running values.
    direct
        do running values lie in the memory of the result?
    batch
        the Batch that it is part of, None if it is worked on alone.
    """

    __slots__ = (
        "_locate", "_operation", "_selection", "batch", "codec", "direct", "learned", "new_residual", "number",
        "residual", "source", "step", "target", "tensor", "working",
    )  # fmt: skip

    def __init__(self, operation: Operation, tensor, given):
        self._operation, self.tensor, self.codec = operation, tensor, tensor.codec
        self.source, self.target, self.residual, self.new_residual = given[:4]
        self.working, self.batch = self.codec.working, None
        self.direct = self.target.flat is not None and self.target.flat.dtype == self.working
        self.learned, self.number, self.step = given.learned, given.stream, given.step & frame.LARGEST_STEP
        self._selection, self._locate = None, given.locate

    def codec_of(self, extent: Span):
        return self.codec if self.batch is None else self.batch.codec_of(extent)

    @property
    def coder(self):
        """For the runtime in C++; None if Python must encode."""
        codec, selected = self.codec, self._selection
        if self.batch is not None:
            codec, selected = self.batch.prepared_of(self)
        coder = self.tensor.coder if codec is self.tensor.codec else codec.coder()
        return coder if coder is None or coder.selects == (selected is not None) else None

    # --- own values ---

    def own(self, extent) -> tuple:
        """(x, residual): this rank's own values of an extent and its residual there; x may be scratch 0."""
        return self.values_of(self.source, extent.start, extent.start + extent.size), of(self.residual, extent)

    def values_of(self, buffer, start: int, stop: int):
        """Elements [start, stop) of a Buffer as they are worked on: its own memory, or scratch 0."""
        flat = buffer.flat
        if flat is not None and flat.dtype == self.working:
            return flat[start:stop]
        x = self._operation.scratch(0, stop - start, self.working)
        buffer.load(start, stop, x)
        return x

    def load(self, region: Region, x) -> None:
        """x := own values of a region."""
        self.source.load(region.start, region.start + region.size, x)

    def prepare(self):
        """What `Codec.prepare` gives for the tensor: all of it at once if that is allowed, or if a device has it so."""
        if self.codec.prepare is None:
            return None
        flat, tensor, plan, whole = self.source.flat, self.tensor, self._operation.plan, None
        extents = tensor.extents
        if tensor.together is not None:
            extents, whole = [tensor.together], tensor.whole
        elif flat is None or flat.dtype != self.working:
            extents = [each for lane in tensor.pieces for piece in lane for each in piece.extents] or extents
        known = self._operation.workspace, whole, self.learned or {}, plan.rank, plan.size, self.number
        stream = self._operation.stream_of(tensor.number, ALL_ALIKE[0], ALONE + plan.rank)
        known = *known, stream, sum(map(len, tensor.pieces))
        return self.codec.prepare(Parts(extents, lambda at: (*self.own(at), of(self.new_residual, at)), *known))

    def prepared(self, found: Prepared) -> None:
        self.codec, self._selection = found.codec, found.selected
        self._operation.spent.also(found.reason)
        if found.learned is not None:
            self.learned = found.learned
        if found.mark:
            self._operation.mark(hash64(self.tensor.number, found.mark))

    def selected(self, piece: Piece) -> list | None:
        """What of a piece of own values is encoded, chosen within the whole tensor; None for all."""
        if self.batch is not None:
            return self.batch.selected(piece)
        return None if self._selection is None else self._selection.of(piece)

    def release(self) -> None:
        """The call is over. It refers to no Batch any more, which refers to it."""
        self.batch = None
        if self._selection is not None:
            self._selection.release()
            self._selection = None

    # --- the new residual ---

    def errors(self, extent, known: bool = False):
        """Where the error of an encoding is written, None without feedback; then `keep` it. `known`: to be read too."""
        return of(self.new_residual, extent)

    def keep(self, extent, errors) -> None:
        """The error of an encoding has been written."""

    def add_error(self, begin: int, stop: int, error) -> None:
        """Add to the new residual of elements [begin, stop)."""
        self._operation.arithmetic.accumulate(error, self.new_residual[begin:stop])

    # --- the result ---

    def memory(self, piece: Piece):
        """The result's memory of a piece, for one that is `direct`."""
        return self.target.flat[piece.start : piece.stop]

    def store(self, extent, y, place) -> bool | None:
        """Store an extent of a finished sum; is a value not finite? What a 16-bit buffer loses is one more error."""
        rounded = self._operation.scratch(0, extent.size, self.working)
        self._operation.arithmetic.multiply(y, self._operation.plan.scale, rounded)
        return self.store_scaled(extent, extent.piece, y, rounded, place)

    def store_scaled(self, region, piece: Piece, y, rounded, place) -> bool | None:
        """Store a region of a piece. y: the sum; rounded: y times the scale, overwritten here."""
        flawed = self.target.store(region.start, region.start + region.size, rounded)
        if self.tensor.narrow and self.new_residual is not None:
            self._keep_rounding(region, piece, y, rounded, place)
        return flawed

    def _keep_rounding(self, region, piece: Piece, y, rounded, place) -> None:
        """Add this rank's share of what the buffer lost of y to the residual. Worthless if it is not finite."""
        plan, begin, stop = self._operation.plan, region.start, region.start + region.size
        error_holders = plan.schedule.error_holders(place[1], plan.size)
        if plan.rank not in error_holders:
            return
        low, high = piece.share(error_holders.index(plan.rank), len(error_holders))
        low, high = max(low, begin), min(high, stop)
        if low < high:
            arithmetic = self._operation.arithmetic
            self.target.load(begin, stop, rounded)
            back = rounded[low - begin : high - begin]
            arithmetic.multiply(back, 1.0 / plan.scale, back)
            arithmetic.subtract(y[low - begin : high - begin], back, back)
            self.add_error(low, high, back)

    def load_result(self, extent, y) -> None:
        """y := what has been stored of an extent."""
        self.target.load(extent.start, extent.start + extent.size, y)

    def parts(self, extent):
        """(extent of one region, slice of the extent's arrays): what a call on its tensor alone encodes at once."""
        return [(extent, slice(0, extent.size))]

    def locate(self, extent, where) -> int:
        """The number of the first, in C order, of some elements of an extent, among those of all tensors."""
        elements = extent.start + where
        return self._locate(elements) if self._locate else self.tensor.begin + self.source.c_index(elements)


class Batch:
    """All tensors, for extents that hold regions of several small ones: they are put end to end in scratch memory."""

    direct = False
    working = np.dtype(np.float32)

    def __init__(self, operation: Operation, tensors: list[Values]):
        self._operation, self._tensors = operation, tensors
        self._prepared: dict[int, Prepared] = {}  # block -> of its tensors
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
            (piece,) = (each for each in extent.piece.parts if each.tensor == region.segment)
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

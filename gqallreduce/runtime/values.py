"""The tensors of a call: a rank's own values, its residual before and after, and the memory of the result.

An extent is a part of one tensor, or of a batch of small ones; both are asked for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gqallreduce.coding import frame
from gqallreduce.coding.indirect import ALL_ALIKE, ALONE
from gqallreduce.coding.lanes import in_order
from gqallreduce.coding.layout import Piece, Region, Span, of
from gqallreduce.coding.preparing import Parts, Prepared

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
        if self.batch is not None:
            return self.batch.coder_of(self)
        return fit(self.tensor.coder if self.codec is self.tensor.codec else self.codec.coder(), self._selection)

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
            extents = [each for piece in in_order(tensor.pieces) for each in piece.extents] or extents
        known = self._operation.workspace, whole, self.learned or {}, plan.rank, plan.size, self.number
        stream = self._operation.stream_of(tensor.number, ALL_ALIKE[0], ALONE + plan.rank)
        known = *known, stream, sum(map(len, tensor.pieces))
        return self.codec.prepare(Parts(extents, lambda at: (*self.own(at), of(self.new_residual, at)), *known))

    def prepared(self, found: Prepared) -> None:
        self.codec, self._selection = found.codec, found.selected
        self._operation.spent.also(found.reason)
        if found.learned is not None:
            self.learned = found.learned
        self._operation.mark(self.tensor.number, found.mark)

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
        error_holders = plan.error_holders(place[1])
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


def fit(coder, selected):
    """The coder; None too if the coder needs a selection and there is none, or the reverse."""
    return coder if coder is None or coder.selects == (selected is not None) else None

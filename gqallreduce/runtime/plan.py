"""A Plan: all that follows from schedule, codec, topology, rank and the buffers' forms before a call. Never changed."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np

from gqallreduce.coding import frame
from gqallreduce.coding.lanes import LANES_MOST, in_order, lanes_of, pieces
from gqallreduce.coding.layout import BatchPiece, Form, Grid, Piece, Region, Span, columns
from gqallreduce.coding.preparing import Prepared
from gqallreduce.coding.selection import SMALL
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime.native import program_of
from gqallreduce.runtime.scales import Scales
from gqallreduce.scheduling.halves import half_of
from gqallreduce.scheduling.instructions import Encode, Join, Post, Transmit, as_coded, instructions, rounds
from gqallreduce.scheduling.schedule import ALLGATHER
from gqallreduce.scheduling.topology import Topology

LIVE_LEAST = 1 << 18
LIVE_SHARE = 0.75
TOGETHER_MOST = 1 << 16  # elements of such tensors together
BATCH_MOST = 1 << 14  # elements of a tensor that is worked on together with others; at most SMALL


class Tensor:
    """One buffer of a Plan.

    number
        of the buffer in the call.
    begin
        of its first element in the numbers by which ranks tell each other elements: all tensors end to end.
    extents
        of its regions in order, for what looks at the whole tensor.
    exact
        the codec of what is encoded without loss.
    coder
        of its codec, for the runtime in C++; None if it has none.
    narrow
        has the buffer values of 16 bits? Then rounding the result is one more error.
    together, whole
        Spans over the whole tensor, of its regions and of one region, if one kernel call can select from it; else None.
    batches
        may it be worked on together with others?
    block
        the number of the tensors that it may be worked on with; None if it is worked on alone.
    """

    def __init__(self, number: int, form: Form, begin: int, codec, cut: list[list[Piece]], processor):
        self.number, self.form, self.begin, self.codec, self.pieces = number, form, begin, codec, cut
        regions = [region for piece in in_order(cut) for region in piece.regions]
        self.extents: list[Span] = processor.extents(regions)
        self.together = self.whole = self.block = None
        self.batches = codec.batches and not codec.learns
        if regions and processor.batches and self.batches and form.size <= SMALL:
            self.together, self.whole = Span(regions), Span([Region(0, form.size, Grid(1), form.size, number)])
        wide = codec.working != np.dtype(np.float32)
        self.exact = codec if wide else CODECS["raw"]().knowing(arithmetic=processor.arithmetic)
        self.coder = codec.coder()
        self.narrow = form.dtype in ("float16", "bfloat16")


class Plan:
    """Of one rank, for buffers of these forms in the memory of one processor; any number of calls run on it at once.

    tensors
        the buffers, one or several.
    half
        REDUCE_SCATTER or ALLGATHER, if it is one; None for all of an allreduce.
    program
        the rank's instructions, alike for every lane.
    pieces
        pieces[lane][chunk]: a Chunk, with a piece of each tensor in the lane.
    lanes_at_once
        how many lanes may be under way, so that their messages stay below 0.75 of the vector in float32 (or 256 KiB).
    live
        bytes of their messages at most.
    messages, longest
        the most messages that a lane has under way at once in one direction; the most bytes of one.
    borders
        of each tensor, if its codec moves them: between its pieces, empty for equal ones. Else None.
    widest
        elements of the largest extent.
    batched
        block -> the tensors of which several are worked on at once.
    """

    def __init__(
        self, schedule, codec, rank, topology: Topology, forms: tuple[Form, ...], average, processor, borders=None,
        half=None,
    ):  # fmt: skip
        size, self.borders, self.half = topology.size, borders, half
        self.schedule, self.rank, self.size = half_of(SCHEDULES[schedule], half), rank, size
        self.processor = processor
        self.topology, self.program = topology, instructions(self.schedule, rank, topology)
        chunks, self.tensors, begin = self.schedule.chunks(topology), [], 0
        # With borders that move every message has room for the whole vector, so more lanes save no memory.
        held = 0 if borders is not None else self.schedule.held(topology)
        for number, form in enumerate(forms):
            bound = codec.bind(form, size, processor.arithmetic)
            shape, order, _ = form.kept
            grid, mine = bound.grid(columns(shape, order)), None if borders is None else borders[number]
            cut = pieces(
                form.size, chunks, grid, bound.nbytes_bound, number, mine, bound.nbytes_in_lanes, form.counts, held
            )
            self.tensors.append(Tensor(number, form, begin, bound, cut, processor))
            begin += form.size
        self.codec = self.tensors[0].codec  # all are of one class, but for their dtypes
        if self.codec.of_sums.exact:
            self.program = as_coded(self.program)
        self._number_blocks()
        self.pieces = lanes_of([tensor.pieces for tensor in self.tensors], self._batched, held)
        everything = [chunk for lane in self.pieces for chunk in lane]
        for chunk in everything:
            chunk.work_on(processor.extents)
            parts = [part for piece in chunk.pieces for part in piece.parts]
            chunk.exact_bound = sum(self.tensors[part.tensor].exact.nbytes_bound(part.regions) for part in parts)
        self.batched = self._members(everything)
        self.widest = max((extent.size for chunk in everything for extent in chunk.extents), default=0)
        self.scale = 1.0 / size if average else 1.0
        self.rounds = rounds(self.program)
        self.messages = max(max(_count(each, Post), _count(each, Transmit)) for each in self.rounds)
        buffers = [_buffers(found) for found in self.rounds]
        kinds = set().union(*buffers)
        self.longest = max((self.bound(lane, wires) for lane in range(self.lanes) for wires in kinds), default=0)
        room = max(LIVE_LEAST, LIVE_SHARE * np.dtype(np.float32).itemsize * begin)
        live = max([1, *(self._most_live(lane, buffers) for lane in range(self.lanes))])
        self.lanes_at_once = max(1, int(room // live)) if self.lanes <= LANES_MOST else 1
        self.live = min(self.lanes_at_once, self.lanes) * live

    @property
    def lanes(self) -> int:
        return len(self.pieces)

    @cached_property
    def native(self):
        """As the runtime in C++ reads it; None if Python must carry it out."""
        return program_of(self)

    @cached_property
    def selects_natively(self) -> bool:
        """Does the runtime in C++ choose what is encoded of own values?"""
        if self.native is None or self.codec.learns:
            return False
        return all(tensor.coder is not None and tensor.coder.selects for tensor in self.tensors)

    @property
    def encodes_own(self) -> bool:
        """Are own values encoded, or rounded, as such? An allgather takes them as a sum."""
        return self.half != ALLGATHER or self.size == 1

    @cached_property
    def selects_own(self) -> bool:
        """Must it choose them, for an encoding of own values or a sum that begins with what is sent of them?"""
        exact = self.codec.of_sums.exact
        encodes = any(isinstance(each, Encode) and each.own and not each.exact for each in self.program)
        return self.selects_natively and (encodes or exact)

    @cached_property
    def exact_coder(self):
        """Of what is encoded without loss, for the runtime in C++."""
        return CODECS["raw"]().coder()

    def error_holders(self, chunk: int):
        """The ranks that add a slice of the error of a chunk's last rounding to their residual."""
        return self.schedule.error_holders(chunk, self.topology)

    @cached_property
    def prepares(self) -> bool:
        """Must something be found out in Python before the first encoding of a call?"""
        return self.codec.prepare is not None and not self.selects_natively and self.encodes_own

    @cached_property
    def scales(self) -> Scales | None:
        """Of calls that the runtime in C++ carries out, once ranks have agreed on a scale of each tensor; else None."""
        if self.native is None or self.codec.shared_scale is None:
            return None
        return Scales.of(self.codec, self.scale_order)

    @cached_property
    def scale_order(self) -> list[int]:
        """Tensors in the order in which ranks tell each other their scales."""
        together = [number for each in self.batched.values() for number in each.numbers]
        return [number for number in range(len(self.tensors)) if number not in set(together)] + together

    @cached_property
    def runs(self) -> bool:
        """Does the runtime in C++ carry a call out, and Python finds nothing out before or after it?"""
        return self.native is not None and not self.prepares and not self.codec.learns

    in_stages = False  # as an IndirectPlan

    @cached_property
    def repeats(self) -> bool:
        """Can the next call be carried out at once (repeated.py)? Only with arrays on the host."""
        return (self.runs or self.scales is not None or self.recalls) and self.processor.batches

    @cached_property
    def recalls(self) -> bool:
        """Does the runtime in C++ carry those calls out for which what the keys have learned is enough?"""
        return self.native is not None and self.prepares and self.codec.known is not None

    def known(self, learned) -> list[Prepared] | None:
        """Of each tensor what its codec finds out from what its key has learned; None if one must look at values or ask
        other ranks."""
        found = []
        for tensor, each in zip(self.tensors, learned, strict=True):
            prepared = tensor.codec.known(each)
            if prepared is None:
                return None
            found.append(prepared)
        return found

    def bound(self, lane: int, wires) -> int:
        """The most bytes of a message of these wires."""
        pieces, found = self.pieces[lane], 0
        for chunk, _, exact in wires:
            found += frame.SIZE + (pieces[chunk].exact_bound if exact else pieces[chunk].bound)
        return found

    def _most_live(self, lane: int, buffers: list[Counter]) -> int:
        """Bytes of a lane's messages: all chunks not taken yet, and its widest round's rooms and joined sends."""
        widest = max(sum(self.bound(lane, wires) * count for wires, count in found.items()) for found in buffers)
        return widest + sum(frame.SIZE + chunk.bound for chunk in self.pieces[lane])

    def _number_blocks(self) -> None:
        """Small tensors of one codec that follow each other, up to so many elements, are a block."""
        block, room, codec = -1, 0, None
        for tensor in self.tensors if len(self.tensors) > 1 and self.processor.batches else ():
            size = tensor.form.size
            if tensor.batches and 0 < size <= BATCH_MOST:
                if size > room or tensor.codec != codec:
                    block, room, codec = block + 1, TOGETHER_MOST, tensor.codec
                tensor.block, room = block, room - size

    def _batched(self, found: list[Piece]) -> list[Piece | BatchPiece]:
        """Pieces of a chunk, those of tensors of a block joined."""
        made: list = []
        for piece in found:
            block = self.tensors[piece.tensor].block
            if block is None:
                made.append(piece)
            elif piece.size:
                last = made[-1] if made else None
                if isinstance(last, list) and self.tensors[last[0].tensor].block == block:
                    last.append(piece)
                else:
                    made.append([piece])
        return [each if isinstance(each, Piece) else each[0] if len(each) == 1 else BatchPiece(each) for each in made]

    def _members(self, chunks) -> dict[int, Together]:
        batches = [piece for chunk in chunks for piece in chunk.pieces if isinstance(piece, BatchPiece)]
        blocks: dict[int, set[int]] = {}
        for number in {part.tensor for batch in batches for part in batch.parts}:
            blocks.setdefault(self.tensors[number].block, set()).add(number)
        return {block: Together(self.tensors, sorted(members)) for block, members in sorted(blocks.items())}


class Together:
    """The tensors of a block of which a BatchPiece holds a piece, end to end: what is sent of them is selected at once.

    whole, cut
        Spans: a region for each tensor; the regions of their pieces.
    numbers, block
        of the tensors, and of the block.
    """

    def __init__(self, tensors: list[Tensor], numbers: list[int]):
        self.numbers, self.block = numbers, tensors[numbers[0]].block
        self.whole = Span([region for number in numbers for region in tensors[number].whole.regions])
        self.cut = Span([region for number in numbers for region in tensors[number].together.regions])


def _holds(instruction) -> bool:
    """Does a message of several chunks, or one that arrives, get a buffer here?"""
    return isinstance(instruction, (Post, Join))


def _buffers(found) -> Counter:
    """How many messages of a round get a buffer, by their wires; who made these does not change their size."""
    return Counter(tuple(wire._replace(author=0) for wire in each.wires) for each in found if _holds(each))


def _count(found, kind: type) -> int:
    return sum(isinstance(each, kind) for each in found)

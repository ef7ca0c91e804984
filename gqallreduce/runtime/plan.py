"""A Plan: all that follows from (schedule, codec, topology, rank, shape, order, dtype) before a call. Never changed."""

from __future__ import annotations

import math

import numpy as np

from gqallreduce.coding import frame
from gqallreduce.coding.layout import columns, pieces
from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.instructions import Join, Post, Transmit, instructions, rounds
from gqallreduce.scheduling.topology import Topology

LIVE_LEAST = 1 << 18
LIVE_SHARE = 0.75


class Plan:
    """Of one rank, for buffers of one form in the memory of one processor; any number of calls run on it at once.

    program
        the rank's instructions, alike for every lane.
    pieces
        pieces[lane][chunk] of the vector.
    lanes_at_once
        how many lanes may be under way, so that their messages stay below 0.75 of the vector in float32 (or 256 KiB).
    messages, longest
        the most messages that a lane has under way at once in one direction; the most bytes of one.
    widest
        elements of the largest extent.
    """

    def __init__(self, schedule, codec, rank, topology: Topology, shape, order, dtype, average, processor):
        size = topology.size
        self.schedule, self.codec = SCHEDULES[schedule], codec.bind(dtype, size).on(processor.arithmetic)
        self.rank, self.size, self.processor = rank, size, processor
        self.program = instructions(self.schedule, rank, topology)
        grid = self.codec.grid(columns(shape, order))
        self.pieces = pieces(math.prod(shape), self.schedule.chunks(size), grid, self.codec.nbytes_bound)
        everything = [piece for lane in self.pieces for piece in lane]
        self.extents = processor.extents([region for piece in everything for region in piece.regions])
        for piece in everything:
            piece.extents = processor.extents(piece.regions)
        self.widest = max((extent.size for piece in everything for extent in piece.extents), default=0)
        self.short = dtype in ("float16", "bfloat16")
        self.scale = 1.0 / size if average else 1.0
        self.rounds = rounds(self.program)
        self.messages = max(max(_count(each, Post), _count(each, Transmit)) for each in self.rounds)
        lengths = [self.bound(lane, each.wires) for lane in range(self.lanes) for each in self.program if _holds(each)]
        self.longest = max(lengths, default=0)
        room = max(LIVE_LEAST, LIVE_SHARE * np.dtype(np.float32).itemsize * math.prod(shape))
        self.lanes_at_once = max(1, int(room // max([1, *map(self._most_live, range(self.lanes))])))

    @property
    def lanes(self) -> int:
        return len(self.pieces)

    def bound(self, lane: int, wires) -> int:
        """The most bytes of a message of these wires."""
        return sum(frame.SIZE + self.pieces[lane][wire.chunk].bound for wire in wires)

    def _most_live(self, lane: int) -> int:
        """Bytes of a lane's messages: all chunks not taken yet, and its widest round's rooms and joined sends."""
        widest = max(sum(self.bound(lane, each.wires) for each in found if _holds(each)) for found in self.rounds)
        return widest + sum(frame.SIZE + piece.bound for piece in self.pieces[lane])


def _holds(instruction) -> bool:
    """Does a message of several chunks, or one that arrives, get a buffer here?"""
    return isinstance(instruction, (Post, Join))


def _count(found, kind: type) -> int:
    return sum(isinstance(each, kind) for each in found)

"""How many lanes a call has, and which pieces of its tensors lie in each.

Lanes run the same schedule side by side, so that a rank works on one while it waits for another. Where a rank holds the
messages of many others at a time, there are as many lanes as keep these below a limit; more than 8 run one by one.
"""

from __future__ import annotations

import bisect
import itertools
import math

from gqallreduce.coding.layout import Chunk, Grid, Piece, Region, cut

LANE_BYTES = 128 << 10
LANES_MOST = 8  # that may be under way together
LANES_IN_TURN = 256  # of a call at most: a header has one byte for the lane
HELD_LEAST, HELD_SHARE = 16 << 20, 2
HELD_MESSAGE = 16 << 10


def lane_count(size: int, chunks: int, grid: Grid, nbytes, nbytes_bound=None, held: int = 0) -> int:
    """How many lanes: a message stays at least 128 KiB, but for `held`; pieces are not cut inside units for their sake.

    nbytes, nbytes_bound
        (regions) -> bytes of their message; the codec's `nbytes_in_lanes`, and `nbytes_bound` if that is another.
    held
        how many messages of one chunk a rank holds at a time; 0 if these never exceed twice the vector.
    """
    largest, bound = -(-size // chunks), nbytes_bound or nbytes
    wanted = min(nbytes([Region(0, largest, grid, size)]) // LANE_BYTES, LANES_MOST)
    if held:

        def of_one(lanes: int) -> int:
            return bound(Piece(0, -(-largest // lanes), grid, size).regions)

        wanted = max(wanted, lanes_in_turn(of_one, held, size))
    fitting = max(grid.count(0, size), chunks) // chunks
    return max(1, min(wanted, fitting))


def lanes_in_turn(nbytes, held: int, size: int) -> int:
    """How many lanes are needed so that the messages of one, of which a rank holds `held` at a time, are not too large.

    nbytes
        (lanes) -> bytes of a message of one lane, if there are so many lanes.
    size
        elements of the vector.
    They may take twice the vector in float32, or 16 MiB. A message is not made shorter than 16 KiB for that.
    """
    room, lanes = max(HELD_LEAST, HELD_SHARE * 4 * size), 1
    while lanes < LANES_IN_TURN and held * nbytes(lanes) > room:
        # A sparse message may have all its values in one lane, so twice the lanes need not halve it: hence the loop.
        more = min(max(lanes + 1, math.ceil(lanes * held * nbytes(lanes) / room)), LANES_IN_TURN)
        if nbytes(more) < HELD_MESSAGE:
            # As many more as leave it that long.
            return lanes + bisect.bisect_right(range(lanes + 1, more), -HELD_MESSAGE, key=lambda count: -nbytes(count))
        lanes = more
    return lanes


def chunks_of(size: int, chunks: int, grid: Grid, counts=None) -> list[int]:
    """chunks + 1 boundaries of a vector's chunks. `counts`: their elements; else they are nearly equal."""
    return cut(size, chunks, grid) if counts is None else [0, *itertools.accumulate(counts)]


def _cut_as_counted(counts, lanes: int, grid: Grid) -> list[int]:
    """Of chunks of so many elements: boundaries of each lane's pieces, between units."""
    bounds, begin = [], 0
    for count in counts:
        inside = [grid.boundary(grid.unit(begin + lane * count // lanes)) for lane in range(1, lanes)]
        bounds += [begin, *(max(begin, each) for each in inside)]
        begin += count
    return [*bounds, begin]


def pieces(
    size: int, chunks: int, grid: Grid, nbytes_bound, tensor: int = 0, borders=None, nbytes_in_lanes=None, counts=None,
    held: int = 0,
) -> list[list[Piece]]:  # fmt: skip
    """pieces[lane][chunk] of a tensor; `nbytes_bound(regions)` is the codec's.

    borders
        None: they are nearly equal, in every call. Else between two pieces, if there are as many; messages then have
        room for what any borders give, so that a rank with others is not met by a message that is too long.
    nbytes_in_lanes
        the codec's, by which lanes are counted; None for the bound.
    counts
        of the elements of each chunk, if they are given.
    held
        as in `lane_count`.
    """
    lanes = lane_count(size, chunks, grid, nbytes_in_lanes or nbytes_bound, nbytes_bound, held)
    bounds = cut(size, lanes * chunks, grid) if counts is None else _cut_as_counted(counts, lanes, grid)
    if borders is not None and len(borders) == lanes * chunks - 1:
        bounds = [0, *borders, size]
    flat = [Piece(start, stop, grid, size, tensor) for start, stop in itertools.pairwise(bounds)]  # in order
    first = 0
    for piece in flat:
        piece.bound, piece.first = nbytes_bound(piece.regions), first
        first += len(piece.regions)
    if borders is not None:
        most = nbytes_bound(Piece(0, size, grid, size).regions)
        for piece in flat:
            piece.bound = most
    return [flat[lane::lanes] for lane in range(lanes)]


def in_order(cut: list[list[Piece]]) -> list[Piece]:
    """The pieces of a tensor as they lie in the vector."""
    return [piece for chunk in zip(*cut, strict=True) for piece in chunk]


def lanes_of(tensors: list[list[list[Piece]]], batched, held: int = 0) -> list[list[Chunk]]:
    """chunks[lane][chunk] of a call, from the pieces of its tensors.

    A single tensor's lanes are the call's. Lanes of several tensors are put together, in order, until a message has
    128 KiB, or an eighth of all bytes; or fewer, if a rank holds many messages of a lane at a time (`lanes_in_turn`).
    `batched(pieces)` joins consecutive small pieces of one chunk to Batches.
    """
    if len(tensors) == 1:
        return [[Chunk([piece]) for piece in lane] for lane in tensors[0]]
    every = [lane for tensor in tensors for lane in tensor]
    weights = [sum(piece.bound for piece in lane) / len(lane) for lane in every]
    room, most = max(LANE_BYTES, sum(weights) / LANES_MOST), LANES_MOST
    size = sum(piece.size for lane in every for piece in lane)
    needed = lanes_in_turn(lambda lanes: sum(weights) / lanes, held, size) if held else 1
    if needed > max(1, sum(weights) / room):
        room, most = sum(weights) / needed, max(LANES_MOST, needed)
    groups: dict[int, list] = {}
    done = 0.0
    for lane, weight in zip(every, weights, strict=True):
        groups.setdefault(min(int((done + weight / 2) / room), most - 1), []).append(lane)
        done += weight
    return [[Chunk(batched(list(found))) for found in zip(*lanes, strict=True)] for lanes in groups.values()]

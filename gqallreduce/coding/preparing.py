"""What a codec must know before it encodes anything of a range: `Codec.prepare` finds it out.

A range is all values of a tensor, of several small tensors, or a rank's partial sums of one piece. A codec has no
`prepare` (None), or one that gives a generator, or None if there is nothing to find out. The generator yields None
between kernel calls, and an Ask where it needs a number of all ranks; it returns a Prepared. Arrays that were loaded
are invalid after a yield.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gqallreduce.hashing import checksum, hash64

LARGEST, SUM, POOLED, FROM_RANK = "largest", "sum", "pooled", "from a rank"


class Ask(NamedTuple):
    """A small exact operation over all ranks, whose result the yield gives back: an array of the same form.

    All ranks yield it, with a vector of one dtype and size. A `prepare` of partial sums must not yield one.
    operation
        LARGEST: element by element, -0.0 as 0.0 and each NaN as one and the same; SUM: added in order of ranks;
        POOLED: added over all tensors of a call that ask it at once, in their order, then in order of ranks;
        FROM_RANK: the vector of `rank`. The result has the same bits on all ranks.
    """

    operation: str
    values: np.ndarray
    rank: int = 0

    def answer(self, found: np.ndarray) -> np.ndarray:
        """The result, from what was found of all ranks' vectors."""
        if self.operation == LARGEST and found.dtype.kind == "f":
            found = found + found.dtype.type(0.0)
            found[np.isnan(found)] = np.nan
        return found


class Prepared(NamedTuple):
    """What was found out.

    codec
        that of this range in this call; ignored for partial sums.
    selected
        what of each part is encoded, None for all: a sequence of one entry per part, which `encode` gets.
        `selected.of(piece)` are those of a piece, and `selected.release()` gives the memory back.
    learned
        what the State of the key holds after the call; None for what it held before. Ignored for partial sums.
    mark
        64 bits of what a decoder must have learned too: a message with another mark is refused. 0 for nothing.
    reason
        for `stats.last.reason`: what of this went through host memory, for arrays elsewhere.
    """

    codec: object
    selected: object = None
    learned: dict | None = None
    mark: int = 0
    reason: str = ""


class Parts:
    """A range in parts, loaded when asked for: parts[i] is (region or Span, x, residual, new_residual).

    regions
        of each part.
    workspace
        lends memory.
    whole
        a Span with one region for each tensor, if the range is so small that one kernel call can look at all of it; it
        has one part then, of the same elements. Else None.
    learned
        what the State of the key holds: name -> array or plain value, empty at first; None if there is no State, so
        that nothing is learned.
    rank, size
        this rank, and of how many.
    number
        of the key, alike on all ranks: a hash.
    stream
        what this rank alone draws own choices from in this call; None for partial sums.
    pieces
        into how many pieces the range is cut.
    """

    def __init__(
        self, regions, load, workspace=None, whole=None, learned=None, rank=0, size=1, number=0, stream=None, pieces=1
    ):
        self.regions, self._load, self.workspace, self.whole = regions, load, workspace, whole
        self.learned, self.rank, self.size, self.number, self.stream = learned, rank, size, number, stream
        self.pieces = pieces

    def __len__(self):
        return len(self.regions)

    def __getitem__(self, number: int):
        region = self.regions[number]
        return region, *self._load(region)


def mark_of(number: int, *arrays: np.ndarray) -> int:
    """For `Prepared.mark`."""
    return hash64(number, *(checksum(array.tobytes()) for array in arrays))


def alone(steps) -> Prepared | None:
    """What a generator of `prepare` returns on a single rank, all steps made at once."""
    answer = None
    while steps is not None:
        try:
            ask = steps.send(answer)
        except StopIteration as done:
            return done.value
        answer = None if ask is None else ask.answer(ask.values)
    return None

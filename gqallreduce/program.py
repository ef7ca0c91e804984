"""A schedule as one rank carries it out: rounds with what each move must remember.

Worked out once per schedule, rank and size: which encodings are decoded again by their sender (and whether into the
running value or the result), how often a wire will be sent, and so when its buffer is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gqallreduce.registry import SCHEDULES
from gqallreduce.schedule import Encode, Recv, Send, Wire

DROPPED, VALUE, RESULT = "dropped", "value", "result"


@dataclass(slots=True)
class Encoding:
    """An Encode, what its decoded value is needed for (nothing, the running value, the result), and sends to come."""

    move: Encode
    kept: str
    sends: int


@dataclass(slots=True)
class Receiving:
    """A Recv; `kept` as for an Encoding; `sends`: per wire, how often it is passed on."""

    move: Recv
    kept: str
    sends: list[int]


@dataclass(slots=True)
class Step:
    """One round: receives to post, encodings and sends in order, then what is to be applied."""

    receivings: list[Receiving]
    outgoing: list[Encoding | Send]
    reduces: list[Receiving]
    replaces: list[Receiving]


@lru_cache(maxsize=256)
def program(name: str, rank: int, size: int) -> tuple[Step, ...]:
    """The steps of a rank."""
    rounds = SCHEDULES[name].rounds(rank, size)
    fate: dict[int, str] = {}
    sends: dict[Wire, int] = {}
    steps = []
    for moves in reversed(rounds):  # backwards: what a value is for is known from what comes after it
        receivings = [_receiving(move, fate, sends) for move in moves if isinstance(move, Recv)]
        outgoing = [_outgoing(move, fate, sends) for move in reversed(moves) if not isinstance(move, Recv)]
        reduces = sorted((r for r in receivings if r.move.reduce), key=lambda r: r.move.source)
        replaces = [r for r in receivings if not r.move.reduce]
        steps.append(Step(receivings, outgoing[::-1], reduces, replaces))
    return tuple(reversed(steps))


def _receiving(move: Recv, fate, sends) -> Receiving:
    chunks = [wire.chunk for wire in move.wires]
    kept = fate.get(chunks[0], RESULT)
    if move.reduce or len(set(chunks)) < len(chunks):
        kept = VALUE
    for chunk in chunks:
        fate[chunk] = VALUE if move.reduce else DROPPED
    return Receiving(move, kept, [sends.pop(wire, 0) for wire in move.wires])


def _outgoing(move, fate, sends) -> Encoding | Send:
    if isinstance(move, Send):
        for wire in move.wires:
            sends[wire] = sends.get(wire, 0) + 1
        return move
    kept = fate.get(move.chunk, RESULT)
    fate[move.chunk] = VALUE
    return Encoding(move, kept, sends.pop(Wire(move.chunk, move.holders[0]), 0))

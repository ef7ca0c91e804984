"""A schedule as one rank carries it out: rounds with what each move must remember.

Worked out once per schedule, rank and topology: which encodings are decoded again by their sender (and whether into the
running value or the result), in which order wires are added, how often a wire will be sent, and so when its buffer is
free.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from gqallreduce.scheduling.schedule import REDUCE_SCATTER, Encode, Recv, Schedule, Send, Wire
from gqallreduce.scheduling.topology import Topology

DROPPED, VALUE, RESULT = "dropped", "value", "result"


@dataclass(slots=True)
class Encoding:
    """An Encode, what its decoded value is needed for (nothing, the running value, the result), and sends to come."""

    move: Encode
    kept: str
    sends: int


@dataclass(slots=True)
class Arrival:
    """A wire to be decoded: added or replacing; `kept` as for an Encoding; how often it is passed on."""

    wire: Wire
    adds: bool = True
    kept: str = VALUE
    sends: int = 0


@dataclass(slots=True)
class Receiving:
    """A Recv and its wires; from the rank itself: own bytes that are decoded at their place in the order of the sum."""

    move: Recv
    arrivals: list[Arrival]


@dataclass(slots=True)
class LiveRound:
    """One round: receives to post, encodings and sends in order, then what is added (in order) and what replaces."""

    receivings: list[Receiving]
    outgoing: list[Encoding | Send]
    terms: list[Receiving]
    replaces: list[Receiving]


@lru_cache(maxsize=256)
def live_rounds(schedule: Schedule, rank: int, topology: Topology) -> tuple[LiveRound, ...]:
    """The rounds of a rank."""
    fate: dict[int, str] = {}
    if schedule.half == REDUCE_SCATTER:
        fate = {chunk: DROPPED for chunk in range(schedule.chunks(topology)) if chunk != rank}
    sends: dict[Wire, int] = {}
    rounds = reversed(schedule.rounds(rank, topology))  # what a value is for is known from what comes after it
    return tuple(_live_round(moves, rank, fate, sends) for moves in rounds)[::-1]


def _live_round(moves, rank: int, fate, sends) -> LiveRound:
    receivings = [_receiving(move) for move in moves if isinstance(move, Recv)]
    late = [_receiving(Recv(rank, (wire,), reduce=True)) for wire in _late(moves, rank)]
    terms = sorted((each for each in receivings + late if each.move.reduce), key=lambda each: each.move.source)
    replaces = [each for each in receivings if not each.move.reduce]
    applied = [arrival for each in terms + replaces for arrival in each.arrivals]
    replaced = {wire.chunk for each in late + replaces for wire in each.move.wires}
    for arrival in applied:
        arrival.adds = arrival.wire.chunk not in replaced  # only the first wire of a chunk replaces
        replaced.discard(arrival.wire.chunk)
    for arrival in reversed(applied):
        arrival.kept = VALUE if arrival.adds else fate.get(arrival.wire.chunk, RESULT)
        fate[arrival.wire.chunk] = VALUE if arrival.adds else DROPPED
        arrival.sends = sends.pop(arrival.wire, 0)
    for each in late:
        sends[each.move.wires[0]] = each.arrivals[0].sends + 1
    outgoing = [_outgoing(move, fate, sends) for move in reversed(moves) if not isinstance(move, Recv)]
    return LiveRound(receivings, outgoing[::-1], terms, replaces)


def _receiving(move: Recv) -> Receiving:
    return Receiving(move, [Arrival(wire) for wire in move.wires])


def _late(moves, rank: int) -> list[Wire]:
    """The rank's own wires that are added behind two others or more; behind one the order is nothing, a + b is b + a.

    Their error goes into this rank's residual alone: it is not the difference of the value before and after.
    """
    lower = [move for move in moves if isinstance(move, Recv) and move.reduce and move.source < rank]
    before = Counter(wire.chunk for move in lower for wire in move.wires)
    late = [move for move in moves if isinstance(move, Encode) and before[move.chunk] > 1]
    assert all(len(move.holders) == 1 for move in late)
    return [move.wire for move in late]


def _outgoing(move, fate, sends) -> Encoding | Send:
    if isinstance(move, Send):
        for wire in move.wires:
            sends[wire] = sends.get(wire, 0) + 1
        return move
    kept = fate.get(move.chunk, RESULT)
    fate[move.chunk] = VALUE
    return Encoding(move, kept, sends.pop(move.wire, 0))

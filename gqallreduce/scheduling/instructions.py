"""One rank's part of an allreduce as a flat list of instructions: what an interpreter does, one after the other.

Worked out once from (schedule, rank, topology), with all that a schedule's moves leave open: who decodes its own bytes,
when and into what; in which order wires are added; which rank writes which part of an encoding's error into its
residual; when a buffer is free. A *slot* is a buffer for one message, made here or received; a Part is one of the wires
in it. A chunk has a running value or not; instructions that need the rank's own values say so.

Two interpreters: simulate.py on symbols, which proves schedules, and runtime/interpreter.py on arrays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gqallreduce.scheduling.liveness import DROPPED, RESULT, Encoding, live_rounds
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER, Schedule, Wire
from gqallreduce.scheduling.topology import Topology


class Part(NamedTuple):
    """One of the wires in a slot."""

    slot: int
    number: int


class Post(NamedTuple):
    """Receive a message of these wires into a slot."""

    slot: int
    source: int
    wires: tuple[Wire, ...]


class Encode(NamedTuple):
    """A slot := the encoded chunk: of the rank's own values (`own`), else of the running value.

    alone
        no other rank encodes the same value: the error goes into the new residual at once.
    exact
        without loss, and not by the codec.
    """

    slot: int
    chunk: int
    hop: int
    author: int
    own: bool
    alone: bool
    exact: bool = False


class Join(NamedTuple):
    """A slot := wires end to end."""

    slot: int
    parts: tuple[Part, ...]
    wires: tuple[Wire, ...]


class Transmit(NamedTuple):
    """Send a slot."""

    slot: int
    to: int


class Wait(NamedTuple):
    """Until a slot has been received."""

    slot: int


class WaitAny(NamedTuple):
    """Until one of these slots has been received that was not chosen yet; the program goes on at its target.

    There what arrived is dealt with, up to a Jump back to here. When all have been chosen it goes on at `end`.
    """

    slots: tuple[int, ...]
    targets: tuple[int, ...]
    end: int


class Jump(NamedTuple):
    """Go on at another instruction."""

    target: int


class BeginSum(NamedTuple):
    """The running value := own values + residual, exactly.

    clears
        no encoding of this rank writes the new residual of the chunk: it becomes zero.
    """

    chunk: int
    clears: bool = False


class Decode(NamedTuple):
    """The chunk := what a wire decodes to, or += (`adds`); into the running value, or the result in its dtype.

    exact
        one that was encoded so.
    """

    part: Part
    chunk: int
    adds: bool
    result: bool
    exact: bool = False


class Share(NamedTuple):
    """The running value := what the wire decodes to; the index-th of `of` slices of the error goes into the residual.

    The other slices are those of the ranks that hold the same value, and encode it alike.
    """

    part: Part
    chunk: int
    index: int
    of: int


class Drop(NamedTuple):
    """The running value is not needed any more: what arrives replaces it."""

    chunk: int


class Release(NamedTuple):
    """Nothing uses the slot after what was asked for until now."""

    slot: int


class Finish(NamedTuple):
    """The running value is the finished sum: store it as the result."""

    chunk: int


Instruction = (
    Post | Encode | Join | Transmit | Wait | WaitAny | Jump | BeginSum | Decode | Share | Drop | Release | Finish
)


class _Writer:
    """Writes the instructions of one rank."""

    def __init__(self, rank: int, scatters: bool):
        self.rank, self.scatters = rank, scatters
        self.instructions: list[Instruction] = []
        self.slots = 0
        self.parts: dict[Wire, Part] = {}
        self.uses: dict[int, int] = {}  # slot -> sends and decodings to come
        self.wires: dict[int, int] = {}  # slot -> how many wires it holds
        self.running: set[int] = set()

    def add(self, *instructions: Instruction) -> None:
        self.instructions.extend(instructions)

    def slot(self, uses: int, wires: int = 1) -> int:
        self.slots += 1
        self.uses[self.slots - 1], self.wires[self.slots - 1] = uses, wires
        return self.slots - 1

    def used(self, slot: int) -> None:
        self.uses[slot] -= 1
        if not self.uses[slot]:
            self.add(Release(slot))

    def begin(self, chunk: int) -> None:
        """A running value, of the rank's own."""
        self.add(BeginSum(chunk, clears=self.scatters))
        self.running.add(chunk)

    def round(self, found) -> None:
        posted = {}
        for each in found.receivings:
            posted[id(each)] = slot = self.slot(0, len(each.move.wires))
            self.add(Post(slot, each.move.source, each.move.wires))
        for move in found.outgoing:
            self._encode(move) if isinstance(move, Encoding) else self._send(move)
        for move in found.outgoing:
            if isinstance(move, Encoding):
                self._keep(move)
        for term in found.terms:  # in ascending order of source
            if term.move.source == self.rank:
                self._own_term(term.arrivals[0])
            else:
                slot = posted[id(term)]
                self.add(Wait(slot))
                self._arrived(slot, term.arrivals)
        self._in_any_order([(posted[id(each)], each.arrivals) for each in found.replaces])

    def _encode(self, encoding: Encoding) -> None:
        move = encoding.move
        slot = self.slot(encoding.sends + 1)
        alone = len(move.holders) == 1
        own = move.chunk not in self.running
        self.add(Encode(slot, move.chunk, move.hop, move.holders[0], own, alone, move.exact))
        self.parts[move.wire] = Part(slot, 0)

    def _send(self, move) -> None:
        parts = tuple(self.parts[wire] for wire in move.wires)
        slot = parts[0].slot
        if len(parts) == self.wires[slot] == 1:
            self.add(Transmit(slot, move.to))
            self.used(slot)
            return
        joined = self.slot(1, len(parts))
        self.add(Join(joined, parts, move.wires))
        for slot, _ in parts:
            self.used(slot)
        self.add(Transmit(joined, move.to))
        self.used(joined)

    def _keep(self, encoding: Encoding) -> None:
        """What is sent is what is kept."""
        move, chunk = encoding.move, encoding.move.chunk
        part, alone = self.parts[move.wire], len(move.holders) == 1
        if encoding.kept == DROPPED:
            if chunk in self.running:
                self.add(Drop(chunk))
            self.running.discard(chunk)
        elif alone:
            self._decode(part, move.wire, adds=False, result=encoding.kept == RESULT)
        else:
            self.add(Share(part, chunk, move.holders.index(self.rank), len(move.holders)))
            self.running.add(chunk)
        self.used(part[0])

    def _decode(self, part: Part, wire: Wire, adds: bool, result: bool) -> None:
        self.add(Decode(part, wire.chunk, adds, result, wire.exact))
        (self.running.discard if result else self.running.add)(wire.chunk)

    def _apply(self, part: Part, arrival) -> None:
        chunk = arrival.wire.chunk
        if arrival.adds and chunk not in self.running:
            self.begin(chunk)
        self._decode(part, arrival.wire, arrival.adds, arrival.kept == RESULT)

    def _own_term(self, arrival) -> None:
        """Add what the rank's own bytes decode to: at this place in the order of the sum."""
        part = self.parts[arrival.wire]
        self._apply(part, arrival)
        self.used(part[0])

    def _arrived(self, slot: int, arrivals) -> None:
        self.uses[slot] = 1 + sum(arrival.sends for arrival in arrivals)
        for number, arrival in enumerate(arrivals):
            part = self.parts[arrival.wire] = Part(slot, number)
            self._apply(part, arrival)
        self.used(slot)

    def _in_any_order(self, expected) -> None:
        """Messages that replace: each is dealt with when it comes."""
        if not expected:
            return
        if len(expected) == 1:
            self.add(Wait(expected[0][0]))
            self._arrived(*expected[0])
            return
        wait, targets = len(self.instructions), []
        self.add(Jump(wait))
        for slot, arrivals in expected:
            targets.append(len(self.instructions))
            self._arrived(slot, arrivals)
            self.add(Jump(wait))
        slots = tuple(slot for slot, _ in expected)
        self.instructions[wait] = WaitAny(slots, tuple(targets), len(self.instructions))


@lru_cache(maxsize=256)
def instructions(schedule: Schedule, rank: int, topology: Topology) -> tuple[Instruction, ...]:
    """The instructions of a rank for every lane of a call."""
    writer = _Writer(rank, schedule.half == REDUCE_SCATTER)
    if schedule.half == ALLGATHER and topology.size > 1:  # a single rank encodes its own values
        writer.begin(rank)
    for each in live_rounds(schedule, rank, topology):
        writer.round(each)
    if schedule.half == REDUCE_SCATTER and not writer.running:  # on a single rank
        writer.begin(rank)
    writer.add(*(Finish(chunk) for chunk in sorted(writer.running)))
    return tuple(writer.instructions)


def as_coded(program: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The same for a codec whose sums lose nothing: what is exact is encoded by it as well, in fewer bytes."""
    found = []
    for each in program:
        if hasattr(each, "wires"):
            each = each._replace(wires=tuple(wire._replace(exact=False) for wire in each.wires))
        found.append(each._replace(exact=False) if hasattr(each, "exact") else each)
    return tuple(found)


def rounds(program) -> list[list[Post | Join | Transmit]]:
    """What may be under way together: the messages of a program, round by round."""
    found, last = [[]], None
    for each in program:
        if isinstance(each, (Wait, WaitAny)):
            last = each
        elif isinstance(each, (Post, Join, Transmit)):
            if isinstance(last, (Wait, WaitAny)) or (isinstance(each, Post) and isinstance(last, Transmit)):
                found.append([])
            found[-1].append(each)
            last = each
    return found

"""Runs a schedule on symbols, for all ranks: proof that it is right before a byte moves.

A value is a symbol: a rank's contribution, the unordered sum of two values (floating-point addition commutes, but does
not associate), or a value coded by an author at a hop. Two ranks have the same bits exactly if they have the same
symbol, whatever the codec does.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.instructions import (
    BeginSum,
    Decode,
    Drop,
    Encode,
    Finish,
    Instruction,
    Join,
    Jump,
    Post,
    Release,
    Share,
    Transmit,
    Wait,
    WaitAny,
    instructions,
)
from gqallreduce.scheduling.schedule import REDUCE_SCATTER, Schedule
from gqallreduce.scheduling.topology import Topology, apart, in_hosts

RANKS_OF_A_HOST = 4


class Symbols:
    """Values as small integers: equal numbers, equal values."""

    def __init__(self):
        self._number: dict[tuple, int] = {}
        self._term: list[tuple] = []

    def _intern(self, term: tuple) -> int:
        if term not in self._number:
            self._number[term] = len(self._term)
            self._term.append(term)
        return self._number[term]

    def own(self, rank: int) -> int:
        return self._intern(("own", rank))

    def add(self, a: int, b: int) -> int:
        return self._intern(("sum", min(a, b), max(a, b)))

    def coded(self, value: int, author: int, hop: int) -> int:
        return self._intern(("coded", value, author, hop))

    def contributions(self, value: int) -> Counter:
        """rank -> how often its contribution is in the value."""
        kind, *parts = self._term[value]
        if kind == "own":
            return Counter(parts)
        if kind == "coded":
            return self.contributions(parts[0])
        return self.contributions(parts[0]) + self.contributions(parts[1])

    def encodings(self, value: int) -> dict[int, int]:
        """rank -> how many encodings its contribution went through."""
        kind, *parts = self._term[value]
        if kind == "own":
            return {parts[0]: 0}
        if kind == "coded":
            return {rank: count + 1 for rank, count in self.encodings(parts[0]).items()}
        return {**self.encodings(parts[0]), **self.encodings(parts[1])}

    def order(self, value: int) -> str:
        """The order of additions, for example ((0 + 1) + 2)."""
        kind, *parts = self._term[value]
        if kind == "own":
            return str(parts[0])
        if kind == "coded":
            return self.order(parts[0])
        return f"({self.order(parts[0])} + {self.order(parts[1])})"


@dataclass
class Outcome:
    """What all ranks hold after a schedule has run on symbols, and the errors in their residuals.

    values
        per rank, per chunk: a symbol; after a reduce-scatter that of the rank's own chunk alone.
    errors
        symbol of an encoding -> {(rank, slice, of how many slices): how often that rank added it to its residual}. Of
        one without loss too: that sets the residual to zero.
    rounds, messages, chunks_sent
        per rank: numbers of rounds, of messages sent, and of chunks sent in them.
    """

    symbols: Symbols
    values: list[list[int]]
    errors: dict[int, Counter]
    rounds: list[int]
    messages: list[int]
    chunks_sent: list[int]

    def encodings(self) -> int:
        """The most encodings any contribution goes through."""
        return max(max(self.symbols.encodings(value).values()) for value in self.values[0])

    def single_encodings(self) -> list[Counter]:
        """Per rank: how often it alone held a chunk's whole error (the residual is written, not added to, there)."""
        counts = [Counter() for _ in self.values]
        for (_, chunk), slices in self.errors.items():
            for rank, _, holders in slices:
                if holders == 1:
                    counts[rank][chunk] += 1
        return counts


class _Rank:
    """Interprets one rank's instructions on symbols: a generator that yields while it waits.

    running, result
        chunk -> symbol.
    slots
        the symbols of the wires in each; for one that is posted, the Post.
    """

    def __init__(self, schedule: Schedule, rank: int, topology: Topology, outcome: Outcome, mail):
        self.schedule, self.rank, self.topology = schedule, rank, topology
        self.outcome, self.mail = outcome, mail
        self.program = instructions(schedule, rank, topology)
        self.running: dict[int, int] = {}
        self.result: dict[int, int] = {}
        self.slots: dict[int, list[int] | Post] = {}
        outcome.rounds[rank] = len(schedule.rounds(rank, topology))
        outcome.symbols.own(rank)  # numbered in order of rank, as sums are printed

    def run(self):
        at, chosen = 0, set()
        while at < len(self.program):
            instruction = self.program[at]
            at += 1
            match instruction:
                case Wait(slot):
                    while not self._arrived(slot):
                        yield
                case WaitAny(slots, targets, end):
                    left = {slot: target for slot, target in zip(slots, targets, strict=True) if slot not in chosen}
                    while left and not any(map(self._arrived, left)):
                        yield
                    slot = next(filter(self._arrived, left), None)
                    chosen.add(slot)
                    at = left.get(slot, end)
                case Jump(target):
                    at = target
                case _:
                    self._execute(instruction)
        assert not self.slots, f"slots that are never released: {sorted(self.slots)}"
        kept = [self.rank] if self.schedule.half == REDUCE_SCATTER else range(self.schedule.chunks(self.topology))
        self.outcome.values[self.rank] = [self.result[chunk] for chunk in kept]

    def _execute(self, instruction: Instruction) -> None:
        symbols = self.outcome.symbols
        match instruction:
            case Post(slot):
                self.slots[slot] = instruction
            case Encode(slot, chunk, hop, author, own, alone, exact):
                value = symbols.own(self.rank) if own else self.running[chunk]
                self.slots[slot] = [value if exact else symbols.coded(value, author, hop)]
                if alone:
                    self._keep_error(self.slots[slot][0], chunk, 0, 1)
            case Join(slot, parts, _):
                self.slots[slot] = [self._wire(part) for part in parts]
            case Transmit(slot, to):
                self.outcome.messages[self.rank] += 1
                self.outcome.chunks_sent[self.rank] += len(self.slots[slot])
                self.mail.setdefault((self.rank, to), deque()).append(list(self.slots[slot]))
            case BeginSum(chunk):
                self.running[chunk] = symbols.own(self.rank)
            case Decode(part, chunk, adds, result, _):
                value = symbols.add(self.running[chunk], self._wire(part)) if adds else self._wire(part)
                if result:
                    self.running.pop(chunk, None)
                    self.result[chunk] = value
                else:
                    self.running[chunk] = value
            case Share(part, chunk, index, of):
                self.running[chunk] = self._wire(part)
                self._keep_error(self._wire(part), chunk, index, of)
            case Drop(chunk):
                del self.running[chunk]
            case Finish(chunk):
                self.result[chunk] = self.running.pop(chunk)
            case Release(slot):
                del self.slots[slot]

    def _wire(self, part) -> int:
        slot, number = part
        return self.slots[slot][number]

    def _keep_error(self, coded: int, chunk: int, index: int, of: int) -> None:
        self.outcome.errors.setdefault((coded, chunk), Counter())[self.rank, index, of] += 1

    def _arrived(self, slot: int) -> bool:
        """Take the message for a posted slot in, if it is there and no other one is due before it."""
        post = self.slots.get(slot)
        if not isinstance(post, Post):
            return True
        box = self.mail.get((post.source, self.rank))
        before = [each for each in self.slots.values() if isinstance(each, Post) and each.source == post.source]
        if not box or before[0] is not post:
            return False
        self.slots[slot] = box.popleft()
        if len(self.slots[slot]) != len(post.wires):
            raise AssertionError(f"rank {self.rank} expected {post.wires} from {post.source}")
        return True


def simulate(schedule: Schedule, topology: Topology) -> Outcome:
    """Run all ranks on symbols. AssertionError if a message is unmatched or the ranks wait for each other."""
    size = topology.size
    outcome = Outcome(Symbols(), [[]] * size, {}, [0] * size, [0] * size, [0] * size)
    mail: dict = {}
    running = [_Rank(schedule, rank, topology, outcome, mail).run() for rank in range(size)]
    seen = None
    while running:
        running = [rank for rank in running if next(rank, "done") != "done"]
        progress = len(running), sum(outcome.messages), sum(map(len, mail.values()))
        if running and progress == seen:
            raise AssertionError(f"{schedule.name}, {size} ranks: all wait for each other")
        seen = progress
    if any(mail.values()):
        raise AssertionError(f"{schedule.name}, {size} ranks: messages that are never received")
    return outcome


def check(schedule: Schedule, topology: Topology) -> Outcome:
    """Simulate and assert the promises: every contribution once, ranks equal, every error kept exactly once."""
    outcome, size = simulate(schedule, topology), topology.size
    symbols = outcome.symbols
    for chunk in range(schedule.chunks(topology)):
        finals = {values[chunk] for values in outcome.values}
        assert len(finals) == 1, f"{schedule.name}, {size} ranks: ranks hold different sums of chunk {chunk}"
        assert symbols.contributions(finals.pop()) == Counter(range(size))
        assert set(schedule.error_holders(chunk, topology)) <= set(range(size))
    for (_, chunk), slices in outcome.errors.items():
        holders = {share[2] for share in slices}
        assert len(holders) == 1, f"holders of chunk {chunk} disagree on their number"
        assert sorted(share[1] for share in slices) == list(range(holders.pop())), "an error is kept twice, or never"
        assert set(slices.values()) == {1}
    assert all(set(counts.values()) <= {1} for counts in outcome.single_encodings()), "a residual is written twice"
    return outcome


def table(size: int = 16) -> str:
    """The schedules as a Markdown table for docs/schedules.md; one by hosts with so many ranks on each."""
    columns = "rounds", "messages per rank", "vector lengths sent per rank", "encodings per contribution", "cost"
    lines = [f"| schedule (P = {size}) | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, schedule in sorted(SCHEDULES.items()):
        topology = in_hosts(size, RANKS_OF_A_HOST) if schedule.by_hosts else apart(size)
        outcome = check(schedule, topology)
        lengths = max(outcome.chunks_sent) / schedule.chunks(topology)
        row = max(outcome.rounds), max(outcome.messages), f"{lengths:.3g}", outcome.encodings(), schedule.cost
        lines.append(f"| `{name}` | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)

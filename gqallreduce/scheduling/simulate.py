"""Runs a schedule on symbols, for all ranks: proof that it is right before a byte moves.

A value is a symbol: a rank's contribution, the unordered sum of two values (floating-point addition commutes, but does
not associate), or a value coded by an author at a hop. Two ranks have the same bits exactly if they have the same
symbol, whatever the codec does.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.schedule import Encode, Recv, Schedule, Send, Wire


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
    """What all ranks hold and owe after a schedule has run on symbols.

    values
        per rank, per chunk: a symbol.
    debts
        symbol of an encoding -> {(rank, slice, of how many slices): how often it was written down}.
    rounds, messages, chunks_sent
        per rank: numbers of rounds, of messages sent, and of chunks sent in them.
    """

    symbols: Symbols
    values: list[list[int]]
    debts: dict[int, Counter]
    rounds: list[int]
    messages: list[int]
    chunks_sent: list[int]

    def encodings(self) -> int:
        """The most encodings any contribution goes through."""
        return max(max(self.symbols.encodings(value).values()) for value in self.values[0])

    def single_encodings(self) -> list[Counter]:
        """Per rank: how often it alone owed a chunk's whole error (the residual is written, not added to, there)."""
        counts = [Counter() for _ in self.values]
        for (_, chunk), owed in self.debts.items():
            for rank, _, holders in owed:
                if holders == 1:
                    counts[rank][chunk] += 1
        return counts


class _Rank:
    """One rank's part of the simulation: a generator that yields while it waits."""

    def __init__(self, schedule: Schedule, rank: int, size: int, outcome: Outcome, mail):
        self.schedule, self.rank, self.size = schedule, rank, size
        self.outcome, self.mail = outcome, mail
        self.value = [outcome.symbols.own(rank)] * schedule.chunks(size)
        self.wires: dict = {}
        self.standing = set(range(len(self.value)))  # chunks whose value what arrives is added to

    def run(self):
        rounds = self.schedule.rounds(self.rank, self.size)
        self.outcome.rounds[self.rank] = len(rounds)
        for moves in rounds:
            for move in moves:
                if isinstance(move, Encode):
                    self._encode(move)
                elif isinstance(move, Send):
                    self._send(move)
            for move in sorted((move for move in moves if not isinstance(move, Send)), key=self._source):
                if isinstance(move, Encode):
                    self._apply(Wire(move.chunk, move.holders[0]))
                else:
                    yield from self._receive(move)
        self.outcome.values[self.rank] = self.value

    def _source(self, move: Encode | Recv) -> int:
        return self.rank if isinstance(move, Encode) else move.source

    def _encode(self, move: Encode) -> None:
        author = move.holders[0]
        coded = self.outcome.symbols.coded(self.value[move.chunk], author, move.hop)
        self.wires[move.chunk, author] = coded
        self.standing.discard(move.chunk)
        share = (self.rank, move.holders.index(self.rank), len(move.holders))
        self.outcome.debts.setdefault((coded, move.chunk), Counter())[share] += 1

    def _send(self, move: Send) -> None:
        self.outcome.messages[self.rank] += 1
        self.outcome.chunks_sent[self.rank] += len(move.wires)
        self.mail.setdefault((self.rank, move.to), deque()).append([(wire, self.wires[wire]) for wire in move.wires])

    def _receive(self, move: Recv):
        box = self.mail.setdefault((move.source, self.rank), deque())
        while not box:
            yield
        message = box.popleft()
        if tuple(wire for wire, _ in message) != move.wires:
            raise AssertionError(f"rank {self.rank} expected {move.wires} from {move.source}, got {message}")
        if not move.reduce:
            self.standing.difference_update(wire.chunk for wire in move.wires)
        for wire, coded in message:
            self.wires[wire] = coded
            self._apply(wire)

    def _apply(self, wire: Wire) -> None:
        chunk, coded = wire.chunk, self.wires[wire]
        self.value[chunk] = self.outcome.symbols.add(self.value[chunk], coded) if chunk in self.standing else coded
        self.standing.add(chunk)


def simulate(schedule: Schedule, size: int) -> Outcome:
    """Run all `size` ranks on symbols. AssertionError if a message is unmatched or the ranks wait for each other."""
    outcome = Outcome(Symbols(), [[]] * size, {}, [0] * size, [0] * size, [0] * size)
    mail: dict = {}
    running = [_Rank(schedule, rank, size, outcome, mail).run() for rank in range(size)]
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


def check(schedule: Schedule, size: int) -> Outcome:
    """Simulate and assert the promises: every contribution once, ranks equal, every error owed exactly once."""
    outcome = simulate(schedule, size)
    symbols = outcome.symbols
    for chunk in range(schedule.chunks(size)):
        finals = {values[chunk] for values in outcome.values}
        assert len(finals) == 1, f"{schedule.name}, {size} ranks: ranks hold different sums of chunk {chunk}"
        assert symbols.contributions(finals.pop()) == Counter(range(size))
        assert set(schedule.debtors(chunk, size)) <= set(range(size))
    for (_, chunk), owed in outcome.debts.items():
        holders = {share[2] for share in owed}
        assert len(holders) == 1, f"holders of chunk {chunk} disagree on their number"
        assert sorted(share[1] for share in owed) == list(range(holders.pop())), "an error is owed twice, or never"
        assert set(owed.values()) == {1}
    assert all(set(counts.values()) <= {1} for counts in outcome.single_encodings()), "a residual is written twice"
    return outcome


def table(size: int = 16) -> str:
    """The schedules as a Markdown table for docs/schedules.md."""
    columns = "rounds", "messages per rank", "vector lengths sent per rank", "encodings per contribution", "cost"
    lines = [f"| schedule (P = {size}) | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, schedule in sorted(SCHEDULES.items()):
        outcome = check(schedule, size)
        lengths = max(outcome.chunks_sent) / schedule.chunks(size)
        row = max(outcome.rounds), max(outcome.messages), f"{lengths:.3g}", outcome.encodings(), schedule.cost
        lines.append(f"| `{name}` | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)

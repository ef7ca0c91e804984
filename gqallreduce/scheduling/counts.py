"""What one rank does in a schedule, counted in chunks: from its rounds, or as the schedule itself says."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gqallreduce.scheduling.schedule import Encode, Recv, Schedule, Send, Wire
from gqallreduce.scheduling.topology import Topology


class Sent(NamedTuple):
    """Wires of one kind: of how many ranks' values they hold the sum, encoded without loss or by the codec, and sent to
    a rank on the same host or on another."""

    contributions: int
    exact: bool
    near: bool


class Counts:
    """Rounds, those in which a message goes to another host (`far_rounds`), messages sent, and chunks.

    sent
        chunks of each kind of wire.
    encoded, decoded
        chunks by the codec, and without loss.
    """

    def __init__(self):
        self.rounds = self.far_rounds = self.messages = 0
        self.sent: Counter[Sent] = Counter()
        self.encoded, self.decoded = [0, 0], [0, 0]

    def round(self, far: bool, times: int = 1) -> None:
        """So many rounds, with messages to another host or without."""
        self.rounds += times
        self.far_rounds += times * far

    def encode(self, chunks: int, exact: bool = False) -> None:
        self.encoded[exact] += chunks

    def send(self, messages: int, chunks: int, contributions: int, near: bool, exact: bool = False) -> None:
        """So many messages of so many chunks together."""
        self.messages += messages
        if chunks:
            self.sent[Sent(contributions, exact, near)] += chunks

    def receive(self, chunks: int, exact: bool = False) -> None:
        self.decoded[exact] += chunks


def count(schedule: Schedule, rank: int, topology: Topology) -> Counts:
    """What a rank does; the rounds of many ranks are not written where the schedule can do without."""
    return of_rounds(schedule, rank, topology) if schedule.counted is None else schedule.counted(rank, topology)


def of_rounds(schedule: Schedule, rank: int, topology: Topology) -> Counts:
    """Counted from the rounds, move by move."""
    found, hosts = Counts(), topology.hosts
    hops: dict[Wire, int] = {}  # of what this rank encodes; what it passes on is a finished sum
    sums: dict[int | None, int] = {None: topology.size}  # hop -> contributions
    for moves in schedule.rounds(rank, topology):
        far = False
        for move in moves:
            if isinstance(move, Encode):
                hops[move.wire] = move.hop
                found.encode(1, move.exact)
                continue
            near = hosts[move.to if isinstance(move, Send) else move.source] == hosts[rank]
            far |= not near
            found.messages += isinstance(move, Send)
            for wire in move.wires:
                if isinstance(move, Recv):
                    found.receive(1, wire.exact)
                    continue
                hop = hops.get(wire)
                if hop not in sums:
                    sums[hop] = schedule.contributions(hop, topology)
                found.send(0, 1, sums[hop], near, wire.exact)
        found.round(far)
    return found

"""What a rank does in a schedule, counted: for the cost model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.schedule import Encode, Recv, Send, Wire
from gqallreduce.scheduling.topology import Topology, apart

COUNTED_MOST = 1 << 20  # ranks of a host times all ranks, up to which all of the host are counted


@dataclass(frozen=True)
class Work:
    """What a rank does in a schedule at most: rounds, messages, and vector lengths sent, encoded and decoded.

    rounds, far_rounds
        all of them, and those in which a message goes to another host.
    sent
        vector lengths of each kind of wire, of the rank that sends most.
    leaving
        of each kind those that leave a host, of all its ranks together.
    encoded, decoded
        by the codec, and without loss.
    """

    rounds: int
    far_rounds: int
    messages: int
    sent: dict[Sent, float]
    leaving: dict[Sent, float]
    encoded: tuple[float, float]
    decoded: tuple[float, float]


class Sent(NamedTuple):
    """Wires of one kind: of how many ranks' values they hold the sum, encoded without loss or by the codec, and sent to
    a rank on the same host or on another."""

    contributions: int
    exact: bool
    near: bool


def topology_of(ranks: int | Topology) -> Topology:
    """The Topology, of so many ranks on hosts of their own if it is a number."""
    return ranks if isinstance(ranks, Topology) else apart(ranks)


@lru_cache(maxsize=64)  # direct and ring have O(P) moves to count
def work(schedule: str, ranks: int | Topology) -> Work:
    """Counted from the rounds of the ranks on rank 0's host; where those are many, of its first and its last."""
    topology = topology_of(ranks)
    mine, share = topology.groups[0], 1.0
    if len(mine) * topology.size > COUNTED_MOST:
        share, mine = len(mine) / 2, (mine[0], mine[-1])
    every = [_work_of(schedule, rank, topology) for rank in mine]
    leaving = Counter()
    for each in every:
        for kind, lengths in each.leaving.items():
            leaving[kind] += share * lengths
    busiest = max(every, key=lambda each: (sum(each.sent.values()), each.messages))
    rounds, far, messages = (
        max(getattr(each, name) for each in every) for name in ("rounds", "far_rounds", "messages")
    )
    return Work(rounds, far, messages, busiest.sent, dict(leaving), busiest.encoded, busiest.decoded)


def _work_of(schedule: str, rank: int, topology: Topology) -> Work:
    """Of one rank, `leaving` too."""
    found, hosts = SCHEDULES[schedule], topology.hosts
    chunks, rounds = found.chunks(topology), found.rounds(rank, topology)
    messages, far_rounds, sent = 0, 0, Counter()
    hops: dict[Wire, int] = {}  # of what this rank encodes; what it passes on is a finished sum
    sums: dict[int | None, int] = {None: topology.size}  # hop -> contributions
    encoded, decoded = [0, 0], [0, 0]
    for moves in rounds:
        far = False
        for move in moves:
            if isinstance(move, Encode):
                hops[move.wire] = move.hop
                encoded[move.exact] += 1
                continue
            peer = move.to if isinstance(move, Send) else move.source
            near = hosts[peer] == hosts[rank]
            far |= not near
            messages += isinstance(move, Send)
            for wire in move.wires:
                if isinstance(move, Recv):
                    decoded[wire.exact] += 1
                    continue
                hop = hops.get(wire)
                if hop not in sums:
                    sums[hop] = found.contributions(hop, topology)
                sent[Sent(sums[hop], wire.exact, near)] += 1
        far_rounds += far
    lengths = {kind: wires / chunks for kind, wires in sent.items()}
    leaving = {kind: length for kind, length in lengths.items() if not kind.near}
    parts = [(coded / chunks, exact / chunks) for coded, exact in (encoded, decoded)]
    return Work(len(rounds), far_rounds, messages, lengths, leaving, *parts)

"""What a rank does in a schedule, counted: for the cost model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.counts import Sent, count
from gqallreduce.scheduling.topology import Topology, apart

COUNTED_MOST = 1 << 20  # ranks of a host times all ranks, up to which all of the host are counted


@dataclass(frozen=True)
class Work:
    """What a rank does in a schedule at most: rounds, messages, and vector lengths sent, encoded and decoded.

    rounds, far_rounds
        all of them, and those in which a message goes to another host.
    sent
        vector lengths of each kind of wire, of the rank that sends most; contributions as `rounded` has them.
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


def topology_of(ranks: int | Topology) -> Topology:
    """The Topology, of so many ranks on hosts of their own if it is a number."""
    return ranks if isinstance(ranks, Topology) else apart(ranks)


def rounded(number: int) -> int:
    """Up to four binary digits and zeros: few different ones."""
    zeros = max(0, number.bit_length() - 4)
    return -(-number >> zeros << zeros)


@lru_cache(maxsize=64)
def work(schedule: str, ranks: int | Topology) -> Work:
    """Counted of the ranks on rank 0's host; where those are many, of its first, its last, and one for all others."""
    topology, found = topology_of(ranks), SCHEDULES[schedule]
    mine = topology.groups[0]
    alike = dict.fromkeys(mine, 1)
    if len(mine) * topology.size > COUNTED_MOST and len(mine) > 3:
        alike = {mine[0]: 1, mine[1]: len(mine) - 2, mine[-1]: 1}
    every = {rank: count(found, rank, topology) for rank in alike}
    leaving = Counter()
    for rank, each in every.items():
        for kind, chunks in each.sent.items():
            if not kind.near:
                leaving[kind] += alike[rank] * chunks
    busiest = max(every.values(), key=lambda each: (each.sent.total(), each.messages))
    return Work(
        *(max(getattr(each, name) for each in every.values()) for name in ("rounds", "far_rounds", "messages")),
        *(_lengths(chunks, found.chunks(topology)) for chunks in (busiest.sent, leaving)),
        *(tuple(part / found.chunks(topology) for part in parts) for parts in (busiest.encoded, busiest.decoded)),
    )


def _lengths(sent: dict[Sent, int], chunks: int) -> dict[Sent, float]:
    """Chunks of each kind as vector lengths."""
    found = Counter()
    for kind, number in sent.items():
        found[kind._replace(contributions=rounded(kind.contributions))] += number
    return {kind: number / chunks for kind, number in found.items()}

"""Exact sums within each host, a flat schedule with the codec between hosts, the finished bytes shared in each host.

With H hosts the vector is cut into shares, one for each rank of the host with the fewest ranks (or a single one). The
i-th rank of each host leads the i-th share: the others of its host send it their values without loss, it adds them in
ascending order of rank, and the H leaders of a share sum it as the only ranks of the outer schedule. Each then passes
the finished bytes on unchanged to the ranks of its host. So all ranks encode, each a part of the vector, and between
hosts travels what one rank of each host would send alone. With R ranks on each of H hosts and `direct` between them:

Cost: 2(H-1) alpha + 2 n (H-1)/(HR) beta + n/R gamma.  Encodings per contribution: 2, those of the outer schedule.

Within hosts 4 bytes of a value travel besides, and n.

Where all hosts have the same number of ranks and all lead, chunk r is finished by rank r. So there is a half that
leaves a part of the sum on each rank, if the outer schedule has one.

Options, as in hierarchical(outer=ring, leaders=one)/onebit:

outer
    the schedule between hosts: direct, halving_doubling or ring.
leaders
    all: each rank of a host leads a share; one: the lowest of each host leads the whole vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import accumulate

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.counts import Counts, count
from gqallreduce.scheduling.schedule import Encode, Recv, Round, Schedule, Send, Wire, alone
from gqallreduce.scheduling.topology import Topology, apart

# Schedules whose finished chunks are the bytes of one rank, which can be passed on as they are.
OUTER = ("direct", "halving_doubling", "ring")
LEADERS = ("all", "one")


def hierarchical(outer: str = "direct", leaders: str = "all") -> Schedule:
    """The schedule with a flat one between hosts; do all ranks lead a share of the vector, or does one of each host?

    Raises ValueError for other options.
    """
    if outer not in OUTER:
        raise ValueError(f"hierarchical: outer={outer!r}, expected {', '.join(OUTER)}")
    if leaders not in LEADERS:
        raise ValueError(f"hierarchical: leaders={leaders!r}, expected {' or '.join(LEADERS)}")
    between = SCHEDULES[outer]

    def rounds(rank: int, topology: Topology):
        """Exact sums within hosts, a flat schedule between hosts, and its bytes shared within hosts."""
        return tuple(_Rank(between, leaders, rank, topology).rounds())

    def chunks(topology: Topology) -> int:
        return _shares(leaders, topology) * between.chunks(apart(len(topology.groups)))

    def scatter_rounds(topology: Topology) -> int | None:
        first = between.scatter_rounds(apart(len(topology.groups)))
        if first is None or not _all_lead(leaders, topology):
            return None
        return first + (len(topology.groups[0]) > 1)  # after the sums within hosts

    def error_holders(chunk: int, topology: Topology) -> range:
        share, inside = _place_of(between, leaders, topology)[chunk]
        (host,) = between.error_holders(inside, apart(len(topology.groups)))
        return alone(topology.groups[host][share])

    def contributions(hop: int, topology: Topology) -> int:
        most = _most_ranks(topology)
        return most[between.contributions(hop - 1, apart(len(topology.groups)))] if hop else 1

    return Schedule(
        _name(outer=outer, leaders=leaders),
        rounds,
        chunks=chunks,
        error_holders=error_holders,
        contributions=contributions,
        scatter_rounds=scatter_rounds,
        counted=lambda rank, topology: _Rank(between, leaders, rank, topology).counted(),
        cost="2(H-1) alpha + 2n(H-1)/(HR) beta + n/R gamma",
        source="Karonis et al., IPDPS 2000 (multilevel collectives); Goyal et al., arXiv:1706.02677 (sums within a "
        "server, between servers, and shared); differs: all ranks lead a share, and finished bytes are passed on",
        by_hosts=True,
        options=(("outer", outer), ("leaders", leaders)),
    )


_DEFAULTS = {"outer": "direct", "leaders": "all"}


def _name(**options) -> str:
    """With what is not the default."""
    written = ", ".join(f"{name}={value}" for name, value in options.items() if value != _DEFAULTS[name])
    return "hierarchical" + (f"({written})" if written else "")


def _shares(leaders: str, topology: Topology) -> int:
    return 1 if leaders == "one" else min(map(len, topology.groups))


def _all_lead(leaders: str, topology: Topology) -> bool:
    """Does every rank lead a share?"""
    return {_shares(leaders, topology)} == set(map(len, topology.groups))


@lru_cache(maxsize=64)
def _most_ranks(topology: Topology) -> tuple[int, ...]:
    """Number of hosts -> of how many ranks they are at most."""
    return 0, *accumulate(sorted(map(len, topology.groups), reverse=True))


@lru_cache(maxsize=64)
def _chunks_of(between: Schedule, leaders: str, topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Of each share, numbered as the ranks of a host, the chunks that the outer schedule sums, in its order.

    If each rank finishes one of them, they have the ranks' numbers; else they are numbered share by share.
    """
    each, shares = between.chunks(apart(len(topology.groups))), _shares(leaders, topology)
    if each == len(topology.groups) and _all_lead(leaders, topology):
        return tuple(zip(*topology.groups, strict=True))
    return tuple(tuple(range(share * each, (share + 1) * each)) for share in range(shares))


@lru_cache(maxsize=64)
def _place_of(between: Schedule, leaders: str, topology: Topology) -> dict[int, tuple[int, int]]:
    """chunk -> (share, number in the outer schedule)."""
    shares = _chunks_of(between, leaders, topology)
    return {chunk: (share, inside) for share, chunks in enumerate(shares) for inside, chunk in enumerate(chunks)}


class _Rank:
    """What one rank does."""

    def __init__(self, between: Schedule, leaders: str, rank: int, topology: Topology):
        self._between, self._rank, self._topology, self._groups = between, rank, topology, topology.groups
        self._hosts, self._shares = apart(len(topology.groups)), _shares(leaders, topology)
        self._host = next(number for number, ranks in enumerate(topology.groups) if rank in ranks)
        self._mates = self._groups[self._host]
        self._place = self._mates.index(rank)
        self._chunks = _chunks_of(between, leaders, topology)

    def rounds(self) -> Iterator[Round]:
        leads, others = self._place < self._shares, len(self._mates) > 1
        if others:
            yield tuple(self._gather())
        if leads:
            yield from self._sum_between_hosts()
        if others:
            yield tuple(self._share())

    def counted(self) -> Counts:
        """What the rounds have, counted."""
        found, each, others = Counts(), len(self._chunks[0]), len(self._mates) - 1
        leads = self._place < self._shares
        theirs = self._shares - leads  # shares of others on this host
        if others:
            found.encode(theirs * each, exact=True)
            found.send(theirs * each, theirs * each, 1, near=True, exact=True)
            found.receive(others * each * leads, exact=True)
            found.round(far=False)
        if leads:
            self._count_between_hosts(found)
        if others:
            found.send(others * leads, others * leads * each, self._topology.size, near=True)
            found.receive(theirs * each)
            found.round(far=False)
        return found

    def _count_between_hosts(self, found: Counts) -> None:
        outer, most = count(self._between, self._host, self._hosts), _most_ranks(self._topology)
        for kind, chunks in outer.sent.items():
            found.send(0, chunks, most[kind.contributions], kind.near)
        found.messages += outer.messages
        found.encode(outer.encoded[False])
        found.receive(outer.decoded[False])
        found.round(True, outer.far_rounds)
        found.round(False, outer.rounds - outer.far_rounds)

    def _exchange(self) -> Iterator[tuple[int, int]]:
        """(to whom, from whom), as places in the host; staggered, so that no rank is sent to by all others at once."""
        count = len(self._mates)
        for shift in range(1, count):
            yield (self._place + shift) % count, (self._place - shift) % count

    def _gather(self):
        for to, source in self._exchange():
            for chunk in self._chunks[to] if to < self._shares else ():
                encode = Encode(chunk, 0, alone(self._rank), exact=True)
                yield from (encode, Send(self._mates[to], (encode.wire,)))
            for chunk in self._chunks[self._place] if self._place < self._shares else ():
                yield Recv(self._mates[source], (Wire(chunk, self._mates[source], exact=True),), reduce=True)

    def _sum_between_hosts(self) -> Iterator[Round]:
        """The outer schedule's rounds of this host, among the leaders of this rank's share."""
        leader, chunks = self._leaders(self._place), self._chunks[self._place]
        for moves in self._between.rounds(self._host, self._hosts):
            yield tuple(_renamed(move, leader, chunks) for move in moves)

    def _leaders(self, share: int) -> tuple[int, ...]:
        return tuple(ranks[share] for ranks in self._groups)

    def _share(self):
        for to, source in self._exchange():
            if self._place < self._shares:
                yield Send(self._mates[to], self._finished(self._place))
            if source < self._shares:
                yield Recv(self._mates[source], self._finished(source), reduce=False)

    @cached_property
    def _authors(self) -> dict[int, int]:
        """chunk of the outer schedule -> the host whose bytes it ends with on this one, the last made or received."""
        authors: dict[int, int] = {}
        for moves in self._between.rounds(self._host, self._hosts):
            for move in moves:
                if isinstance(move, Encode):
                    authors[move.chunk] = move.holders[0]
                elif isinstance(move, Recv) and not move.reduce:
                    authors.update({wire.chunk: wire.author for wire in move.wires})
        return authors

    def _finished(self, share: int) -> tuple[Wire, ...]:
        """What the outer schedule ends with on this host, of the chunks of a share."""
        leader, authors = self._leaders(share), self._authors
        return tuple(Wire(chunk, leader[authors[inside]]) for inside, chunk in enumerate(self._chunks[share]))


def _renamed(move, leader: tuple[int, ...], chunks: tuple[int, ...]):
    """A move of hosts, as one of their leaders; hop 0 is that of the exact sums."""
    if isinstance(move, Encode):
        (host,) = move.holders
        return Encode(chunks[move.chunk], move.hop + 1, alone(leader[host]), move.exact)
    wires = tuple(Wire(chunks[chunk], leader[author], exact) for chunk, author, exact in move.wires)
    if isinstance(move, Send):
        return Send(leader[move.to], wires)
    return Recv(leader[move.source], wires, move.reduce)


SCHEDULES.add("hierarchical", hierarchical())
SCHEDULES.families["hierarchical"] = hierarchical

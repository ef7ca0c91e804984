"""Where the ranks of a communicator are: what schedules know of the machines. Alike on all ranks, and agreed on."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Topology(NamedTuple):
    """hosts: of each rank, the lowest rank on its host."""

    hosts: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, ascending; hosts in the order of their lowest ranks."""
        return _groups(self)

    @property
    def shares_hosts(self) -> bool:
        """Are there several ranks on a host?"""
        return len(self.groups) < self.size

    def others(self, rank: int) -> tuple[int, int]:
        """How many other ranks there are on a rank's host, and how many elsewhere."""
        near = self.hosts.count(self.hosts[rank])
        return near - 1, self.size - near


@lru_cache(maxsize=64)
def _groups(topology: Topology) -> tuple[tuple[int, ...], ...]:
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(topology.hosts):
        found.setdefault(host, []).append(rank)
    return tuple(tuple(found[host]) for host in sorted(found))


@lru_cache(maxsize=64)
def apart(size: int) -> Topology:
    """So many ranks, each on a host of its own."""
    return Topology(tuple(range(size)))


@lru_cache(maxsize=64)
def in_hosts(size: int, each: int) -> Topology:
    """So many ranks, in hosts of `each`, ranks of a host side by side; the last may have fewer."""
    return Topology(tuple(rank // each * each for rank in range(size)))

"""Where the ranks of a communicator are: what schedules know of the machines. Alike on all ranks, and agreed on."""

from __future__ import annotations

from typing import NamedTuple


class Topology(NamedTuple):
    """hosts: of each rank, the lowest rank on its host."""

    hosts: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)


def apart(size: int) -> Topology:
    """So many ranks, each on a host of its own."""
    return Topology(tuple(range(size)))

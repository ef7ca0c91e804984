"""The halves of an allreduce as schedules: a reduce-scatter, and the allgather that it goes on with.

The first leaves the sum of chunk r on rank r, exactly as it was formed; the second begins with rank r's own values of
chunk r in its place. One after the other they are the whole schedule, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gqallreduce.scheduling.schedule import REDUCE_SCATTER, Schedule
from gqallreduce.scheduling.topology import Topology


@lru_cache(maxsize=64)
def half_of(schedule: Schedule, half: str | None) -> Schedule:
    """One half of a schedule; for None all of it. Of a topology where it has none its `rounds` raises ValueError."""
    if half is None:
        return schedule

    def rounds(rank: int, topology: Topology):
        first = schedule.scatter_rounds(topology)
        if first is None:
            raise ValueError(why_not(schedule, topology))
        every = schedule.rounds(rank, topology)
        return every[:first] if half == REDUCE_SCATTER else every[first:]

    return replace(schedule, rounds=rounds, half=half, counted=None)


def why_not(schedule: Schedule, topology: Topology) -> str:
    """Why a schedule has no halves there."""
    why, others = "", "direct, ring or, on 2^k ranks, halving_doubling"
    if schedule.name == "halving_doubling":
        why, others = f" on {topology.size} ranks, which are no power of two,", "direct or ring"
    elif schedule.by_hosts:
        ranks, others = sorted(map(len, topology.groups)), "direct or ring"
        if ranks[0] < ranks[-1]:
            why = f" on hosts with {ranks[0]} to {ranks[-1]} ranks"
        elif dict(schedule.options)["leaders"] == "all":
            why = f", whose outer schedule has none on {len(ranks)} hosts,"
    return f"{schedule.name}{why} has no half that leaves a part of the sum on each rank; take {others}"

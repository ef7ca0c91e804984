"""What schedules count without writing their rounds is what the rounds have."""

import dataclasses
from itertools import product

import pytest

import gqallreduce as gq
from gqallreduce.cli import plan
from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling import model
from gqallreduce.scheduling.counts import count, of_rounds
from gqallreduce.scheduling.topology import Topology, apart, in_hosts

HIERARCHICAL = [
    SCHEDULES.make("hierarchical", {"outer": outer, "leaders": leaders})
    for outer, leaders in product(("direct", "ring", "halving_doubling"), ("all", "one"))
]
FLAT = [each for each in SCHEDULES.values() if not each.by_hosts]
TOPOLOGIES = [
    *map(apart, (1, 2, 3, 4, 5, 8, 13, 16)),
    *(in_hosts(*each) for each in ((2, 2), (4, 2), (7, 3), (8, 8), (12, 5), (16, 4), (33, 8))),
    *map(Topology, ((0, 1, 0, 1), (0, 0, 0, 3), (0, 1, 1, 1, 4, 4), (0, 1, 0, 1, 1, 0, 6))),
]
every_schedule = pytest.mark.parametrize("schedule", [*FLAT, *HIERARCHICAL], ids=lambda each: each.resolved)


@every_schedule
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda each: "".join(f"{host:x}" for host in each.hosts))
def test_what_is_counted_without_rounds_is_what_they_have(schedule, topology):
    for rank in range(topology.size):
        assert vars(count(schedule, rank, topology)) == vars(of_rounds(schedule, rank, topology))


@pytest.mark.slow
def test_a_hop_of_a_ring_that_has_no_number_of_its_own_sums_all():
    topology, ring = in_hosts((1 << 16) + 2, 8), SCHEDULES["ring"]
    assert count(ring, 7, topology).sent == of_rounds(ring, 7, topology).sent


@pytest.mark.parametrize("each", [1, 8])
def test_a_plan_writes_the_rounds_of_recursive_doubling_alone(each, monkeypatch):
    """The others have more moves the more ranks there are."""
    written = []
    for name, schedule in list(SCHEDULES.items()):
        rounds = lambda *where, known=schedule: written.append(known.name) or known.rounds(*where)  # noqa: E731
        monkeypatch.setitem(SCHEDULES, name, dataclasses.replace(schedule, rounds=rounds))
    model.work.cache_clear()
    plan.predictions([gq.Scheme.parse("onebit/ef")], in_hosts(4096, each), 25_000_000, model.Profile())
    assert set(written) == {"recursive_doubling"}
    assert len(SCHEDULES["recursive_doubling"].rounds(0, in_hosts(4096, each))) == 12

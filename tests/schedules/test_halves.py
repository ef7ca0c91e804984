"""The halves of schedules, on symbols: one after the other they are the whole."""

from collections import Counter

import pytest

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.halves import half_of
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER
from gqallreduce.scheduling.simulate import simulate
from gqallreduce.scheduling.topology import Topology, apart, in_hosts

HALVED = [
    (name, size)
    for name, schedule in SCHEDULES.items()
    for size in range(1, 34)
    if schedule.scatter_rounds(apart(size)) is not None
]
EVEN = {
    "2 x 2": in_hosts(4, 2), "4 x 4": in_hosts(16, 4), "3 x 5": in_hosts(15, 5), "one host": in_hosts(6, 6),
    "in turn": Topology((0, 1, 2, 0, 1, 2)), "in no order": Topology((0, 1, 1, 0, 4, 4, 1, 4, 0)),
}  # fmt: skip
BY_HOSTS = [
    *[("hierarchical", name) for name in EVEN],
    *[("hierarchical(outer=ring)", name) for name in EVEN],
    ("hierarchical(outer=halving_doubling)", "2 x 2"),
    ("hierarchical(outer=halving_doubling)", "4 x 4"),
]


def test_which_schedules_have_halves():
    always = {name for name in SCHEDULES if all((name, size) in HALVED for size in range(1, 34))}
    assert always == {"direct", "ring", "hierarchical"}  # on one rank of each host it is its outer schedule
    assert [size for name, size in HALVED if name == "halving_doubling"] == [1, 2, 4, 8, 16, 32]
    assert {name for name, _ in HALVED} == {*always, "halving_doubling"}


@pytest.mark.parametrize(("name", "size"), HALVED)
def test_the_two_in_turn_are_the_whole(name, size):
    are_the_whole(SCHEDULES[name], apart(size))


@pytest.mark.parametrize(("name", "hosts"), BY_HOSTS)
def test_the_two_in_turn_are_the_whole_on_hosts_with_equal_numbers_of_ranks(name, hosts):
    are_the_whole(SCHEDULES[name], EVEN[hosts])


def are_the_whole(schedule, topology):
    size = topology.size
    whole, first, second = (simulate(half_of(schedule, half), topology) for half in (None, REDUCE_SCATTER, ALLGATHER))
    for rank in range(size):
        (kept,) = first.values[rank]
        assert first.symbols.contributions(kept) == Counter(range(size))
        assert first.symbols.order(kept) == whole.symbols.order(whole.values[0][rank])
        assert second.values[rank] == second.values[0]
        assert second.symbols.contributions(second.values[0][rank]) == Counter([rank])
        assert second.symbols.encodings(second.values[0][rank]) == {rank: 1}
    for counted in ("messages", "chunks_sent"):
        halves = zip(getattr(first, counted), getattr(second, counted), strict=True)
        assert [one + two for one, two in halves] == getattr(whole, counted)
    assert not any(chunk == rank for (_, chunk), kept in first.errors.items() for rank, _, _ in kept)
    assert all(kept == Counter({(chunk, 0, 1): 1}) for (_, chunk), kept in second.errors.items())


def test_one_that_has_no_halves_says_so():
    with pytest.raises(ValueError, match="halving_doubling on 3 ranks, which are no power of two"):
        simulate(half_of(SCHEDULES["halving_doubling"], ALLGATHER), apart(3))
    with pytest.raises(ValueError, match="recursive_doubling has no half"):
        simulate(half_of(SCHEDULES["recursive_doubling"], REDUCE_SCATTER), apart(4))
    for name, topology, why in (
        ("hierarchical", Topology((0, 0, 0, 3)), r"hierarchical on hosts with 1 to 3 ranks has no half"),
        ("hierarchical(leaders=one)", in_hosts(4, 2), r"leaders=one. has no half"),
        ("hierarchical(outer=halving_doubling)", in_hosts(6, 2), "whose outer schedule has none on 3 hosts, has no"),
    ):
        with pytest.raises(ValueError, match=why):
            simulate(half_of(SCHEDULES[name], ALLGATHER), topology)

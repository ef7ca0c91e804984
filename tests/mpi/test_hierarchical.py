"""Sums within hosts and between them under MPI: the bits of the oracle, calls under way, errors, and other hosts."""

import numpy as np
import pytest
from ranks import TIMEOUT, alike, inputs

import gqallreduce as gq
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.topology import Topology

pytestmark = pytest.mark.mpi

# of each rank, its host
HOSTS = {"pairs": (0, 0, 2, 2, 4, 4, 6, 6), "one large": (0, 0, 0, 0, 0, 0, 0, 7), "in turn": (0, 1, 0, 1, 0, 1, 0, 1)}


@pytest.fixture(params=HOSTS.values(), ids=HOSTS)
def topology(request, comm, monkeypatch):
    """Each rank says that it is on this host."""
    hosts = request.param[: comm.size]
    monkeypatch.setenv("GQALLREDUCE_HOST", f"host {hosts[comm.rank]}")
    return Topology(tuple(hosts.index(host) for host in hosts))


@pytest.fixture
def own(comm):
    made = comm.Dup()
    yield made
    made.Free()


@pytest.mark.parametrize(
    "scheme",
    [
        "hierarchical/onebit/ef",
        "hierarchical(outer=ring)/qsgd(bits=4)/ef",
        "hierarchical(outer=halving_doubling, leaders=one)/adaptive(pi=8)/ef",
        "hierarchical/terngrad/ef",
        "hierarchical/powersgd(rank=2)/ef",
        "hierarchical/raw",
    ],
)
def test_results_and_residuals_are_the_oracles(own, topology, scheme):
    local = LocalAllreduce(scheme, own.size, topology=topology, average=True)
    with gq.Allreduce(scheme, comm=own, average=True, timeout=TIMEOUT) as allreduce:
        assert allreduce.home.link.topology == topology
        for step in range(3):
            values = inputs(own.size, (70, 900), step=step)
            expected = local([each.copy() for each in values], key="w")[own.rank]
            got = allreduce(values[own.rank], key="w")
            np.testing.assert_array_equal(got, expected)
            if "w" in local.memory[own.rank]:
                np.testing.assert_array_equal(allreduce.residual("w").ravel(), local.memory[own.rank].residual("w"))
        assert allreduce.stats.last.bytes_sent == local.spent[own.rank].bytes_sent


@pytest.mark.parametrize("runtime", ["native", "python"])
@pytest.mark.parametrize(
    "scheme", ["hierarchical/onebit/ef", "hierarchical(outer=ring)/qsgd(bits=4)/ef", "hierarchical/raw"]
)
def test_halves_in_turn_are_the_whole(own, topology, monkeypatch, runtime, scheme):
    """Where hosts have the same number of ranks; else each half is an error on every rank."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    with (
        gq.Allreduce(scheme, comm=own, timeout=TIMEOUT) as whole,
        gq.Allreduce(scheme, comm=own, timeout=TIMEOUT) as halves,
    ):
        if len(set(map(len, topology.groups))) > 1:
            with pytest.raises(ValueError, match=r"on hosts with . to . ranks has no half"):
                halves.reduce_scatter(np.ones(10, np.float32), key="w")
            with pytest.raises(ValueError, match=r"on hosts with . to . ranks has no half"):
                halves.allgather(None, out=np.ones(10, np.float32), key="w")
        else:
            for shape in ((0,), (1,), (own.size + 1,), (70, 90), (40_000,)):
                key = str(shape)
                for step in range(3):
                    mine = inputs(own.size, shape, step=step)[own.rank]
                    summed, out = whole(mine.copy(), key=key), np.full_like(mine, np.nan)
                    shard = halves.reduce_scatter(mine, key=key)
                    np.testing.assert_array_equal(halves.allgather(shard, out=out, key=key), summed)
                    if whole.scheme.feedback:
                        np.testing.assert_array_equal(halves.residual(key), whole.residual(key))
                counts = [mine.size, *[0] * (own.size - 1)]
                shard = halves.reduce_scatter(mine, key=f"{key} counted", counts=counts)
                assert shard.size == counts[own.rank]
        assert alike(own, whole(np.ones(10, np.float32), key="next"))


def test_calls_under_way_and_groups(own, topology):
    with gq.Allreduce("hierarchical/onebit/ef", comm=own, timeout=TIMEOUT) as allreduce:
        given = [inputs(own.size, (each,))[own.rank] for each in (10, 3000, 100_000)]
        requests = [allreduce.start(each, key=f"{number}") for number, each in enumerate(given)]
        group = allreduce.start([each.copy() for each in given], key=list("abc"))
        results = [*gq.wait_all(requests[::-1]), *group.wait()]
        assert all(alike(own, each) for each in results)


def test_a_rank_whose_value_is_not_finite_is_named_on_all(own, topology):
    with gq.Allreduce("hierarchical/onebit/ef", comm=own, timeout=TIMEOUT) as allreduce:
        values = inputs(own.size, (100,))[own.rank]
        if own.rank == own.size - 1:
            values[17] = np.nan
        with pytest.raises(gq.NonFiniteError) as caught:
            allreduce(values, key="w")
        assert (caught.value.rank, caught.value.index) == (own.size - 1, 17)
        allreduce(inputs(own.size, (100,))[own.rank], key="w")


def test_ranks_with_other_options_of_the_schedule_are_told_apart(own, topology):
    if own.size == 1:
        pytest.skip("a single rank has none to differ from")
    text = "hierarchical(outer=ring)/raw" if own.rank == 0 else "hierarchical/raw"
    with gq.Allreduce(text, comm=own, timeout=TIMEOUT) as allreduce:
        with pytest.raises(gq.MismatchError) as caught:
            allreduce(np.zeros(8, np.float32), key="w")
        assert caught.value.field == "scheme"


def test_auto_tries_it_where_ranks_share_hosts(own, topology):
    with gq.Allreduce("auto/onebit/ef", comm=own, timeout=TIMEOUT) as allreduce:
        for step in range(14):
            allreduce(inputs(own.size, (5000,), step=step)[own.rank], key="w")
        assert alike(own, allreduce.stats.last.scheme)

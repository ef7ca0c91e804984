"""Calls of known keys that are carried out at once, of codecs with a scale that all ranks share."""

import time

import numpy as np
import pytest
from at_once import errors_of, note_at_once
from at_once import heard_long_ago as heard_long_ago
from at_once import taken_up as taken_up
from ranks import TIMEOUT, bytes_of, inputs

import gqallreduce as gq
from gqallreduce import allreduce as allreduce_module
from gqallreduce import shards as shards_module
from gqallreduce.runtime import repeated
from gqallreduce.runtime.scales import Scales
from gqallreduce.transport.progress import Progress
from gqallreduce.transport.requests import Requests

pytestmark = [pytest.mark.mpi, pytest.mark.native]
SIZE, LATE, SOON = 40, 0.2, repeated.MOST
KEYS, SIZES = ["a", "b", "c"], (SIZE, 0, 3 * SIZE)


@pytest.fixture
def at_once(monkeypatch):
    """Of each call, was it carried out at once?"""
    return note_at_once(monkeypatch, allreduce_module)


def values(comm, step=0, size=SIZE):
    return inputs(comm.size, (size,), step=step)[comm.rank]


def make(comm, scheme="direct/terngrad/ef", **options):
    """Its key is known."""
    allreduce = gq.Allreduce(scheme, comm=comm, **{"timeout": TIMEOUT, **options})
    allreduce(values(comm), key="w")
    return allreduce


def sums(allreduce, comm, steps, group=False):
    """What these calls return, leave and count."""
    found = []
    for step in steps:
        if group:
            result = allreduce([values(comm, step, size) for size in SIZES], key=KEYS)
            left = [allreduce.residual(key) for key in KEYS] if allreduce.scheme.feedback else []
        else:
            result = [allreduce(values(comm, step), key="w")]
            left = [allreduce.residual("w")] if allreduce.scheme.feedback else []
        last = allreduce.stats.last
        found.append([*map(bytes_of, [*result, *left]), last.messages, last.bytes_sent, last.saturated])
    return found


@pytest.mark.parametrize(
    "scheme", ["direct/terngrad/ef", "ring/terngrad", "recursive_doubling/terngrad(clip=0)", "direct/thc/ef"]
)
@pytest.mark.parametrize("runtimes", ["native", "mixed"])
@pytest.mark.parametrize("group", [False, True])
def test_the_second_call_is_carried_out_at_once_with_the_same_bits(comm, scheme, runtimes, group, at_once, monkeypatch):
    with make(comm, scheme, check="always") as others:
        expected = sums(others, comm, (1, 2, 3), group)
    python = runtimes == "mixed" and comm.rank == 0
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        with make(comm, scheme) as allreduce:
            del at_once[:]
            assert sums(allreduce, comm, (1, 2, 3), group) == expected
            assert not allreduce.home.link.progress.calls
    assert at_once == [not python and not group, not python, not python]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_told_on_all_ranks(comm, value):
    allreduce, fresh = make(comm), make(comm)
    before = allreduce.state_dict()["keys"]["w"]
    array = values(comm)
    array[7] = value if comm.rank == comm.size - 1 else 1
    with pytest.raises(gq.NonFiniteError) as error:
        allreduce(array, key="w")
    assert (error.value.rank, error.value.key, error.value.index) == (comm.size - 1, "w", 7)
    after = allreduce.state_dict()["keys"]["w"]
    assert after["step"] == before["step"]
    assert bytes_of(after["residual"]) == bytes_of(before["residual"])
    assert sums(allreduce, comm, (1, 2)) == sums(fresh, comm, (1, 2))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("late", ["exchange", "run"])
def test_a_late_rank_is_waited_for(comm, late, taken_up, monkeypatch):
    """Rank 0 begins late, so that others take the call up in the exchange of the scales, or after it."""
    monkeypatch.setattr(repeated, "MOST", TIMEOUT)  # what comes before is over at once
    allreduce, expected = make(comm), make(comm)
    run_at_once = Progress.run_at_once

    def slow(link_progress, running, number, tag, most, until):
        if (type(running).__name__ == "NativeRounds") == (late == "exchange"):
            most = SOON
            if comm.rank == 0:
                time.sleep(LATE)
        return run_at_once(link_progress, running, number, tag, most, until)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "run_at_once", slow)
        comm.Barrier()
        found = sums(allreduce, comm, (1,))
    assert found == sums(expected, comm, (1,))
    if comm.rank == 1:  # direct: it receives from rank 0 in the first round
        assert taken_up[:1] == ["Largest" if late == "exchange" else "ScaledRun"]
    assert sums(allreduce, comm, (2, 3)) == sums(expected, comm, (2, 3))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("where", ["own", "take"])
def test_an_error_beside_the_exchange_ends_the_call_on_all_ranks(comm, error, where, monkeypatch):
    allreduce = make(comm, timeout=0.5)
    before = allreduce.state_dict()["keys"]["w"]
    kinds = errors_of(comm, allreduce, values(comm), monkeypatch, Scales, where, error)
    assert kinds[0] is error
    assert set(kinds[1:]) == {gq.Error}
    after = allreduce.state_dict()["keys"]["w"]
    assert after["step"] == before["step"]
    assert bytes_of(after["residual"]) == bytes_of(before["residual"])
    make(comm)


@pytest.mark.mpi(min_size=2)
def test_scales_that_do_not_fit_into_one_message_are_not_exchanged_at_once(comm, at_once, monkeypatch):
    with make(comm) as others:
        expected = sums(others, comm, (1, 2, 3), group=True)
    allreduce = make(comm)
    sums(allreduce, comm, (1,), group=True)
    del at_once[:]
    with monkeypatch.context() as patch:
        patch.setattr(Requests, "least_limit", 8 * len(KEYS) - 1)
        found = sums(allreduce, comm, (2,), group=True)
    found += sums(allreduce, comm, (3,), group=True)
    assert found == expected[1:]
    assert at_once == [False, True]


def test_a_reduce_scatter_is_carried_out_at_once(comm, monkeypatch):
    at_once = note_at_once(monkeypatch, shards_module)
    with make(comm, check="always") as others, make(comm) as allreduce:
        for step in (1, 2, 3):
            expected, found = (each.reduce_scatter(values(comm, step), key="w") for each in (others, allreduce))
            assert bytes_of(found) == bytes_of(expected)
            assert allreduce.stats.last.messages == others.stats.last.messages
            assert allreduce.stats.last.bytes_sent == others.stats.last.bytes_sent
    assert at_once == [False, False, False, True, False, True]

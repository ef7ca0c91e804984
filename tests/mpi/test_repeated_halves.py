"""Reduce-scatters and allgathers of known keys that are carried out at once (runtime/repeated.py)."""

import time

import numpy as np
import pytest
from at_once import heard_long_ago as heard_long_ago
from at_once import note_at_once
from at_once import taken_up as taken_up
from ranks import TIMEOUT, bytes_of, errors, inputs

import gqallreduce as gq
from gqallreduce import shards as shards_module
from gqallreduce.runtime import repeated
from gqallreduce.runtime.halves import Half
from gqallreduce.transport.progress import Progress
from gqallreduce.transport.requests import Requests

pytestmark = [pytest.mark.mpi, pytest.mark.native]
SIZE, LATE, SOON = 40, 0.2, repeated.MOST


@pytest.fixture
def at_once(monkeypatch):
    """Of each half, was it carried out at once?"""
    return note_at_once(monkeypatch, shards_module)


@pytest.fixture
def long_listen(monkeypatch):
    """What a rank does at once may take longer than 2 ms: on a busy machine a Run may, before its headers go out."""
    monkeypatch.setattr(repeated, "MOST", TIMEOUT)


def values(comm, step=0):
    return inputs(comm.size, (SIZE,), step=step)[comm.rank]


def make(comm, scheme="direct/qsgd(bits=4)/ef", **options):
    """An object whose key has gone through both halves once."""
    allreduce = gq.Allreduce(scheme, comm=comm, **{"timeout": TIMEOUT, **options})
    both(allreduce, values(comm))
    return allreduce


def both(allreduce, array, **options):
    shard = allreduce.reduce_scatter(array, key="w", **options)
    return allreduce.allgather(shard.copy(), out=array, key="w", **options)


def gather(allreduce, array):
    return allreduce.allgather(None, out=array, key="w")


@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/qsgd(bits=4)", "ring/topk(k=3)/ef", "direct/raw"])
@pytest.mark.parametrize("runtimes", ["native", "mixed"])
def test_the_second_call_of_a_half_is_at_once(comm, scheme, runtimes, at_once, monkeypatch):
    """With the same bits as calls that are not."""
    with make(comm, scheme, check="always") as others:
        for step in (1, 2):
            expected, sent = both(others, values(comm, step)), others.stats.last.bytes_sent
    python = runtimes == "mixed" and comm.rank == 0
    del at_once[:]
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        with make(comm, scheme) as allreduce:
            for step in (1, 2):
                found, array = both(allreduce, given := values(comm, step)), given
            assert found is array
            assert bytes_of(found) == bytes_of(expected)
            assert allreduce.stats.last.bytes_sent == sent
            assert allreduce.stats.last.dense_bytes == pytest.approx(array.nbytes * (comm.size - 1) / comm.size)
            assert allreduce.state_dict()["keys"]["w"]["step"] == 3
            assert not allreduce.home.link.progress.calls
    assert at_once == [False] * 2 + [not python] * 4


def test_a_group_is_at_once_but_not_with_other_counts(comm, at_once):
    names, sizes = ["a", "b"], [8 * comm.size, 0]
    with gq.Allreduce("direct/qsgd(bits=4)", comm=comm, timeout=TIMEOUT) as allreduce:
        for counts in (None, None, [[8] * comm.size, [0] * comm.size], [[8] * comm.size, None]):
            arrays = [np.ones(size, np.float32) for size in sizes]
            found = allreduce.reduce_scatter(arrays, key=names, counts=counts)
            assert (found[0] == comm.size).all()
            assert all(np.shares_memory(*each) or not each[0].size for each in zip(found, arrays, strict=True))
    assert at_once == [False, True, False, False]


@pytest.mark.mpi(min_size=2)
def test_counts_may_come_from_an_iterator(comm):
    with gq.Allreduce("direct/raw", comm=comm, timeout=TIMEOUT) as allreduce:
        for step in range(4):
            counts = [3] * comm.size
            counts[0], counts[-1] = counts[0] + step % 2, counts[-1] - step % 2
            shard = allreduce.reduce_scatter(np.ones(3 * comm.size, np.float32), key="w", counts=iter(counts))
            np.testing.assert_array_equal(shard, np.full(counts[comm.rank], comm.size, np.float32))
            arrays, keys = [np.ones(3 * comm.size, np.float32) for _ in range(2)], ["a", "b"]
            for part in allreduce.reduce_scatter(arrays, key=keys, counts=[iter(counts), iter(counts)]):
                assert part.size == counts[comm.rank]


def test_a_shard_is_taken_once_whatever_goes_wrong_before_the_call(comm, monkeypatch):
    """It overlaps its place in the array, so that copying it twice would be seen."""
    allreduce, returned = make(comm, "direct/raw"), Half.returned
    for fails in (False, True):
        array = np.arange(SIZE + 1, dtype=np.float32)
        place = allreduce.shard(array[:SIZE])
        begin = (place.ctypes.data - array.ctypes.data) // 4
        with monkeypatch.context() as patch:
            if fails and comm.rank == 0:
                patch.setattr(Half, "returned", lambda half, result: patch.undo() or returned(half, 1 / 0))
            found = allreduce.allgather(array[begin + 1 : begin + 1 + place.size], out=array[:SIZE], key="w")
        np.testing.assert_array_equal(found, np.arange(1, SIZE + 1))


@pytest.mark.parametrize("half", ["reduce_scatter", "allgather"])
def test_a_value_that_is_not_finite_is_told_on_all_ranks_and_changes_nothing(comm, half, taken_up, long_listen):
    allreduce = make(comm)
    before = allreduce.state_dict()["keys"]["w"]
    for _ in range(2):
        array = values(comm)
        bad = allreduce.shard(array)
        if comm.rank == comm.size - 1:
            bad[0] = np.nan
        where = SIZE - len(bad)  # its shard is the last one
        with pytest.raises(gq.NonFiniteError) as error:
            allreduce.reduce_scatter(array, key="w") if half == "reduce_scatter" else gather(allreduce, array)
        index = comm.bcast(where, root=comm.size - 1)
        assert (error.value.rank, error.value.key, error.value.index) == (comm.size - 1, "w", index)
    if half == "reduce_scatter" and comm.size > 1:  # one rank has the flaw, and the others hear of it at the end
        assert ("Gather" in taken_up) == (comm.rank < comm.size - 1)
    after = allreduce.state_dict()["keys"]["w"]
    assert after["step"] == before["step"]
    assert bytes_of(after["residual"]) == bytes_of(before["residual"])
    both(allreduce, values(comm))


@pytest.mark.mpi(min_size=2)
def test_a_late_exchange_of_headers_is_waited_for(comm, taken_up, long_listen, monkeypatch):
    """Rank 0 begins it late."""
    allreduce, expected = make(comm), make(comm)
    run_at_once = Progress.run_at_once

    def late(link_progress, running, number, tag, most, until):
        if type(running).__name__ == "NativeRounds":
            most = SOON
            if comm.rank == 0:
                time.sleep(LATE)
        return run_at_once(link_progress, running, number, tag, most, until)

    monkeypatch.setattr(Progress, "run_at_once", late)
    comm.Barrier()
    found = both(allreduce, values(comm))
    monkeypatch.undo()
    assert bytes_of(found) == bytes_of(both(expected, values(comm)))
    assert allreduce.stats.total.messages == expected.stats.total.messages
    assert comm.rank == 0 or "Gather" in taken_up


@pytest.mark.mpi(min_size=2)
def test_an_interrupt_before_the_exchange_of_headers_ends_the_call_on_all_ranks(comm, long_listen, monkeypatch):
    allreduce, run_at_once = make(comm, timeout=0.4), Progress.run_at_once

    def interrupted(link_progress, running, number, tag, most, until):
        if type(running).__name__ == "NativeRounds":
            most = SOON
            if comm.rank == 0:
                raise KeyboardInterrupt
        return run_at_once(link_progress, running, number, tag, most, until)

    monkeypatch.setattr(Progress, "run_at_once", interrupted)
    before, problem = allreduce.state_dict()["keys"]["w"]["step"], None
    try:
        allreduce.reduce_scatter(values(comm), key="w")
    except (Exception, KeyboardInterrupt) as error:
        problem = error
    kinds = comm.allgather(type(problem))
    assert kinds[0] is KeyboardInterrupt
    assert set(kinds[1:]) == {gq.Error}
    assert allreduce.state_dict()["keys"]["w"]["step"] == before
    monkeypatch.undo()
    both(make(comm), values(comm))


@pytest.mark.mpi(min_size=2)
def test_headers_that_do_not_fit_into_one_message_are_not_exchanged_at_once(comm, at_once, monkeypatch):
    allreduce = make(comm)
    del at_once[:]
    monkeypatch.setattr(Requests, "least_limit", 31)
    both(allreduce, values(comm))
    assert at_once == [False, True]


@pytest.mark.mpi(min_size=2)
def test_ranks_that_make_different_calls_of_a_known_key_are_told(comm):
    allreduce = make(comm, "direct/qsgd(bits=4)")

    def call():
        if comm.rank:
            allreduce.reduce_scatter(values(comm), key="w")
        else:
            allreduce(values(comm), key="w")

    allreduce(values(comm), key="w")
    assert {kind for kind, _ in errors(comm, call)} <= {gq.MismatchError, gq.Error}


def test_shards_that_do_not_fit_are_told(comm, at_once):
    allreduce = make(comm)
    del at_once[:]
    for shard in (np.zeros(SIZE + 1, np.float32), np.zeros(1, np.float64)):
        with pytest.raises(ValueError, match="shard"):
            allreduce.allgather(shard, out=values(comm), key="w")
    assert at_once == [False, False]
    both(allreduce, values(comm))

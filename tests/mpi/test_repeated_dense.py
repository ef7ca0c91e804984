"""Calls of known keys by MPI's own sum that are carried out at once."""

import time

import numpy as np
import pytest
from at_once import errors_of, note_at_once, require_free_at_once
from at_once import heard_long_ago as heard_long_ago
from at_once import taken_up as taken_up
from ranks import TIMEOUT, alike, bytes_of, everywhere, inputs, works

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce import allreduce as allreduce_module
from gqallreduce.runtime import repeated
from gqallreduce.transport import agreement
from gqallreduce.transport.dense import DenseSum
from gqallreduce.transport.progress import Progress
from gqallreduce.transport.requests import Requests

pytestmark = [pytest.mark.mpi, pytest.mark.native]
SIZE, LATE, SOON = 40, 0.2, repeated.MOST


@pytest.fixture
def at_once(monkeypatch):
    """Of each call, was it carried out at once?"""
    return note_at_once(monkeypatch, allreduce_module)


def values(comm, step=0, shape=(SIZE,), dtype="float32", order="C"):
    return inputs(comm.size, shape, dtype, order, step)[comm.rank]


def make(comm, scheme="dense/ef", **options):
    """Its key is known."""
    allreduce = gq.Allreduce(scheme, comm=comm, **{"timeout": TIMEOUT, **options})
    allreduce(values(comm), key="w")
    return allreduce


def sums(allreduce, comm, steps, key="w", group=False, **form):
    """What these calls return, leave and count."""
    found = []
    for step in steps:
        array = values(comm, step, **form)
        out = np.empty_like(array) if step % 2 else None
        if group:
            (result,) = allreduce([array], key=[key], out=None if out is None else [out])
        else:
            result = allreduce(array, key=key, out=out)
        left = [allreduce.residual(key)] if allreduce.scheme.feedback else []
        last = allreduce.stats.last
        counted = last.messages, last.bytes_sent, last.bytes_received, last.dense_bytes, last.scheme, last.dense
        found.append([*map(bytes_of, [result, *left]), *counted])
    return found


@pytest.mark.parametrize("scheme", ["dense", "dense/ef"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(0,), (1,), (SIZE + 1,), (9, 7)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("runtimes", ["native", "mixed"])
@pytest.mark.parametrize("group", [False, True])
def test_the_second_call_is_with_the_same_bits(
    comm, scheme, dtype, shape, order, average, runtimes, group, at_once, monkeypatch
):
    """A single tensor, also if it is called as a group, as a Reducer does."""
    form = {"shape": shape, "dtype": dtype, "order": order, "group": group}
    with make(comm, scheme, average=average, check="always") as others:
        expected = sums(others, comm, (1, 2, 3), "v", **form)
    python = runtimes == "mixed" and comm.rank == 0
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        with make(comm, scheme, average=average) as allreduce:
            del at_once[:]
            assert sums(allreduce, comm, (1, 2, 3), "v", **form) == expected
            assert not allreduce.home.link.progress.calls
    assert at_once == [False, not python, not python]


def test_groups_and_calls_without_a_key(comm, at_once):
    """A group is not; a call without a key is."""
    with make(comm, "dense") as allreduce, make(comm, "dense", check="always") as others:
        del at_once[:]
        for step in (1, 2, 3):
            mine = [[values(comm, step), values(comm, step + 10)] for _ in range(2)]
            for each, arrays in zip((allreduce, others), mine, strict=True):
                each(arrays, key=["a", "b"])
                each(arrays[0])
            assert [*map(bytes_of, mine[0])] == [*map(bytes_of, mine[1])]
    assert at_once[::2] == [False] * 6
    assert at_once[1::4] == [False, True, True]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_told_on_all_ranks(comm, value):
    allreduce, fresh = make(comm), make(comm)
    before = allreduce.state_dict()["keys"]["w"]
    array = values(comm)
    array[7] = value if comm.rank == comm.size - 1 else 1
    kind, said = everywhere(comm, allreduce, array, key="w")
    assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, comm.size - 1, "w", 7)
    after = allreduce.state_dict()["keys"]["w"]
    assert after["step"] == before["step"]
    assert bytes_of(after["residual"]) == bytes_of(before["residual"])
    assert sums(allreduce, comm, (1, 2)) == sums(fresh, comm, (1, 2))


def test_a_call_after_a_value_that_is_not_finite(comm):
    """Nothing of that one is left under way."""
    allreduce, other = make(comm, "dense"), gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    for key, each in (("w", allreduce), ("new", other), ("new", allreduce)):
        array = values(comm)
        array[7] = np.nan
        assert everywhere(comm, each, array, key=key)[0] is gq.NonFiniteError
        assert each.unusable is None
    sums(allreduce, comm, (1, 2))
    works(comm, other)


@pytest.mark.parametrize("scheme", ["dense", "dense/ef"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("bad", [(3, 9), (801, 9), (3, 190)])
def test_the_first_flaw_of_a_long_array_is_named(comm, scheme, in_place, order, bad):
    """Sums are written block by block, and a flaw is found when those before it have replaced own values."""
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    largest = np.float32(np.finfo(np.float32).max / comm.size)
    for number in range(3):
        array = np.full((900, 200), largest if scheme == "dense" else 1, np.float32, order=order)
        if number < 2:
            allreduce(array, key="w", out=None if in_place else np.empty_like(array))
    array[bad] = np.nan if comm.rank == 0 else 1
    array[888, 177] = np.inf
    kind, said = everywhere(comm, allreduce, array, key="w", out=None if in_place else np.empty_like(array))
    assert (kind, said["rank"], said["index"]) == (gq.NonFiniteError, 0, 200 * bad[0] + bad[1])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("late", ["agreement", "sum"])
@pytest.mark.parametrize("flawed", [False, True])
def test_a_late_rank_is_waited_for(comm, late, flawed, taken_up, monkeypatch):
    """Rank 0 begins late, so that others take the call up in the agreement, or in the sum."""
    monkeypatch.setattr(repeated, "MOST", TIMEOUT)  # what comes before is over at once
    allreduce, expected = make(comm), make(comm)
    run_at_once = Progress.run_at_once

    def slow(link_progress, running, number, tag, most, until):
        if isinstance(running, _kernels.NativeSum) == (late == "sum"):
            most = SOON
            if comm.rank == 0:
                time.sleep(LATE)
        return run_at_once(link_progress, running, number, tag, most, until)

    def make_calls():
        array = values(comm)
        array[3] = np.nan
        if flawed:
            assert everywhere(comm, allreduce, array, key="w")[0] is gq.NonFiniteError
        return sums(allreduce, comm, (1,))

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "run_at_once", slow)
        comm.Barrier()
        found = make_calls()
    assert found == sums(expected, comm, (1,))
    if comm.rank == 1:
        assert taken_up[:1] == ["Largest" if late == "agreement" else "Summing"]
    assert sums(allreduce, comm, (2, 3)) == sums(expected, comm, (2, 3))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("where", ["load", "summing", "store"])
def test_an_error_in_it_ends_the_call_on_all_ranks(comm, error, where, monkeypatch):
    """But on those that have their sum already: an error in `store` is that of one rank alone."""
    allreduce = make(comm, timeout=0.5)
    before = allreduce.state_dict()["keys"]["w"]
    kinds = errors_of(comm, allreduce, values(comm), monkeypatch, DenseSum, where, error)
    assert kinds[0] is error
    assert set(kinds[1:]) <= ({type(None), gq.Error} if where == "store" else {gq.Error})
    after = allreduce.state_dict()["keys"]["w"]
    if kinds[comm.rank] is not type(None):
        assert after["step"] == before["step"]
        assert bytes_of(after["residual"]) == bytes_of(before["residual"])
    make(comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("rank", [0, 1])
def test_states_of_different_steps_are_found(comm, rank):
    allreduce = make(comm)
    memory = allreduce.memory
    if comm.rank == rank:
        memory.commit({"w": memory.get("w").replaced(step=7)})
    assert everywhere(comm, lambda: mismatch(allreduce, values(comm)))[1]["field"] == "frame"
    if comm.rank == rank:
        memory.commit({"w": memory.get("w").replaced(step=1)})
    works(comm, allreduce, key="w2")


def mismatch(allreduce, array):
    """The same error on all ranks but for the ranks that it names."""
    try:
        allreduce(array, key="w")
    except gq.MismatchError as error:
        raise gq.MismatchError(error.field, (), "") from None


@pytest.mark.mpi(min_size=2)
def test_an_agreement_that_does_not_fit_into_one_message_is_not_made_at_once(comm, at_once, monkeypatch):
    allreduce = make(comm)
    del at_once[:]
    with monkeypatch.context() as patch:
        patch.setattr(Requests, "least_limit", 8 * agreement.FIRST_WORDS - 1)
        sums(allreduce, comm, (1,))
    sums(allreduce, comm, (2,))
    assert at_once == [False, True]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_callers_errstate_is_not_that_of_a_call(comm, dtype):
    """Where a sum overflows, and where a part of it is denormal, on all ranks or on one."""
    for average in (False, True):
        allreduce = make(comm, average=average)
        for step, value in enumerate((np.finfo(dtype).tiny / 4, 1, np.finfo(dtype).max)):
            array = np.full(SIZE, value, dtype)
            allreduce(array.copy() / 2**20, key="v")
            with np.errstate(all="raise" if (comm.rank + step) % 2 else "ignore"):
                try:
                    allreduce(array, key="v")
                except gq.NonFiniteError:
                    assert value == np.finfo(dtype).max
        assert allreduce.unusable is None
        works(comm, allreduce)


def test_what_it_was_given_is_free_at_once(comm):
    require_free_at_once(make(comm), values(comm))


@pytest.mark.mpi(min_size=2)
def test_a_sum_that_was_started_goes_on_while_its_caller_computes(comm):
    """Once it has begun; by the progress thread, where there is one."""
    allreduce, size = make(comm, "dense"), 1 << 22
    allreduce(np.ones(size, np.float32), key="v")
    progress, array, running = allreduce.home.link.progress, np.full(size, comm.rank + 1, np.float32), None
    if not progress._threaded:
        pytest.skip("this MPI does not allow several threads")
    request = allreduce.start(array, key="v")
    while running is None and not request.test():
        found = progress.calls[0].running if progress.calls else None
        running = found[0] if found and isinstance(found[0], _kernels.NativeSum) else None
    until = time.monotonic() + TIMEOUT
    while running is not None and not running.done:
        assert time.monotonic() < until
        time.sleep(1e-3)
    request.wait()
    assert (array == comm.size * (comm.size + 1) / 2).all()
    assert alike(comm, array)

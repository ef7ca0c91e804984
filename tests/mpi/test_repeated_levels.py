"""Calls of known keys that are carried out at once, of codecs that learn levels, between two updates of these."""

import contextlib
import time

import numpy as np
import pytest
from at_once import heard_long_ago as heard_long_ago
from at_once import note_at_once
from at_once import taken_up as taken_up
from ranks import TIMEOUT, bytes_of, errors, inputs, works

import gqallreduce as gq
from gqallreduce import allreduce as allreduce_module
from gqallreduce import shards as shards_module
from gqallreduce.runtime import repeated
from gqallreduce.transport.progress import Progress

pytestmark = [pytest.mark.mpi, pytest.mark.native]
SIZE, LATE, SOON = 40, 0.2, repeated.MOST
KEYS, SIZES = ["a", "b", "c"], (SIZE, 1, 3 * SIZE)
UPDATES = "bucket=16, updates=(0, 4), every=0, samples=2"  # calls 0 and 4 update, call 3 gathers
SCHEMES = [
    f"direct/alq(bits=3, {UPDATES})/ef",
    f"ring/amq(bits=4, coding=huffman, {UPDATES})",
    f"recursive_doubling/alq_n(bits=3, rotate=True, {UPDATES})/ef",
]


@pytest.fixture
def at_once(monkeypatch):
    """Of each call, was it carried out at once?"""
    return note_at_once(monkeypatch, allreduce_module)


def values(comm, step=0, size=SIZE):
    return inputs(comm.size, (size,), step=step)[comm.rank]


def make(comm, scheme=SCHEMES[0], **options):
    """Its key has learned levels."""
    allreduce = gq.Allreduce(scheme, comm=comm, **{"timeout": TIMEOUT, **options})
    allreduce(values(comm), key="w")
    return allreduce


def kept(allreduce, keys):
    """What the object keeps of keys, as plain values and bytes."""
    states = [allreduce.state_dict()["keys"][key] for key in keys]
    arrays = [[each.get("residual"), each["learned"]["levels"], each["learned"]["gathered"]] for each in states]
    counts = [(each["step"], each["learned"]["calls"], each["learned"]["updates"]) for each in states]
    return counts, [[None if array is None else bytes_of(array) for array in each] for each in arrays]


def sums(allreduce, comm, steps, group=False):
    """What these calls return, keep and count."""
    found = []
    for step in steps:
        if group:
            results, keys = allreduce([values(comm, step, size) for size in SIZES], key=KEYS), KEYS
        else:
            results, keys = [allreduce(values(comm, step), key="w")], ["w"]
        last = allreduce.stats.last
        found.append([list(map(bytes_of, results)), kept(allreduce, keys), last.messages, last.bytes_sent])
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("runtimes", ["native", "mixed"])
@pytest.mark.parametrize("group", [False, True])
def test_calls_between_updates_are_carried_out_at_once_with_the_same_bits(
    comm, scheme, runtimes, group, at_once, monkeypatch
):
    steps = range(0 if group else 1, 7)  # also which call of a key it is
    with make(comm, scheme, check="always") as others:
        expected = sums(others, comm, steps, group)
    python = runtimes == "mixed" and comm.rank == 0
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        with make(comm, scheme) as allreduce:
            del at_once[:]
            assert sums(allreduce, comm, steps, group) == expected
            assert not allreduce.home.link.progress.calls
    assert at_once == [not python and call in (1, 2, 5, 6) for call in steps]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_told_on_all_ranks(comm, value, at_once):
    allreduce, fresh = make(comm), make(comm)
    before = kept(allreduce, ["w"])
    array = values(comm)
    array[7] = value if comm.rank == comm.size - 1 else 1
    del at_once[:]
    with pytest.raises(gq.NonFiniteError) as error:
        allreduce(array, key="w")
    assert (error.value.rank, error.value.key, error.value.index) == (comm.size - 1, "w", 7)
    assert kept(allreduce, ["w"]) == before
    assert sums(allreduce, comm, (1, 2)) == sums(fresh, comm, (1, 2))


@pytest.mark.mpi(min_size=2)
def test_a_late_rank_is_waited_for(comm, taken_up, monkeypatch):
    """What the codec has learned is kept too when the call ends as any other."""
    monkeypatch.setattr(repeated, "MOST", TIMEOUT)  # what comes before is over at once
    allreduce, expected = make(comm), make(comm)
    run_at_once = Progress.run_at_once

    def slow(link_progress, running, number, tag, most, until):
        if comm.rank == 0:
            time.sleep(LATE)
        return run_at_once(link_progress, running, number, tag, SOON, until)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "run_at_once", slow)
        comm.Barrier()
        found = sums(allreduce, comm, (1,))
    assert found == sums(expected, comm, (1,))
    if comm.rank == 1:  # direct: it receives from rank 0 in the first round
        assert taken_up[:1] == ["KnownRun"]
    assert sums(allreduce, comm, (2, 3)) == sums(expected, comm, (2, 3))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("differs", ["calls", "levels"])
def test_a_rank_that_has_learned_something_else_is_told(comm, differs, at_once):
    """By the headers: a decoder would take its codes for other numbers."""
    allreduce = make(comm)
    allreduce(values(comm), key="w")
    if comm.rank == comm.size - 1:
        state = allreduce.memory.get("w")
        learned = dict(state.learned)
        if differs == "calls":
            learned["calls"] -= 1
        else:
            learned["levels"] = learned["levels"].copy()
            learned["levels"][1] = np.nextafter(learned["levels"][1], np.float32(1))
        allreduce.memory.commit({"w": state.knowing(learned)})
    del at_once[:]
    found = errors(comm, allreduce, values(comm), key="w")
    assert {each and each[0] for each in found} == {gq.MismatchError}
    assert {each[1]["field"] for each in found} == {"frame"}
    works(comm, make(comm))


def test_a_step_that_is_given_up_teaches_nothing(comm, at_once):
    allreduce, fresh = make(comm), make(comm)
    before = kept(allreduce, ["w"])
    del at_once[:]
    with contextlib.suppress(RuntimeError), allreduce.step():
        allreduce(values(comm, 1), key="w")
        allreduce(values(comm, 2), key="w")
        assert kept(allreduce, ["w"])[0] == [(3, 3, 1)]
        raise RuntimeError
    assert at_once == [True, True]
    assert kept(allreduce, ["w"]) == before
    assert sums(allreduce, comm, (1, 2)) == sums(fresh, comm, (1, 2))


@pytest.mark.parametrize("runtimes", ["native", "mixed"])
def test_a_reduce_scatter_is_carried_out_at_once(comm, runtimes, monkeypatch):
    """Python and C++ exchange the same headers after it."""
    at_once, scheme = note_at_once(monkeypatch, shards_module), f"direct/alq(bits=3, {UPDATES})"
    python = runtimes == "mixed" and comm.rank == 0
    with make(comm, scheme, check="always") as others:
        expected = [others.reduce_scatter(values(comm, step), key="w") for step in (1, 2)]
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        del at_once[:]
        with make(comm, scheme) as allreduce:
            found = [allreduce.reduce_scatter(values(comm, step), key="w") for step in (1, 2)]
    assert list(map(bytes_of, found)) == list(map(bytes_of, expected))
    assert at_once == [False, not python]

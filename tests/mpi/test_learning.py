"""What a codec has learned is part of a key's state: kept, undone and saved with its residual."""

import copy

import asking
import numpy as np
import pytest

import gqallreduce as gq

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def _asking():
    asking.enter()
    yield
    asking.leave()


def gradient(comm, seed, size=50):
    return np.random.default_rng([seed, comm.rank]).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("suffix", ["", "/ef"])
def test_a_loaded_state_goes_on_as_the_saved_one(comm, suffix):
    one, two = (gq.Allreduce(f"direct/asking{suffix}", comm=comm, timeout=30) for _ in range(2))
    for call in range(2):
        one([gradient(comm, call), gradient(comm, call, 9)], key=["a", "b"])
    state = one.state_dict()
    assert state["keys"]["a"]["learned"]["calls"] == 2
    two.load_state_dict(copy.deepcopy(state))
    state["keys"]["a"]["learned"]["told"][:] = 0  # a copy
    for allreduce in (one, two):
        allreduce(gradient(comm, 7), key="a")
    found = [allreduce.state_dict()["keys"]["a"]["learned"] for allreduce in (one, two)]
    assert found[0]["calls"] == found[1]["calls"] == 3
    np.testing.assert_array_equal(found[0]["told"], found[1]["told"])
    everyone = comm.allgather(found[0]["told"].tobytes())
    assert len(set(everyone)) == 1
    if suffix:
        one.flush()
        assert one.state_dict()["keys"]["a"]["learned"]["calls"] == 3


def test_calls_under_way_are_told_apart(comm):
    allreduce = gq.Allreduce("direct/asking", comm=comm, timeout=30)
    requests = [allreduce.start(gradient(comm, seed, 20 + seed), key=f"{seed}") for seed in range(6)]
    gq.wait_all(requests[::-1] if comm.rank % 2 else requests)
    for seed in range(6):
        (row,) = allreduce.state_dict()["keys"][f"{seed}"]["learned"]["told"]
        assert row[2] == comm.size * (20 + seed)


def test_a_step_undoes_what_was_learned(comm):
    allreduce = gq.Allreduce("direct/asking", comm=comm, timeout=30)
    allreduce(gradient(comm, 1), key="a")

    def step():
        with allreduce.step():
            allreduce(gradient(comm, 2), key="a")
            allreduce(np.full(3, np.nan, np.float32), key="b")

    with pytest.raises(gq.NonFiniteError):
        step()
    keys = allreduce.state_dict()["keys"]
    assert {key: entry["learned"]["calls"] for key, entry in keys.items()} == {"a": 1}


def test_unfit_states_and_calls_without_a_key_are_refused(comm):
    allreduce = gq.Allreduce("direct/asking", comm=comm, timeout=30)
    with pytest.raises(ValueError, match="what it has learned: give the buffer a key"):
        allreduce(gradient(comm, 1))
    allreduce(gradient(comm, 1), key="a")
    for spoil, message in (
        (lambda entry: entry["learned"].update(told=[[10**400] * 7]), "unfit"),
        (lambda entry: entry.update(learned=3), "unfit"),
        (lambda entry: entry["learned"].pop("told"), "unfit"),
        (lambda entry: entry["learned"].update(calls=7), "expected .7, 7."),
    ):
        state = allreduce.state_dict()
        spoil(state["keys"]["a"])
        with pytest.raises(ValueError, match=message):
            allreduce.load_state_dict(state)
    assert allreduce.state_dict()["keys"]["a"]["learned"]["calls"] == 1


def test_what_nothing_was_learned_of_is_loaded_too(comm):
    """As after an exact sum that `auto` chose."""
    allreduce = gq.Allreduce("auto/asking/ef", comm=comm, timeout=30)
    allreduce(gradient(comm, 1), key="a")
    state = allreduce.state_dict()
    allreduce.load_state_dict(state)
    allreduce(gradient(comm, 2), key="a")

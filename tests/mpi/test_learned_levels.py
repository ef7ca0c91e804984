"""Levels that are learned from call to call: the same on every rank, part of a key's state, told in every header."""

import copy

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, errors, works

import gqallreduce as gq
from gqallreduce.registry import SCHEDULES

pytestmark = pytest.mark.mpi
NAMES = ["alq", "alq_n", "amq", "amq_n"]


def make(comm, scheme):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)


def gradient(comm, call, size=3000):
    """Of another shape of distribution in every call."""
    rng = np.random.default_rng([call, comm.rank])
    return (rng.standard_normal(size) ** (2 * call + 1)).astype(np.float32)


def levels(allreduce, key="w"):
    return allreduce.state_dict()["keys"][key]["learned"]["levels"]


def alike(comm, array) -> bool:
    return len(set(comm.allgather(bytes_of(array)))) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", ["", "/ef"])
def test_ranks_have_the_same_levels_and_results_at_every_call(comm, name, suffix):
    allreduce = make(comm, f"{name}(bits=3, bucket=100, updates=(0, 2), every=3, samples=2){suffix}")
    seen = []
    for call in range(7):
        array = gradient(comm, call % 4)
        allreduce(array, key="w")
        assert alike(comm, array)
        assert alike(comm, levels(allreduce))
        seen.append(levels(allreduce).tobytes())
    changed = [call for call in range(1, 7) if seen[call] != seen[call - 1]]
    assert changed == [2, 3, 6]


def test_levels_follow_from_the_values_of_all_ranks(comm):
    """A rank's heavy tails change the levels of all: they are not those of a call on another rank's values alone."""
    ours, alone = (make(each, "alq(bits=3, samples=1)") for each in (comm, comm.Split(comm.rank)))
    array = gradient(comm, 2 if comm.rank == comm.size - 1 else 0)
    ours(array.copy(), key="w")
    alone(array, key="w")
    assert alike(comm, levels(ours))
    assert comm.size == 1 or not alike(comm, levels(alone))
    assert bytes_of(levels(ours)) != bytes_of(levels(alone)) or comm.size == 1


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_loaded_state_goes_on_as_the_saved_one(comm, schedule):
    """In the middle of what is gathered for an update too."""
    scheme = f"{schedule}/alq(bits=3, bucket=64, updates=(0, 4), every=0, samples=3)/ef"
    one, two = make(comm, scheme), make(comm, scheme)
    for call in range(3):
        one(gradient(comm, call), key="w")
    state = one.state_dict()
    assert state["keys"]["w"]["learned"]["gathered"].sum() > 0
    two.load_state_dict(copy.deepcopy(state))
    for call in (3, 0, 1):
        results = [gradient(comm, call) for _ in range(2)]
        one(results[0], key="w")
        two(results[1], key="w")
        assert bytes_of(results[0]) == bytes_of(results[1])
        assert bytes_of(levels(one)) == bytes_of(levels(two))
        assert alike(comm, results[0])


@pytest.mark.parametrize("share", ["key", "group"])
def test_keys_of_a_group_have_levels_of_their_own_or_the_same(comm, share):
    allreduce, single = (make(comm, f"alq(bits=3, bucket=64, samples=1, share={share})/ef") for _ in range(2))
    keys, arrays = ["a", "b", "c"], [gradient(comm, call, 500 + call) for call in range(3)]
    for key, array in zip(keys, arrays, strict=True):
        single(array.copy(), key=key)
    allreduce(arrays, key=keys)
    found = [bytes_of(levels(allreduce, key)) for key in keys]
    assert len(set(found)) == (3 if share == "key" else 1)
    for key, mine in zip(keys, found, strict=True):
        assert alike(comm, levels(allreduce, key))
        assert (mine == bytes_of(levels(single, key))) == (share == "key")
    allreduce(gradient(comm, 3), key="d")  # alone, it shares with no other
    assert bytes_of(levels(allreduce, "d")) not in found


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_rank_with_other_levels_is_told(comm, schedule):
    """By the headers: a decoder would take its codes for other numbers."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    scheme = f"{schedule}/alq(bits=3, bucket=64, every=0)"
    one, two = make(comm, scheme), make(comm, scheme)
    one(gradient(comm, 1), key="w")
    state = one.state_dict()
    if comm.rank == comm.size - 1:
        known = state["keys"]["w"]["learned"]["levels"]
        known[1] = np.nextafter(known[1], np.float32(1))
    two.load_state_dict(state)
    refused(comm, two)
    works(comm, make(comm, scheme))


@pytest.mark.parametrize("updates", ["(0, 9)", "(9, )"])
def test_a_rank_that_has_had_fewer_calls_is_told(comm, updates):
    """Before an update is due on one rank and not on another."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    scheme = f"direct/alq(bits=3, bucket=64, updates={updates}, every=0)"
    one, two = make(comm, scheme), make(comm, scheme)
    for _ in range(2):
        one(gradient(comm, 1), key="w")
    state = one.state_dict()
    state["keys"]["w"]["learned"]["calls"] -= comm.rank == 0
    two.load_state_dict(state)
    refused(comm, two)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("samples", [1, 10])
@pytest.mark.parametrize("behind", [0, -1])
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_rank_that_updates_at_another_call_is_told(comm, schedule, behind, samples):
    """One rank sends values while the others exchange what their levels follow from, or the reverse."""
    told_of_updates(comm, schedule, behind, samples)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("behind", [0, -1])
def test_a_rank_that_updates_at_another_call_is_told_where_python_carries_values(comm, monkeypatch, behind):
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", "python")
    told_of_updates(comm, "direct", behind, 1)


def told_of_updates(comm, schedule, behind, samples):
    allreduce = make(comm, f"{schedule}/alq(bits=3, bucket=64, updates=(0, 3), every=0, samples={samples})")
    for call in range(3):
        allreduce(gradient(comm, call), key="w")
    if comm.rank == behind % comm.size:
        state = allreduce.memory.get("w")
        allreduce.memory.commit({"w": state.knowing({**state.learned, "calls": state.learned["calls"] - 1})})
    refused(comm, allreduce)
    works(comm, make(comm, "direct/alq"))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ["direct/amq_n(bits=3, bucket=16, updates=(0, 4), every=0, samples=4)",
                                    "ring/topk(k=3, sums=union, balance=4)/ef"])  # fmt: skip
def test_ranks_of_which_one_updates_fewer_keys_of_a_group_are_told(comm, scheme):
    """Before a message of the others, which is longer, can be received: an MPI may write past the end of a receive."""
    allreduce = make(comm, scheme)
    keys = ["a", "b"]
    for call in range(4):
        allreduce([gradient(comm, call) for _ in keys], key=keys)
    if comm.rank == comm.size - 1:
        state = allreduce.memory.get("a")
        allreduce.memory.commit({"a": state.knowing({**state.learned, "calls": state.learned["calls"] - 1})})
    found = errors(comm, allreduce, [gradient(comm, 5) for _ in keys], key=keys)
    assert {each and each[0] for each in found} == {gq.MismatchError}
    last = comm.size - 1
    assert [each[1]["ranks"] for each in found] == [(last,)] * comm.size
    works(comm, make(comm, scheme))


def refused(comm, allreduce):
    found = errors(comm, allreduce, gradient(comm, 1), key="w")
    assert {each and each[0] for each in found} == {gq.MismatchError}
    assert {each[1]["field"] for each in found} == {"frame"}


def test_a_call_that_fails_teaches_nothing(comm):
    allreduce = make(comm, "alq(bits=3, bucket=64, updates=(0, 1), samples=1)/ef")
    allreduce(gradient(comm, 1), key="w")
    before = allreduce.state_dict()["keys"]["w"]["learned"]
    flawed = gradient(comm, 3)
    if comm.rank == 0:
        flawed[5] = np.nan
    with pytest.raises(gq.NonFiniteError):
        allreduce(flawed, key="w")
    after = allreduce.state_dict()["keys"]["w"]["learned"]
    assert (after["calls"], after["updates"]) == (before["calls"], before["updates"]) == (1, 1)
    assert bytes_of(after["levels"]) == bytes_of(before["levels"])
    works(comm, allreduce)


def test_calls_under_way_update_each_its_own_key(comm):
    allreduce = make(comm, "alq(bits=2, bucket=64, updates=(0, 1), samples=1)/ef")
    single = make(comm, "alq(bits=2, bucket=64, updates=(0, 1), samples=1)/ef")
    keys = [f"{number}" for number in range(6)]
    for step in range(2):
        arrays = [gradient(comm, number % 3, 300 + number + step) for number in range(6)]
        arrays = [array[: 300 + number] for number, array in enumerate(arrays)]
        expected = [single(array.copy(), key=key) for key, array in zip(keys, arrays, strict=True)]
        requests = [allreduce.start(array, key=key) for key, array in zip(keys, arrays, strict=True)]
        gq.wait_all(requests[::-1] if comm.rank % 2 else requests)
        for key, one, two in zip(keys, arrays, expected, strict=True):
            assert bytes_of(one) == bytes_of(two)
            assert bytes_of(levels(allreduce, key)) == bytes_of(levels(single, key))

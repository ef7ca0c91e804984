"""topk(reuse=T, balance=N) under MPI: thresholds are a rank's own, borders are alike and told in every header."""

import copy

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, errors, works

import gqallreduce as gq
from gqallreduce.registry import SCHEDULES

pytestmark = pytest.mark.mpi
OPTIONS = "topk(ratio=0.02, sums=union, reuse=3, balance=2)"


def make(comm, scheme):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)


def gradient(comm, call, size=3000):
    """Large values lie at the front."""
    random = np.random.default_rng([call, comm.rank])
    return (random.standard_normal(size) * np.exp(-np.arange(size) / (0.1 * size))).astype(np.float32)


def learned(allreduce, key="w"):
    return allreduce.state_dict()["keys"][key]["learned"]


def alike(comm, array) -> bool:
    return len(set(comm.allgather(bytes_of(array)))) == 1


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_a_loaded_state_goes_on_as_the_saved_one(comm, schedule):
    one, two = (make(comm, f"{schedule}/{OPTIONS}/ef") for _ in range(2))
    for call in range(2):
        one(gradient(comm, call), key="w")
    state = one.state_dict()
    two.load_state_dict(copy.deepcopy(state))
    for call in (2, 3, 4, 5):
        results = [gradient(comm, call) for _ in range(2)]
        one(results[0], key="w")
        two(results[1], key="w")
        assert bytes_of(results[0]) == bytes_of(results[1])
        assert alike(comm, results[0])
        mine, other = learned(one), learned(two)
        assert mine["threshold"] == other["threshold"]
        assert bytes_of(mine["borders"]) == bytes_of(other["borders"])
        assert alike(comm, mine["borders"])
        assert bytes_of(one.residual("w")) == bytes_of(two.residual("w"))


@pytest.mark.parametrize("change", ["borders", "calls"])
@pytest.mark.parametrize("schedule", ["direct", "ring", "halving_doubling"])
def test_a_rank_with_other_borders_or_fewer_calls_is_told(comm, schedule, change):
    """Its chunks are others: what it sends may be longer than the chunk that is waited for."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    one, two = (make(comm, f"{schedule}/{OPTIONS}") for _ in range(2))
    one(gradient(comm, 0), key="w")
    state = one.state_dict()
    if comm.rank == comm.size - 1:
        known = state["keys"]["w"]["learned"]
        if change == "calls":
            known["calls"] += 2  # no exchange is due on any rank
        else:
            known["borders"] = np.zeros_like(known["borders"])
    two.load_state_dict(state)
    found = errors(comm, two, gradient(comm, 1), key="w")
    assert {each and each[0] for each in found} == {gq.MismatchError}
    assert {each[1]["field"] for each in found} == {"frame"}
    works(comm, make(comm, schedule + "/" + OPTIONS))


def test_a_state_that_does_not_fit_is_refused(comm):
    allreduce = make(comm, f"direct/{OPTIONS}")
    allreduce(gradient(comm, 0), key="w")
    state = allreduce.state_dict()
    state["keys"]["w"]["learned"]["threshold"] = -1.0
    with pytest.raises(ValueError, match="threshold"):
        allreduce.load_state_dict(state)
    works(comm, allreduce)


def test_a_call_needs_a_key(comm):
    with pytest.raises(ValueError, match="key"):
        make(comm, f"direct/{OPTIONS}")(gradient(comm, 0))


def test_calls_under_way_have_each_the_borders_of_its_own_key(comm):
    allreduce, single = (make(comm, f"direct/{OPTIONS}/ef") for _ in range(2))
    keys = [f"{number}" for number in range(6)]
    for step in range(3):
        arrays = [gradient(comm, number % 3 + step, 300 + number) for number in range(6)]
        expected = [single(array.copy(), key=key) for key, array in zip(keys, arrays, strict=True)]
        requests = [allreduce.start(array, key=key) for key, array in zip(keys, arrays, strict=True)]
        gq.wait_all(requests[::-1] if comm.rank % 2 else requests)
        for key, one, two in zip(keys, arrays, expected, strict=True):
            assert bytes_of(one) == bytes_of(two)
            assert bytes_of(learned(allreduce, key)["borders"]) == bytes_of(learned(single, key)["borders"])

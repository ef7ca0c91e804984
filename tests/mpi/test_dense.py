"""Calls that MPI's own allreduce carries: compared with the other ranks' calls before a byte of them is summed."""

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, errors, everywhere, sum_that_mpi_fails, works

import gqallreduce as gq
from gqallreduce.scheduling import model

pytestmark = pytest.mark.mpi(min_size=2)
SIZES = [(50, 50), (50, 700_000), (700_000, 50), (700_000, 700_001)]


@pytest.fixture
def choose(monkeypatch):
    """Return a function that makes `auto` choose for calls of a key's first time from now on."""
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    return lambda choice: monkeypatch.setattr(model, "choose", lambda *_: (choice, "forced"))


def known(comm, choose, **keys):
    """An object that knows keys, each with its number of elements and what runs for it."""
    allreduce = gq.Allreduce("auto/onebit/ef", comm=comm, timeout=TIMEOUT)
    for key, (elements, choice) in keys.items():
        choose(choice)
        array = np.full(elements, comm.rank + 1, np.float32)
        allreduce(array, key=key)
        assert allreduce.stats.last.scheme.startswith(choice)
    choose("dense")
    return allreduce


def all_mismatch(found, *fields):
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    assert {each[1]["field"] for each in found} <= set(fields), found


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("last", [False, True])
def test_two_known_dense_keys_crossed(comm, choose, sizes, last):
    """An error on every rank, nothing of the other tensor in the buffer, and the object goes on."""
    allreduce = known(comm, choose, a=(sizes[0], "dense"), b=(sizes[1], "dense"))
    odd = comm.rank == (comm.size - 1 if last else 0)
    array = np.full(sizes[odd], 100 + comm.rank, np.float32)
    found = errors(comm, allreduce, array, key="b" if odd else "a")
    all_mismatch(found, "key")
    assert (array == 100 + comm.rank).all()
    works(comm, allreduce, key="new")
    works(comm, allreduce, key="new")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("last", [False, True])
def test_a_known_dense_key_against_a_first_call(comm, choose, sizes, last):
    allreduce = known(comm, choose, a=(sizes[0], "dense"))
    odd = comm.rank == (comm.size - 1 if last else 0)
    array = np.full(sizes[odd], 100 + comm.rank, np.float32)
    all_mismatch(errors(comm, allreduce, array, key="new" if odd else "a"), "key")
    assert (array == 100 + comm.rank).all()
    works(comm, allreduce, key="other")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling", "halving_doubling", "allgather"])
@pytest.mark.parametrize("last", [False, True])
def test_a_known_dense_key_against_a_known_quantized_one(comm, choose, sizes, schedule, last):
    """One of them is found in mid-call: the object ends, a new one works on the same communicator."""
    allreduce = known(comm, choose, a=(sizes[0], "dense"), b=(sizes[1], schedule))
    odd = comm.rank == (comm.size - 1 if last else 0)
    all_mismatch(errors(comm, allreduce, np.ones(sizes[odd], np.float32), key="b" if odd else "a"), "frame")
    works(comm, gq.Allreduce("auto/onebit/ef", comm=comm, timeout=TIMEOUT))


@pytest.mark.parametrize("scheme", ["direct/qsgd/ef", "ring/terngrad/ef", "recursive_doubling/raw"])
@pytest.mark.parametrize("last", [False, True])
def test_a_known_quantized_key_against_a_first_call(comm, scheme, last):
    """Also where the known one begins with an agreement on a scale."""
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(90, np.float32), key="a")
    odd = comm.rank == (comm.size - 1 if last else 0)
    all_mismatch(errors(comm, allreduce, np.ones(90, np.float32), key="new" if odd else "a"), "frame")
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT))


@pytest.mark.parametrize("dense", [True, False])
def test_states_of_different_steps_are_found(comm, choose, dense):
    allreduce = known(comm, choose, a=(60, "dense" if dense else "direct"))
    if comm.rank == 0:
        memory = allreduce.memory
        memory.commit({"a": memory.get("a").replaced(step=7)})
    before = bytes_of(allreduce.residual("a"))
    all_mismatch(errors(comm, allreduce, np.ones(60, np.float32), key="a"), "frame")
    assert bytes_of(allreduce.residual("a")) == before


def test_loaded_states_of_different_steps_are_found_by_the_first_call(comm):
    allreduce = gq.Allreduce("direct/qsgd/ef", comm=comm, timeout=TIMEOUT)
    states = []
    for _ in range(2):
        allreduce(np.ones(60, np.float32), key="a")
        states.append(allreduce.state_dict())
    again = gq.Allreduce("direct/qsgd/ef", comm=comm, timeout=TIMEOUT)
    again.load_state_dict(states[0 if comm.rank == 0 else 1])
    all_mismatch(errors(comm, again, np.ones(60, np.float32), key="a"), "frame")
    again.load_state_dict(states[0])
    again(np.ones(60, np.float32), key="a")


@pytest.mark.parametrize("known_there", [False, True])
def test_an_invalid_call_against_dense_ones(comm, choose, known_there):
    allreduce = known(comm, choose, a=(60, "dense")) if known_there else known(comm, choose)
    array = np.ones(60, np.int32) if comm.rank == 0 else np.ones(60, np.float32)
    found = errors(comm, allreduce, array, key="a")
    assert found[0][0] is TypeError
    assert found[1:] == [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)
    works(comm, allreduce, key="a2")


@pytest.mark.parametrize("scheme", ["auto/qsgd/ef", "direct/qsgd/ef", "ring/terngrad"])
def test_an_error_of_its_own_on_every_rank_breaks_nothing(comm, choose, scheme):
    """All ranks make the same mistake: the object, and what the function keeps, go on with their residuals."""
    choose("dense")
    for call in (gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), None):
        give = call or (lambda array, key: gq.quantized_allreduce(array, scheme, key=key, comm=comm))
        give(np.arange(60, dtype=np.float32), key="w")
        used = call or gq.cached(comm, scheme)
        before = used.state_dict()
        for wrong, error in ((np.ones(61, np.float32), ValueError), (np.ones(60, np.int8), TypeError)):
            assert everywhere(comm, give, wrong, key="w")[0] is error
        assert call or gq.cached(comm, scheme) is used
        assert used.state_dict()["keys"]["w"]["step"] == before["keys"]["w"]["step"] == 1
        give(np.arange(60, dtype=np.float32), key="w")


def test_what_mpi_raises_is_an_error_of_ours(comm, choose, monkeypatch):
    """And the other ranks are told."""
    allreduce = known(comm, choose, a=(60, "dense"))
    found = sum_that_mpi_fails(comm, monkeypatch, allreduce)
    assert {each and each[0] for each in found} == {gq.Error}, found
    works(comm, gq.Allreduce("auto/onebit/ef", comm=comm, timeout=TIMEOUT))


# --- as a scheme that is written ---


@pytest.mark.parametrize("feedback", ["", "/ef"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dense_as_a_scheme(comm, dtype, feedback):
    """The sum of MPI, in the buffer's order; with /ef the residual holds only what rounding to 16 bits loses."""
    allreduce = gq.Allreduce("dense" + feedback, comm=comm, timeout=TIMEOUT, average=True)
    for step in range(2):
        value = (np.arange(35) * (comm.rank + 1 + step)).reshape(5, 7)
        array = np.asfortranarray(value.astype(dtype))
        assert allreduce(array, key="w") is array
        exact = np.arange(35).reshape(5, 7) * (np.arange(comm.size) + 1.0 + step).mean()
        np.testing.assert_allclose(array, exact, rtol=1e-3 if dtype == "float16" else 1e-6)
    last = allreduce.stats.last
    assert (last.scheme, last.reason, last.ratio, last.messages) == ("dense" + feedback, "as written", 1.0, 0)
    assert last.bytes_sent == 35 * (8 if dtype == "float64" else 4)
    if feedback:
        assert (allreduce.residual("w") == 0).all() or dtype == "float16"


def test_a_dense_scheme_names_what_is_not_finite(comm):
    allreduce = gq.Allreduce("dense", comm=comm, timeout=TIMEOUT)
    array = np.ones(20, np.float32)
    if comm.rank == comm.size - 1:
        array[11] = np.nan
    kind, said = everywhere(comm, allreduce, array, key="w")
    assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, comm.size - 1, "w", 11)
    works(comm, allreduce)


def test_a_dense_scheme_is_agreed_on(comm):
    everyone = comm.rank == 0
    found = errors(
        comm, gq.Allreduce("dense" if everyone else "raw", comm=comm, timeout=TIMEOUT), np.ones(9, np.float32)
    )
    all_mismatch(found, "scheme")

"""Codecs that sum several vectors in a call, one after the other: states, calls in flight, errors between the sums."""

import numpy as np
import pytest
from ranks import TIMEOUT

import gqallreduce as gq
from gqallreduce import _kernels

pytestmark = pytest.mark.mpi
SCHEME = "powersgd(rank=2)/ef"


def gradients(size, seed, shape=(30, 40)):
    return [np.random.default_rng([seed, rank]).standard_normal(shape).astype(np.float32) for rank in range(size)]


BASIS = "gradiveq(warmup=0, train=1, compress=3, K=40, d=4)"


@pytest.mark.parametrize("scheme", [SCHEME, "ring/powersgd(rank=1, inner=qsgd(bits=8))/ef", f"{BASIS}/ef"])
def test_a_checkpoint_goes_on_bit_for_bit(comm, scheme):
    one, two = (gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT) for _ in range(2))
    for step in range(2):
        one(gradients(comm.size, step)[comm.rank], key="w")
    two.load_state_dict(one.state_dict())
    for step in (2, 3):
        results = [each(gradients(comm.size, step)[comm.rank], key="w") for each in (one, two)]
        assert results[0].tobytes() == results[1].tobytes()
        assert one.residual("w").tobytes() == two.residual("w").tobytes()


def test_ranks_that_begin_with_other_factors_are_told(comm):
    """Summing products of different factors would be no error that anyone sees."""
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    allreduce(gradients(comm.size, 0)[comm.rank], key="w")
    state = allreduce.state_dict()
    if comm.rank == comm.size - 1:
        state["keys"]["w"]["learned"]["q"][0] *= 2
    allreduce.load_state_dict(state)
    with pytest.raises(gq.Error):
        allreduce(gradients(comm.size, 1)[comm.rank], key="w")


def test_ranks_with_another_basis_are_told(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce = gq.Allreduce(BASIS, comm=comm, timeout=TIMEOUT)
    for step in range(2):
        allreduce(gradients(comm.size, step)[comm.rank], key="w")
    state = allreduce.state_dict()
    if comm.rank == 0:
        state["keys"]["w"]["learned"]["basis"][0] *= -1
    allreduce.load_state_dict(state)
    with pytest.raises(gq.Error):
        allreduce(gradients(comm.size, 1)[comm.rank], key="w")


def test_ranks_have_one_basis_and_phases(comm):
    """Of matrices in a space of four dimensions, with a vote in each call."""
    allreduce = gq.Allreduce(f"{BASIS[:-1]}, drift=0.3)", comm=comm, timeout=TIMEOUT)
    space = np.random.default_rng(7).standard_normal((4, 40))
    for step in range(9):
        given = [np.random.default_rng([step, rank]).standard_normal((30, 4)) @ space for rank in range(comm.size)]
        result = allreduce(given[comm.rank].astype(np.float32), key="w")
        np.testing.assert_allclose(result, sum(given), atol=1e-3)
        assert comm.allgather(result.tobytes()) == [result.tobytes()] * comm.size
        basis = allreduce.state_dict()["keys"]["w"]["learned"]["basis"]
        assert comm.allgather(basis.tobytes()) == [basis.tobytes()] * comm.size


def test_calls_in_flight_are_those_made_one_after_the_other(comm):
    keys, shapes = ("a", "b", "c"), ((30, 40), (7,), (50, 20))
    allreduce, another = (gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT) for _ in range(2))
    for step in range(3):
        given = [gradients(comm.size, 10 * step + number, shape) for number, shape in enumerate(shapes)]
        mine = [each[comm.rank].copy() for each in given]
        requests = [allreduce.start(buf, key=key) for buf, key in zip(mine, keys, strict=True)]
        for request in reversed(requests):
            request.wait()
        for result, key, each in zip(mine, keys, given, strict=True):
            assert comm.allgather(result.tobytes()) == [result.tobytes()] * comm.size
            assert result.tobytes() == another(each[comm.rank], key=key).tobytes()


def test_a_failed_first_sum_leaves_state_and_other_calls_alone(comm):
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    for key in "ab":
        allreduce(gradients(comm.size, 1)[comm.rank], key=key)
    before = allreduce.state_dict()["keys"]
    bad = gradients(comm.size, 2)[comm.rank]
    if comm.rank == comm.size // 2:
        bad[3, 4] = np.nan
    requests = [allreduce.start(bad, key="a"), allreduce.start(gradients(comm.size, 3)[comm.rank], key="b")]
    with pytest.raises(gq.NonFiniteError) as caught:
        requests[0].wait()
    assert (caught.value.rank, caught.value.key, caught.value.index) == (comm.size // 2, "a", 3 * 40 + 4)
    requests[1].wait()
    after = allreduce.state_dict()["keys"]
    assert after["b"]["learned"]["calls"] == 2
    assert after["a"]["learned"]["calls"] == 1
    assert after["a"]["residual"].tobytes() == before["a"]["residual"].tobytes()
    assert after["a"]["learned"]["q"].tobytes() == before["a"]["learned"]["q"].tobytes()


def test_an_exception_between_the_sums_is_told_to_all(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("there is no other rank")
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    allreduce(gradients(comm.size, 1)[comm.rank], key="w")
    before = allreduce.state_dict()["keys"]["w"]

    def fails(*_):
        raise MemoryError("no memory for factors")

    if comm.rank == 0:
        monkeypatch.setattr(_kernels, "orthonormalize", fails)
    with pytest.raises(MemoryError if comm.rank == 0 else gq.Error):
        allreduce(gradients(comm.size, 2)[comm.rank], key="w")
    monkeypatch.undo()
    after = allreduce.state_dict()["keys"]["w"]
    assert after["residual"].tobytes() == before["residual"].tobytes()
    comm.Barrier()
    fresh = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    fresh.load_state_dict(allreduce.state_dict())
    result = fresh(gradients(comm.size, 2)[comm.rank], key="w")
    assert comm.allgather(result.tobytes()) == [result.tobytes()] * comm.size


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("average", [False, True])
def test_other_dtypes_lose_nothing_either(comm, dtype, average):
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT, average=average)
    given_so_far, total = np.zeros((30, 40)), np.zeros((30, 40))
    for step in range(4):
        given = [each.astype(dtype) for each in gradients(comm.size, step)]
        given_so_far += sum(each.astype(float) for each in given)
        total += allreduce(given[comm.rank], key="w").astype(float) * (comm.size if average else 1)
    left = comm.allreduce(allreduce.residual("w").astype(float))
    np.testing.assert_allclose(total + left, given_so_far, atol=1e-4 * comm.size)

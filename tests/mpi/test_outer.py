"""Gradients that are given as products, under MPI: results, mismatches, calls in flight, groups, states."""

import numpy as np
import outer
import pytest
from ranks import TIMEOUT, topology_of

import gqallreduce as gq
from gqallreduce.runtime.local import LocalAllreduce

pytestmark = pytest.mark.mpi
SCHEME = "isgq(send=factors)/ef"


def products(size, step, **sizes):
    return [outer.dense([step, rank], **sizes) for rank in range(size)]


@pytest.mark.parametrize(
    "scheme", ["isgq", SCHEME, "ring/isgq(method=mvu, gains=True)", "qsgd(bits=4)", "dense", "onebit/ef"]
)
@pytest.mark.parametrize("average", [False, True])
def test_results_are_those_of_one_process(comm, scheme, average):
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, average=average, verify=1)
    local = (
        None if scheme == "dense" else LocalAllreduce(scheme, comm.size, average=average, topology=topology_of(comm))
    )
    for step in range(3):
        given = products(comm.size, step)
        result = allreduce(given[comm.rank], key="w")
        assert comm.allgather(result.tobytes()) == [result.tobytes()] * comm.size
        if local is None:
            factor = 1 / comm.size if average else 1
            np.testing.assert_allclose(result, sum(map(outer.gradient, given)) * factor, atol=1e-4)
        else:
            local.group = allreduce.home.group
            assert result.tobytes() == local(given, key="w")[0].tobytes()
            assert allreduce.stats.last.bytes_sent == local.spent[comm.rank].bytes_sent


def test_the_function_takes_one_pair_or_lists(comm):
    given = products(comm.size, 0)[comm.rank]
    one = gq.outer_allreduce(given.x, given.delta, "isgq(send=factors)", key="w", comm=comm)
    assert one.shape == (40, 30)
    out = [np.empty((40, 30), np.float32), np.empty((30, 40), np.float32)]
    both = gq.outer_allreduce(
        [given.x, given.delta], [given.delta, given.x], "isgq(send=factors)", key=["w", "v"], comm=comm, out=out
    )
    assert both is out
    assert comm.allgather(out[1].tobytes()) == [out[1].tobytes()] * comm.size
    for x, delta in (([given.x], given.delta), ([given.x], [given.delta] * 2)):
        with pytest.raises(TypeError, match="expected"):
            gq.outer_allreduce(x, delta, "isgq", key=["w"] * len(delta[:2]), comm=comm)
    with pytest.raises(ValueError, match="no extent of 0"):
        gq.outer_allreduce(given.x[:0], given.delta[:0], "isgq", comm=comm)
    gq.cached(comm, "isgq(send=factors)").close()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("unfit", ["rows", "list"])
def test_unfit_factors_of_a_rank_are_told_to_all(comm, known, unfit):
    """In the first call of a key, and in a later one; then all go on alike."""
    if comm.size == 1:
        pytest.skip("there is no other rank")
    given, scheme = products(comm.size, 0)[comm.rank], "isgq(send=factors)"
    if known:
        gq.outer_allreduce(given.x, given.delta, scheme, key="w", comm=comm)
    x = given.x if comm.rank else {"rows": given.x[:3], "list": [given.x]}[unfit]
    with pytest.raises((TypeError, ValueError), match="arguments" if comm.rank else "expected"):
        gq.outer_allreduce(x, given.delta, scheme, key="w", comm=comm)
    comm.Barrier()
    result = gq.outer_allreduce(given.x, given.delta, scheme, key="w", comm=comm)
    assert comm.allgather(result.tobytes()) == [result.tobytes()] * comm.size
    gq.cached(comm, scheme).close()


def test_no_group_is_larger_than_the_limit_of_messages(comm, monkeypatch):
    """Packets are cut as other messages are."""
    monkeypatch.setenv("GQALLREDUCE_MAX_MESSAGE", "1000")
    given = products(comm.size, 0, samples=64)
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    result = allreduce(given[comm.rank], key="w")
    local = LocalAllreduce(SCHEME, comm.size, topology=topology_of(comm))
    local.group = allreduce.home.group
    assert result.tobytes() == local(given, key="w")[0].tobytes()


def test_calls_in_flight_are_those_made_one_after_the_other(comm):
    allreduce, another = (gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT) for _ in range(2))
    for step in range(3):
        mine = [products(comm.size, 10 * step + number)[comm.rank] for number in range(4)]
        requests = [allreduce.start(each, key=f"w{number}") for number, each in enumerate(mine)]
        results = [request.wait() for request in reversed(requests)][::-1]
        for number, each in enumerate(mine):
            expected = another(each, key=f"w{number}")
            assert results[number].tobytes() == expected.tobytes()
            assert allreduce.residual(f"w{number}").tobytes() == another.residual(f"w{number}").tobytes()


def test_ranks_with_other_samples_are_told(comm):
    """Or, for a key that is known, end with an error."""
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce = gq.Allreduce("isgq(send=factors)", comm=comm, timeout=TIMEOUT)
    given = products(comm.size, 0)[comm.rank]
    more = products(comm.size, 0, samples=9)[comm.rank]
    with pytest.raises(gq.MismatchError) as caught:
        allreduce(more if comm.rank == 0 else given, key="w")
    assert caught.value.field == "shape"
    allreduce(given, key="w")
    allreduce(more, key="w")  # on all ranks: the last batch of an epoch
    allreduce(given, key="w")
    with pytest.raises(gq.Error):
        allreduce(more if comm.rank == comm.size - 1 else given, key="w")


def test_a_rank_that_gives_the_gradient_itself_is_told(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce = gq.Allreduce("isgq(send=factors)", comm=comm, timeout=TIMEOUT)
    given = products(comm.size, 0)[comm.rank]
    with pytest.raises(gq.MismatchError) as caught:
        allreduce(np.zeros((40, 30), np.float32) if comm.rank == 0 else given, key="w")
    assert caught.value.field == "shape"


def test_a_rank_at_another_step_is_told(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    for step in range(2):
        allreduce(products(comm.size, step)[comm.rank], key="w")
    old = allreduce.memory.get("w")
    if comm.rank == comm.size - 1:
        allreduce.memory.commit({"w": old.replaced(step=old.step + 1)})
    with pytest.raises(gq.Error):
        allreduce(products(comm.size, 2)[comm.rank], key="w")


def test_an_invalid_call_is_told(comm):
    if comm.size == 1:
        pytest.skip("there is no other rank")
    allreduce = gq.Allreduce("isgq", comm=comm, timeout=TIMEOUT)
    given = products(comm.size, 0)[comm.rank]
    out = np.empty((3, 3), np.float32) if comm.rank == 0 else np.empty((40, 30), np.float32)
    with pytest.raises(ValueError, match=r"expected \(40, 30\)" if comm.rank == 0 else "arguments"):
        allreduce(given, key="w", out=out)
    square = gq.Outer(np.eye(8, dtype=np.float32), np.eye(8, dtype=np.float32))
    out = square.x if comm.rank == 0 else np.empty((8, 8), np.float32)
    with pytest.raises(ValueError, match="overlaps" if comm.rank == 0 else "arguments"):
        allreduce(square, key="v", out=out)
    request = allreduce.start(given, key="w")
    with pytest.raises(ValueError, match="under way" if comm.rank == 0 else "arguments"):
        allreduce(np.zeros(5, np.float32), key="w" if comm.rank == 0 else "z")
    request.wait()


def test_what_is_not_finite_is_named_on_every_rank(comm):
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    allreduce(products(comm.size, 0)[comm.rank], key="w")
    before = allreduce.residual("w")
    mine, bias = products(comm.size, 1)[comm.rank], np.zeros(7, np.float32)
    if comm.rank == comm.size - 1:
        mine.delta[5, 3] = np.nan
    for call in (lambda: allreduce(mine, key="w"), lambda: allreduce([bias, mine], key=["b", "w"])):
        with pytest.raises(gq.NonFiniteError) as caught:
            call()
        assert (caught.value.rank, caught.value.key, caught.value.index) == (comm.size - 1, "w", 3)
        assert allreduce.residual("w").tobytes() == before.tobytes()
    request = allreduce.start(mine, key="w")
    other = allreduce.start(products(comm.size, 2)[comm.rank], key="v")
    with pytest.raises(gq.NonFiniteError):
        request.wait()
    assert np.isfinite(other.wait()).all()


def test_own_values_beyond_float32_are_told_before_any_rank_commits(comm):
    allreduce = gq.Allreduce("isgq(method=mse, bits=1, send=factors)/ef", comm=comm, timeout=TIMEOUT)
    small = gq.Outer(np.ones((1, 8), np.float32), np.ones((1, 8), np.float32))
    large = gq.Outer(*[np.array([[2e19, *[1e18] * 7]], np.float32)] * 2)
    with pytest.raises(gq.NonFiniteError):
        allreduce(large if comm.rank == comm.size - 1 else small, key="w")
    allreduce(small, key="w")
    assert allreduce.state_dict()["keys"]["w"]["step"] == 1


def test_a_checkpoint_goes_on_bit_for_bit(comm):
    one, two = (gq.Allreduce("isgq(send=factors, every=3)/ef", comm=comm, timeout=TIMEOUT) for _ in range(2))
    for step in range(2):
        one(products(comm.size, step)[comm.rank], key="w")
    two.load_state_dict(one.state_dict())
    for step in (2, 3):
        results = [each(products(comm.size, step)[comm.rank], key="w") for each in (one, two)]
        assert results[0].tobytes() == results[1].tobytes()
        assert one.residual("w").tobytes() == two.residual("w").tobytes()
    flushed = one.flush("w")
    assert flushed.shape == (40, 30)
    assert not one.residual("w").any()


def test_a_step_commits_products_and_buffers_together(comm):
    allreduce = gq.Allreduce(SCHEME, comm=comm, timeout=TIMEOUT)
    mine = products(comm.size, 0)[comm.rank]
    bad = gq.Outer(np.full((2, 3), np.nan, np.float32), np.ones((2, 3), np.float32))
    with pytest.raises(gq.NonFiniteError), allreduce.step():
        allreduce([mine, mine, bad], key=["w", "u", "v"])
    with pytest.raises(KeyError):
        allreduce.residual("w")
    with allreduce.step():
        allreduce(mine, key="w")
    assert allreduce.residual("w").any()

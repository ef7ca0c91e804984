"""Calls under way: started in one order, waited for in any, each with its own result, error and residual."""

import time

import numpy as np
import pytest
from float_control import UPWARDS
from ranks import TIMEOUT, bytes_of, carrying, errors, everywhere, inputs, pairs, state, works

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.scheduling import model
from gqallreduce.transport import link
from gqallreduce.transport.dense import Summing

pytestmark = pytest.mark.mpi
KEYS = tuple("abcdefghij")


def make(comm, scheme="direct/onebit/ef", **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def gradients(comm, step=0, size=700):
    return [inputs(comm.size, (size + 31 * place,), step=100 * step + place)[comm.rank] for place in range(len(KEYS))]


def one_by_one(comm, scheme, steps=2):
    """Bytes of results and residuals of the calls, each waited for before the next."""
    allreduce = make(comm, scheme)
    found = []
    for step in range(steps):
        arrays = gradients(comm, step)
        for key, array in zip(KEYS, arrays, strict=True):
            allreduce(array, key=key)
        found.append([bytes_of(array) for array in arrays])
    return found, state(allreduce)


@carrying(pairs())
def test_ten_calls_under_way_give_the_bits_of_ten_in_turn(comm, scheme):
    """Waited for in another order on every rank, or tested, with calls of another object among them."""
    expected, kept = one_by_one(comm, scheme)
    allreduce, other = make(comm, scheme), make(comm, "ring/raw")
    draws = np.random.default_rng(comm.rank)
    for step in range(2):
        arrays, count = gradients(comm, step), np.full(50, 1.0, np.float32)
        requests = []
        for key, array in zip(KEYS, arrays, strict=True):
            requests.append(allreduce.start(array, key=key))
            if key == "e":
                counted = other.start(count)
        for place in draws.permutation(len(KEYS)):
            if place % 2:
                while not requests[place].test():
                    pass
            assert requests[place].wait() is arrays[place]
            assert requests[place].test()
        assert counted.wait() is count
        assert (count == comm.size).all()
        assert [bytes_of(array) for array in arrays] == expected[step]
    assert state(allreduce) == kept


@pytest.mark.parametrize("runtime", ["native", "python"])
@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "direct/adaptive(pi=64)/ef"])
def test_two_calls_under_way_on_one_plan_give_the_bits_of_calls_in_turn(comm, monkeypatch, runtime, scheme):
    """Keys of one form share a Plan, which knows nothing of the State of either."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    together, in_turn = make(comm, scheme), make(comm, scheme)
    for step in range(4):
        arrays = [inputs(comm.size, (60_000,), step=2 * step + place)[comm.rank] for place in range(2)]
        expected = [array.copy() for array in arrays]
        requests = [together.start(array, key=key) for key, array in zip("ab", arrays, strict=True)]
        while sum(request.test() for request in (requests[::-1] if comm.rank % 2 else requests)) < 2:
            pass
        assert together.plans.last("a").plan is together.plans.last("b").plan
        for key, array in zip("ab", expected, strict=True):
            in_turn(array, key=key)
        assert [bytes_of(array) for array in arrays] == [bytes_of(array) for array in expected]
        assert state(together) == state(in_turn)


@pytest.mark.parametrize("most", [None, "1024"])
@pytest.mark.parametrize("in_python", [[], [0], range(8)])
def test_dense_calls_under_way(comm, monkeypatch, most, in_python):
    """Also in parts: MPI has them in one order on all ranks, whatever ends first. C++ begins them, or Python."""
    if comm.rank in in_python:
        monkeypatch.setattr(Summing, "native", lambda _: None)
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    monkeypatch.setattr(model, "choose", lambda *_: (model.DENSE, "forced"))
    if most is not None:
        monkeypatch.setenv("GQALLREDUCE_MAX_MESSAGE", most)
    allreduce = make(comm, "auto/raw")
    for _ in range(5):
        arrays = [np.full(1000, comm.rank + place, np.float32) for place in range(len(KEYS))]
        requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, arrays, strict=True)]
        gq.wait_all(requests[::-1] if comm.rank % 2 else requests)
        for place, array in enumerate(arrays):
            assert (array == sum(range(comm.size)) + comm.size * place).all()


def test_out_is_what_is_written_and_buf_may_be_read_by_several(comm):
    allreduce = make(comm, "direct/raw")
    value = np.full(99, comm.rank + 1, np.float32)
    results = [np.zeros(99, np.float32) for _ in range(3)]
    requests = [allreduce.start(value, key=key, out=out) for key, out in zip("abc", results, strict=True)]
    assert all(got is out for got, out in zip(gq.wait_all(requests), results, strict=True))
    assert (value == comm.rank + 1).all()
    assert all((out == comm.size * (comm.size + 1) / 2).all() for out in results)


def test_test_does_not_wait(comm):
    """A rank that comes late delays no other rank in `start` and `test`."""
    allreduce, array = make(comm, "direct/raw"), np.ones(1000, np.float32)
    allreduce(array, key="w")
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    began = time.perf_counter()
    request = allreduce.start(array, key="w")
    answers = [request.test() for _ in range(3)]
    spent = time.perf_counter() - began
    request.wait()
    assert comm.size == 1 or comm.rank == 0 or not any(answers)
    assert spent < 0.3


def test_a_request_says_what_it_is(comm):
    allreduce = make(comm, "direct/raw")
    request = allreduce.start(np.ones(9, np.float32), key="w")
    request.wait()
    assert repr(request) == "<Request of the call of key 'w': done>"


# --- what belongs to a call under way ---


@pytest.mark.parametrize("key", ["w", None])
def test_a_key_whose_request_is_not_waited_for_cannot_be_started_again(comm, key):
    """Even if the call is done on some ranks: so the error is alike on all."""
    allreduce = make(comm, "direct/raw")
    first, second = np.full(400, 2, np.float32), np.ones(400, np.float32)
    for _ in range(2):  # a first call and a known one
        request = allreduce.start(first, key=key)
        kind, _ = everywhere(comm, allreduce.start, second, key=key)
        assert kind is ValueError
        with pytest.raises(ValueError, match="under way"):
            allreduce(second, key=key)
        request.wait()
    assert (first == 2 * comm.size**2).all()
    allreduce(second, key=key)
    assert (second == comm.size).all()


def test_memory_of_a_call_under_way_belongs_to_it(comm):
    """That of every object on the communicator."""
    allreduce, other = make(comm, "direct/raw"), make(comm, "ring/raw")
    room = np.ones(300, np.float32)
    request = allreduce.start(room[:200], key="a")
    for call in (other.start, other):
        kind, _ = everywhere(comm, call, room[100:], key="b")
        assert kind is ValueError
    out = np.zeros(100, np.float32)
    kind, _ = everywhere(comm, other.start, room[:100], key="b", out=out)  # it would be read while it is written
    assert kind is ValueError
    rest = other.start(room[200:], key="c")
    gq.wait_all([rest, request])
    assert (room == comm.size).all()
    other(room[100:], key="b")


# --- errors ---


@carrying(pairs(True))
def test_a_nan_in_one_of_ten_is_its_error_alone(comm, scheme):
    """The other nine are what they would have been without it."""
    expected = make(comm, scheme)
    for key, array in zip(KEYS, gradients(comm), strict=True):
        if key != "d":
            expected(array, key=key)
    allreduce, arrays = make(comm, scheme), gradients(comm)
    if comm.rank == comm.size - 1:
        arrays[3][17] = np.nan
    requests = {key: allreduce.start(array, key=key) for key, array in zip(KEYS, arrays, strict=True)}
    for key, request in reversed(requests.items()):
        if key == "d":
            kind, said = everywhere(comm, request.wait)
            assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, comm.size - 1, "d", 17)
        else:
            request.wait()
    assert state(allreduce) == state(expected)
    works(comm, allreduce)


def test_wait_all_waits_for_all_and_then_raises_the_first_error(comm):
    allreduce, arrays = make(comm), gradients(comm)
    for place in (2, 5):
        arrays[place][place] = np.inf
    requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, arrays, strict=True)]
    kind, said = everywhere(comm, gq.wait_all, requests)
    assert (kind, said["key"]) == (gq.NonFiniteError, "c")
    assert sorted(state(allreduce)) == [key for key in KEYS if key not in "cf"]


@pytest.mark.parametrize("how", ["wait", "test"])
def test_an_error_is_raised_whenever_it_is_asked_for(comm, how):
    allreduce = make(comm)
    request = allreduce.start(np.full(5, np.nan, np.float32), key="w")

    def until_done():
        while not getattr(request, how)():
            pass

    for _ in range(2):
        assert everywhere(comm, until_done)[0] is gq.NonFiniteError
    works(comm, allreduce, "w")


def test_a_call_with_invalid_arguments_is_refused_at_once(comm):
    allreduce, value = make(comm), np.ones(9, np.float32)
    request = allreduce.start(value, key="a")
    with pytest.raises(TypeError):
        allreduce.start(np.ones(9, np.int32), key="b")
    assert request.wait() is value
    works(comm, allreduce)


def test_a_dropped_request_is_finished(comm):
    allreduce, arrays = make(comm, "direct/raw"), gradients(comm)
    for key, array in zip(KEYS, arrays, strict=True):
        allreduce.start(array, key=key)
    allreduce(np.ones(5, np.float32), key="z")
    for given, array in zip(range(len(KEYS)), arrays, strict=True):
        parts = inputs(comm.size, array.shape, step=given)
        np.testing.assert_allclose(array, np.sum(parts, axis=0), rtol=1e-5, atol=1e-5)
    array = arrays[0]
    allreduce.start(array, key="a")
    allreduce(array, key="a")  # the same key and memory: that call is finished first


def test_the_error_of_a_dropped_request_is_raised_by_the_next_call(comm):
    """On every rank, although some may have known of it earlier; the call after that works."""
    allreduce = make(comm)
    allreduce(np.ones(5, np.float32), key="w")
    allreduce.start(np.full(700, np.nan, np.float32), key="a")
    array = np.ones(5, np.float32)
    kind, said = everywhere(comm, allreduce, array, key="w")
    assert (kind, said["key"]) == (gq.NonFiniteError, "a")
    works(comm, allreduce, "w2")
    assert sorted(state(allreduce)) == ["w", "w2"]


# --- what else an object does ---


def test_what_looks_at_the_state_finishes_calls_under_way(comm):
    allreduce, arrays = make(comm), gradients(comm)
    expected, kept = make(comm), gradients(comm)
    for key, array in zip(KEYS, kept, strict=True):
        expected(array, key=key)
    for look in (
        lambda each: bytes_of(each.residual("j")),
        lambda each: state(each),
        lambda each: bytes_of(each.flush("j")),
        lambda each: sorted(each.flush()),
    ):
        requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, arrays, strict=True)]
        found = look(allreduce)
        gq.wait_all(requests)
        assert found == look(expected)
        arrays, kept = gradients(comm, 1), gradients(comm, 1)
        allreduce, expected = make(comm), make(comm)
        for key, array in zip(KEYS, kept, strict=True):
            expected(array, key=key)


def test_an_object_is_made_while_calls_are_under_way(comm):
    allreduce, arrays = make(comm, "direct/raw"), gradients(comm)
    requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, arrays, strict=True)]
    if comm.rank % 2:
        gq.wait_all(requests)
    works(comm, make(comm, "ring/raw"))
    gq.wait_all(requests)


def test_a_step_holds_the_calls_that_were_started_in_it(comm):
    """All of them take effect at its end, or none."""
    allreduce, expected = make(comm), make(comm)
    with allreduce.step():
        requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, gradients(comm), strict=True)]
    gq.wait_all(requests)
    for key, array in zip(KEYS, gradients(comm), strict=True):
        expected(array, key=key)
    assert state(allreduce) == state(expected)
    arrays = gradients(comm, 1)
    arrays[4][0] = np.nan

    def step():
        with allreduce.step():
            for key, array in zip(KEYS, arrays, strict=True):
                requests.append(allreduce.start(array, key=key))

    found = errors(comm, step)
    assert {each[0] for each in found} == {gq.Error}
    assert state(allreduce) == state(expected)


def test_more_calls_than_may_be_under_way_at_once(comm):
    allreduce = make(comm, "direct/raw")
    arrays = [np.full(50, comm.rank + place, np.float32) for place in range(2 * link.CALLS_MOST)]
    requests = [allreduce.start(array, key=str(place)) for place, array in enumerate(arrays)]
    gq.wait_all(requests)
    for place, array in enumerate(arrays):
        assert (array == sum(range(comm.size)) + comm.size * place).all()


def test_the_wait_of_each_call_is_in_its_statistics(comm):
    allreduce = make(comm, "direct/onebit/ef")
    requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, gradients(comm), strict=True)]
    gq.wait_all(requests)
    total, sent = allreduce.stats.total, allreduce.stats.total.bytes_sent
    again = make(comm, "direct/onebit/ef")
    for key, array in zip(KEYS, gradients(comm), strict=True):
        again(array, key=key)
    assert sent == again.stats.total.bytes_sent
    assert total.wait >= 0
    assert total.total > 0


def test_checks_of_the_replicas_hold_for_the_same_calls_on_all_ranks(comm):
    """Whichever of the calls under way ends first."""
    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT, verify=3)
    for step in range(3):
        arrays = gradients(comm, step)
        requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, arrays, strict=True)]
        gq.wait_all(requests[::-1] if comm.rank % 2 else requests)


def test_steps_of_many_calls_end_alike_whatever_ends_first(comm):
    """The calls of a step are compared by key, not in the order in which they were done."""
    allreduce = make(comm, "direct/onebit/ef")
    for step in range(30):
        with allreduce.step():
            requests = [
                allreduce.start(np.full(size, step + comm.rank, np.float32), key=str(size))
                for size in (9000, 50, 4000, 6)
            ]
            gq.wait_all(requests if comm.rank % 2 else requests[::-1])


@pytest.mark.parametrize("second", [False, True])
def test_a_step_that_is_left_by_an_error_keeps_nothing_of_what_was_under_way(comm, second):
    """Whichever request a rank waits for first."""
    allreduce = make(comm)
    for key in "ab":
        allreduce(np.ones(700, np.float32), key=key)
    before = state(allreduce)

    def step():
        with allreduce.step():
            bad = allreduce.start(np.full(700, np.nan, np.float32), key="a")
            good = allreduce.start(np.ones(700, np.float32), key="b")
            if second and comm.rank == 1:
                good.wait()
            bad.wait()

    assert everywhere(comm, step)[0] is gq.NonFiniteError
    assert state(allreduce) == before
    works(comm, allreduce, "b2")


def test_requests_of_two_communicators_in_any_order(comm):
    other = comm.Dup()
    try:
        one, two = make(comm, "direct/raw"), gq.Allreduce("direct/raw", comm=other, timeout=TIMEOUT)
        for _ in range(3):
            first, second = np.ones(3000, np.float32), np.ones(3000, np.float32)
            requests = [one.start(first, key="a"), two.start(second, key="b")]
            gq.wait_all(requests if comm.rank else requests[::-1])
            assert (first == comm.size).all()
            assert (second == comm.size).all()
    finally:
        other.Free()


def test_test_of_a_request_that_is_done_advances_the_others(comm):
    allreduce = make(comm, "direct/raw")
    done = allreduce.start(np.ones(5, np.float32), key="a")
    done.wait()
    array = np.ones(3000, np.float32)
    request = allreduce.start(array, key="b")
    everyone = comm.Ibarrier() if comm.rank else None
    if comm.rank == 0:
        end = time.perf_counter() + TIMEOUT / 2
        while "under way" in repr(request) and time.perf_counter() < end:
            assert done.test()
        everyone = comm.Ibarrier()
        assert "done" in repr(request)
    request.wait()
    everyone.wait()


def test_the_bits_are_alike_when_something_else_finishes_a_call(comm):
    """In the usual rounding mode, whatever the caller has set."""
    upward = UPWARDS | _kernels.float_control()
    found = []
    for finish in (False, True):
        allreduce = make(comm, "dense")
        array = np.random.default_rng(comm.rank).standard_normal(3000).astype(np.float32)
        usual = _kernels.float_control()
        try:
            _kernels.set_float_control(upward)
            request = allreduce.start(array, key="w")
            if finish:
                allreduce.state_dict()
            request.wait()
        finally:
            _kernels.set_float_control(usual)
        found.append(bytes_of(array))
    assert found[0] == found[1]


def test_a_request_has_the_statistics_of_its_call(comm):
    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=30)
    requests = [allreduce.start(np.ones(size, np.float32), key=str(size)) for size in (10, 1000, 100)]
    gq.wait_all(requests[::-1])
    alone = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=30)
    for request, size in zip(requests, (10, 1000, 100), strict=True):
        alone(np.ones(size, np.float32), key=str(size))
        assert request.stats.bytes_sent == alone.stats.last.bytes_sent
        assert request.stats.residual_norm == alone.stats.last.residual_norm
    failed = allreduce.start(np.full(3, np.nan, np.float32), key="n")
    with pytest.raises(gq.NonFiniteError):
        failed.wait()
    assert failed.stats is None


@pytest.mark.parametrize("scheme", ["direct/adaptive(pi=7)/ef", "ring/topk(k=9, sums=union)", "direct/qsgd(bits=4)/ef"])
def test_an_mpi_without_the_functions_that_are_looked_up(comm, scheme, monkeypatch):
    """Python carries the calls out, with the same bits, and says so."""
    expected, kept = one_by_one(comm, scheme)
    monkeypatch.setattr("gqallreduce.transport.requests.native_transport", lambda comm: None)
    found, kept_so = one_by_one(comm.Dup(), scheme)
    assert (found, kept_so) == (expected, kept)
    allreduce = make(comm.Dup(), scheme)
    allreduce(np.ones(9, np.float32), key="w")
    assert "functions of this MPI cannot be looked up" in allreduce.stats.last.reason


@pytest.mark.parametrize("runtime", ["native", "python"])
@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/topk(k=9, sums=union)", "direct/alq"])
def test_an_array_may_get_another_shape_while_its_call_is_under_way(comm, monkeypatch, runtime, scheme):
    """Its memory belongs to the call, its shape to the caller; in the first call of the key, and later."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    allreduce, other = make(comm, scheme), make(comm, scheme)
    for step in range(3):
        array, expected = (inputs(comm.size, (30_000,), step=step)[comm.rank] for _ in range(2))
        request = allreduce.start(array, key="w")
        array.shape = 3, 100, 100
        request.wait()
        other(expected, key="w")
        assert bytes_of(array.reshape(-1)) == bytes_of(expected)

"""Errors of one rank in a step whose calls are carried out at once, one after the other."""

import time

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of

import gqallreduce as gq
from gqallreduce.runtime.memory import Memory
from gqallreduce.stats import Statistics
from gqallreduce.transport.home import Home
from gqallreduce.transport.progress import Progress

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.native]
TWO_SCHEMES, ONE_SCHEME = "a=direct/raw; *=direct/onebit/ef", "*=direct/onebit/ef"


@pytest.fixture
def own(comm):
    made = comm.Dup()
    yield made
    made.Free()


def gradients(step=0):
    return {name: np.full(50, place + step + 1, np.float32) for place, name in enumerate("abc")}


def _steps(reducer, first, stop, one_by_one=False):
    """One by one: later than an abort of another rank."""
    for step in range(first, stop):
        if one_by_one:
            time.sleep(0.02)
            for name, gradient in gradients(step).items():
                reducer.start(name, gradient)
            reducer.wait()
        else:
            reducer(gradients(step))


def made(comm, rules):
    """A Reducer with a bucket for each tensor, whose tensors are known."""
    reducer = gq.Reducer(rules, comm=comm, timeout=TIMEOUT, bucket=0)
    _steps(reducer, 0, 3)
    assert [len(bucket) for bucket in reducer.buckets] == [1, 1, 1]
    return reducer


def fails_once(monkeypatch, where, name, at, error, after=lambda result: True):
    """The call number `at` of a function raises an error, in place of its work if `after` is None.

    Else after it; only calls count of whose result `after` is true.
    """
    original, left = getattr(where, name), [at]

    def failing(*given):
        result = None if after is None and left[0] == 1 else original(*given)
        left[0] -= after is None or after(result)
        if left[0] == 0:
            left[0] = -1
            raise error
        return result

    monkeypatch.setattr(where, name, failing)


@pytest.mark.parametrize("rules", [TWO_SCHEMES, ONE_SCHEME], ids=["two schemes", "one scheme"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("error", [KeyboardInterrupt("here"), RuntimeError("here")], ids=["interrupt", "error"])
@pytest.mark.parametrize("one_by_one", [False, True], ids=["at once", "one by one"])
def test_ranks_learn_of_an_error_within_a_call_before_any_timeout(own, monkeypatch, rules, call, error, one_by_one):
    """In the step or in the next one; new objects can be made on the communicator. Call 4 is the end of the step."""
    reducer = made(own, rules)
    failing = own.rank == own.size - 1
    if failing:
        # A call that is done here has been begun by all ranks; one that had not begun it would wait for this rank.
        fails_once(monkeypatch, Progress, "run_at_once", call, error, after=lambda result: result[0])
    with pytest.raises((type(error), gq.Error)) as raised:
        _steps(reducer, 3, 40, one_by_one and not failing)
    assert isinstance(raised.value, type(error)) == failing
    assert not isinstance(raised.value, gq.TimeoutError)
    again = made(own, rules)
    named = gradients(9)
    again(named)
    assert own.allgather(bytes_of(named["a"])) == [bytes_of(named["a"])] * own.size


@pytest.mark.parametrize("rules", [TWO_SCHEMES, ONE_SCHEME], ids=["two schemes", "one scheme"])
@pytest.mark.parametrize("one_by_one", [False, True], ids=["at once", "one by one"])
@pytest.mark.parametrize("heard", [False, True], ids=["", "heard before"])
def test_ranks_learn_in_the_next_step_of_an_error_at_the_end_of_the_last(own, monkeypatch, rules, one_by_one, heard):
    """Also where a call of another object has heard of it before."""
    reducer = made(own, rules)
    failing = own.rank == own.size - 1
    if failing:  # its fourth call has all messages, but does not take effect
        fails_once(monkeypatch, Memory, "commit", 4, KeyboardInterrupt("here"), after=None)
        with pytest.raises(KeyboardInterrupt):
            reducer(gradients(3))
    else:
        reducer(gradients(3))
        for _ in range(5):  # the abort comes, and MPI takes it in
            time.sleep(0.01)
            own.Iprobe()
        if heard:
            reducer.failure_flags.home.notice(TIMEOUT)
        with pytest.raises(gq.Error) as raised:
            _steps(reducer, 4, 5, one_by_one)
        assert not isinstance(raised.value, gq.TimeoutError)
    own.Barrier()
    _steps(made(own, rules), 3, 5)


@pytest.mark.parametrize("what", ["before the call", "after it took effect"])
def test_an_error_of_one_rank_alone_is_told_to_all_and_the_next_step_goes_on(own, monkeypatch, what):
    reducer = made(own, ONE_SCHEME)
    failing = own.rank == own.size - 1
    error = gq.Error("another thread makes a call") if what == "before the call" else RuntimeError("of a handler")
    if failing and what == "before the call":
        fails_once(monkeypatch, Home, "claim", 1, error, after=None)
    elif failing:
        fails_once(monkeypatch, Statistics, "record", 1, error)
    with pytest.raises(type(error) if failing else gq.MismatchError) as raised:
        reducer(gradients(3))
    assert raised.value is error or raised.value.field == "arguments"
    assert reducer.stats.steps == 3
    expected = made(own, ONE_SCHEME)
    for each in (reducer, expected):
        each(named := gradients(4))
        assert own.allgather(bytes_of(named["b"])) == [bytes_of(named["b"])] * own.size
    kept = [each.state_dict()["schemes"][ONE_SCHEME[2:]]["keys"]["b"] for each in (reducer, expected)]
    assert kept[0]["step"] == kept[1]["step"] == 4
    assert bytes_of(kept[0]["residual"]) == bytes_of(kept[1]["residual"])

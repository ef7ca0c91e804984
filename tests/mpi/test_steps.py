"""Several calls as one: after an error in one of them nothing has changed, on any rank."""

import numpy as np
import pytest
from ranks import TIMEOUT, errors, everywhere, inputs, state, works

import gqallreduce as gq

pytestmark = pytest.mark.mpi
KEYS = ("a", "b", "c")


def make(comm, scheme="direct/onebit/ef", timeout=TIMEOUT):
    return gq.Allreduce(scheme, comm=comm, timeout=timeout)


def gradients(comm, step, bad=None):
    draws = [inputs(comm.size, (40 + place,), step=10 * step + place) for place in range(len(KEYS))]
    arrays = {key: draw[comm.rank] for key, draw in zip(KEYS, draws, strict=True)}
    if bad is not None and comm.rank == comm.size - 1:
        arrays[bad][7] = np.nan
    return arrays


def train(allreduce, arrays):
    for key, array in arrays.items():
        allreduce(array, key=key)


def keys(allreduce):
    return allreduce.state_dict()["keys"]


@pytest.mark.parametrize("bad", KEYS)
@pytest.mark.parametrize("first", [True, False])
def test_a_step_with_a_nan_in_any_key_changes_nothing(comm, bad, first):
    """And the next one goes on as if it had not been tried."""
    allreduce, other = make(comm), make(comm)
    for step in range(0 if first else 2):
        train(allreduce, gradients(comm, step))
        train(other, gradients(comm, step))
    before = state(allreduce)

    def step_with_nan():
        with allreduce.step():
            train(allreduce, gradients(comm, 5, bad))

    kind, said = everywhere(comm, step_with_nan)
    assert (kind, said["key"], said["index"]) == (gq.NonFiniteError, bad, 7)
    assert state(allreduce) == before
    for step in (6, 7):
        with allreduce.step():
            train(allreduce, gradients(comm, step))
        train(other, gradients(comm, step))
        assert state(allreduce) == state(other)


def test_without_a_step_the_keys_before_the_nan_have_gone_on(comm):
    """What the step is for."""
    allreduce = make(comm)
    everywhere(comm, train, allreduce, gradients(comm, 0, "c"))
    assert sorted(keys(allreduce)) == ["a", "b"]


def test_a_key_may_be_called_again_and_flushed_in_a_step(comm):
    allreduce, other = make(comm), make(comm)
    for keep in (False, True):
        before = state(allreduce)
        try:
            with allreduce.step():
                for step in range(3):
                    train(allreduce, gradients(comm, step))
                    assert keys(allreduce)["a"]["step"] == step + 1
                allreduce.flush("b")
                if not keep:
                    allreduce(np.full(5, np.nan, np.float32), key="d")
        except gq.NonFiniteError:
            assert state(allreduce) == before
    for step in range(3):
        train(other, gradients(comm, step))
    other.flush("b")
    assert state(allreduce) == state(other)


def test_an_error_that_was_caught_inside_undoes_the_step_all_the_same(comm):
    allreduce = make(comm)

    def step():
        with allreduce.step():
            train(allreduce, gradients(comm, 0))
            with pytest.raises(gq.NonFiniteError):
                allreduce(np.full(5, np.nan, np.float32), key="d")

    assert everywhere(comm, step)[0] is gq.Error
    assert keys(allreduce) == {}
    works(comm, allreduce)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_leaves_a_step_by_an_error_of_its_own_undoes_it_on_all(comm):
    """Where the others come to the end of the step, or to one more call: a first one, or one of a known key."""
    for then in ((), ("d",), ("a",)):
        allreduce = make(comm)
        train(allreduce, gradients(comm, 0))
        before = state(allreduce)

        def step(allreduce=allreduce, then=then):
            with allreduce.step():
                train(allreduce, gradients(comm, 1))
                if comm.rank == 0:
                    raise OSError("the disk is full")
                for key in then:
                    allreduce(np.ones(40, np.float32), key=key)

        found = errors(comm, step)
        assert found[0][0] is OSError
        assert found[1:] == [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)
        assert state(allreduce) == before
        works(comm, make(comm) if then == ("a",) else allreduce)


@pytest.mark.mpi(min_size=2)
def test_a_step_that_one_rank_interrupts_is_told_to_the_others(comm):
    allreduce = make(comm)

    def step():
        with allreduce.step():
            train(allreduce, gradients(comm, 0))
            if comm.rank == 0:
                raise KeyboardInterrupt
            train(allreduce, gradients(comm, 1))

    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            step()
        found = errors(comm, lambda: None)
    else:
        found = errors(comm, step)
    assert {each and each[0] for each in found[1:]} == {gq.Error}
    assert keys(allreduce) == {}
    works(comm, make(comm))


def test_steps_are_not_nested(comm):
    allreduce = make(comm)
    with allreduce.step():
        train(allreduce, gradients(comm, 0))
        with pytest.raises(ValueError, match="nested"), allreduce.step():
            pass
    assert sorted(keys(allreduce)) == list(KEYS)


@pytest.mark.mpi(min_size=2)
def test_ranks_whose_steps_hold_other_calls_are_told(comm):
    allreduce = make(comm)

    def step():
        with allreduce.step():
            allreduce(np.ones(5, np.float32), key="a")
            if comm.rank == 0:
                allreduce.memory.unstage(keep=False)
                allreduce.memory.stage()

    assert {each and each[0] for each in errors(comm, step)} == {gq.MismatchError}
    assert keys(allreduce) == {}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_in_a_step_is_told_although_a_call_of_another_object_broke_the_link(comm, error):
    """The duplicate is then made anew within the step; the other ranks' calls there are not taken for the next ones.

    A rank that is interrupted does not wait, so the others end by their timeout.
    """
    allreduce, other = make(comm), make(comm)
    for each in (allreduce, other):
        for key in KEYS:
            works(comm, each, key=key)
    found = errors(comm, other, np.ones(39, np.float32), key="a" if comm.rank else "b")
    assert {each and each[0] for each in found} == {gq.MismatchError}

    def step(number):
        with allreduce.step():
            if number == 0 and comm.rank == 0:
                raise error("planted")
            allreduce(np.full(39, 10.0**number, np.float32), key="a")

    caught, allreduce.timeout = [], TIMEOUT if error is OSError else 1
    for number in range(2):
        try:
            step(number)
        except (OSError, KeyboardInterrupt, gq.Error) as raised:
            caught.append(type(raised))
        else:
            caught.append(None)
    assert None not in caught[: 1 if error is OSError else 2], caught
    if error is OSError and comm.rank:
        assert caught[0] is gq.MismatchError
    found = comm.allgather([each["step"] for each in keys(allreduce).values()])
    assert all(steps == found[0] for steps in found), (found, caught)
    works(comm, make(comm))

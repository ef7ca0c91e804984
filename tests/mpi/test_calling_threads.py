"""Two threads of a rank that call on one communicator at the same time: one of them is refused, and nothing is lost."""

import sys
import threading

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, inputs, state, works

import gqallreduce as gq
from gqallreduce.transport.home import Home

pytestmark = pytest.mark.mpi
REFUSED = "another thread"


@pytest.fixture(autouse=True)
def threads_that_alternate_often():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def make(comm, scheme):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)


def at_once(*functions):
    """What each function has raised, or None, in a thread of its own; all begin together."""
    raised, together = [None] * len(functions), threading.Barrier(len(functions))

    def run(place):
        together.wait(TIMEOUT)
        try:
            functions[place]()
        except Exception as error:
            raised[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    return raised


class Held:
    """A buffer. A call that reads what it is goes on only when `other` is set: when the other thread was refused."""

    def __init__(self, array, other):
        self.array, self.other = array, other

    @property
    def __array_interface__(self):
        self.other.wait(TIMEOUT)
        return self.array.__array_interface__


def summed(allreduce, buf):
    return allreduce(buf, key="w")


def started(allreduce, buf):
    return allreduce.start(buf, key="w").wait()


def race(call, allreduce, value):
    """Two threads call on the same values: (array, exception or None) of each."""
    over = threading.Event()
    arrays = [value.copy() for _ in range(2)]

    def one_of_two(array):
        try:
            call(allreduce, Held(array, over))
        finally:
            over.set()

    raised = at_once(*(lambda array=array: one_of_two(array) for array in arrays))
    return list(zip(arrays, raised, strict=True))


@pytest.mark.parametrize("call", [summed, started])
@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/raw"])
def test_of_two_threads_that_race_one_has_the_sum_and_the_other_an_error(comm, scheme, call):
    """On every rank, whichever comes first there: its call is open until the other thread has its answer."""
    raced, alone = make(comm, scheme), make(comm, scheme)
    rounds, expected = [], []
    for turn in range(20):
        value = inputs(comm.size, (500,), step=turn)[comm.rank]
        comm.Barrier()
        rounds.append((value, race(call, raced, value)))
        expected.append(bytes_of(alone(value.copy(), key="w")))
    for (value, both), correct in zip(rounds, expected, strict=True):
        (error,) = [error for _, error in both if error is not None]
        assert type(error) is gq.Error
        assert REFUSED in str(error)
        for array, each in both:
            assert bytes_of(array) == (correct if each is None else bytes_of(value))
    assert state(raced) == state(alone)
    works(comm, raced)


def until_taken(function):
    """Calls it until it is not refused."""
    while True:
        try:
            return function()
        except gq.Error as error:
            if REFUSED not in str(error):
                raise


def test_a_thread_that_tests_a_request_while_another_calls_changes_no_bit(comm):
    """What it does not advance itself is refused; who is refused has changed nothing, and may call again."""
    disturbed, alone = make(comm, "direct/onebit/ef"), make(comm, "direct/onebit/ef")
    before = disturbed.start(np.ones(5, np.float32), key="before")
    before.wait()
    alone(np.ones(5, np.float32), key="before")
    arrays = [inputs(comm.size, (3000,), step=step)[comm.rank] for step in range(30)]
    expected = [bytes_of(alone(array.copy(), key="w")) for array in arrays]
    over = threading.Event()

    def call():
        try:
            for array in arrays:
                request = until_taken(lambda array=array: disturbed.start(array, key="w"))
                assert until_taken(request.wait) is array
        finally:
            over.set()

    def disturb():
        while not over.is_set():
            assert until_taken(before.test)

    comm.Barrier()
    assert at_once(call, disturb) == [None, None]
    assert [bytes_of(array) for array in arrays] == expected
    assert state(disturbed) == state(alone)
    works(comm, disturbed)


def test_a_claim_is_held_by_one_thread_at_a_time(comm):
    """However a claim that has just ended and one that begins meet."""
    home, inside, seen = Home(comm), [], set()

    def claim_again_and_again():
        for _ in range(50_000):
            try:
                claim = home.claim()
            except gq.Error:
                continue
            inside.append(claim)
            seen.add(len(inside))
            inside.remove(claim)
            home.release(claim)

    assert at_once(*[claim_again_and_again] * 4) == [None] * 4
    assert seen == {1}

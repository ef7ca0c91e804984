"""What becomes of calls that may be carried out at once (runtime/repeated.py), for tests."""

import gc
import weakref

import pytest
from mpi4py import MPI
from ranks import TIMEOUT, raised

from gqallreduce.runtime import repeated
from gqallreduce.runtime.repeated import NOT_BEGUN
from gqallreduce.transport.progress import Progress


def note_at_once(monkeypatch, module) -> list[bool]:
    """Of each call that a module makes from now on, was it carried out at once?"""
    found, at_once = [], module.repeated

    def noted(*given):
        result = at_once(*given)
        found.append(result is not NOT_BEGUN)
        return result

    monkeypatch.setattr(module, "repeated", noted)
    return found


def note_taken_up(monkeypatch, of_call) -> list:
    """`of_call(call)` of each call that the runtime does not bring to an end soon."""
    found, take_up = [], Progress.take_up

    def noted(progress, call):
        found.append(of_call(call))
        take_up(progress, call)

    monkeypatch.setattr(Progress, "take_up", noted)
    return found


def errors_of(comm, allreduce, array, monkeypatch, owner, function, error) -> list[type]:
    """Of each rank, how a call of key "w" ends in which a function of rank 0 raises an error; NoneType: it does not."""
    problem = None
    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(owner, function, lambda *_: raised(error))
        try:
            allreduce(array, key="w")
        except (Exception, KeyboardInterrupt) as caught:
            problem = caught
    return comm.allgather(type(problem))


def require_free_at_once(allreduce, array):
    """AssertionError if what a call of key "w" was given is kept until the garbage collector comes."""
    array = array.copy()
    gone = weakref.ref(array)
    gc.disable()
    try:
        allreduce(array, key="w")
        del array
        assert gone() is None
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def heard_long_ago(monkeypatch):
    """A rank need not have looked for aborts within 2 ms: a busy machine may let it wait for longer. A single one may
    take longer."""
    monkeypatch.setattr(repeated, "LISTEN", TIMEOUT)
    if MPI.COMM_WORLD.size == 1:
        monkeypatch.setattr(repeated, "MOST", TIMEOUT)


@pytest.fixture
def taken_up(monkeypatch):
    """Of each call that the runtime did not end soon, the kind of its Stage."""
    return note_taken_up(monkeypatch, lambda call: type(call.running[1]).__name__)

"""Calls of known keys that are carried out at once (runtime/repeated.py), and those that must go on as others do."""

import contextlib
import gc
import time

import numpy as np
import pytest
from at_once import heard_long_ago as heard_long_ago
from at_once import note_at_once, note_taken_up
from mpi4py import MPI
from ranks import TIMEOUT, bytes_of

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce import allreduce as allreduce_module
from gqallreduce.runtime.memory import Memory
from gqallreduce.runtime.run import Run
from gqallreduce.transport.progress import Progress

pytestmark = [pytest.mark.mpi, pytest.mark.native]
LATE = 0.2  # seconds, longer than any rank waits at first


@pytest.fixture
def at_once(monkeypatch):
    """Of each call, was it carried out at once?"""
    return note_at_once(monkeypatch, allreduce_module)


@pytest.fixture
def taken_up(monkeypatch):
    """Of which call names did the runtime not come to an end soon?"""
    return note_taken_up(monkeypatch, lambda call: call.name)


def make(comm, scheme="direct/onebit/ef", **options):
    """And its key is known, heard of a moment ago."""
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)
    allreduce(np.ones(20, np.float32), key="w")
    return allreduce


@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/qsgd(bits=4)", "halving_doubling/topk(k=3)/ef"])
def test_the_second_call_is(comm, scheme, at_once):
    allreduce = make(comm, scheme)
    array, out = np.ones(20, np.float32), np.zeros(20, np.float32)
    assert allreduce(array, key="w", out=out) is out
    assert at_once == [False, True]
    assert len(set(comm.allgather(bytes_of(out)))) == 1
    assert allreduce.stats.last.messages > 0 or comm.size == 1
    assert allreduce.state_dict()["keys"]["w"]["step"] == 2
    assert not allreduce.home.unclaimed
    assert not allreduce.home.link.progress.calls


@pytest.mark.parametrize("options", [{"check": "always"}, {"verify": 1}, {"trace": "t.json"}])
def test_not_so_where_ranks_compare_or_it_is_traced(comm, options, at_once, tmp_path):
    if "trace" in options:
        options = {"trace": str(tmp_path / options["trace"])}
    with make(comm, **options) as allreduce:
        allreduce(np.ones(20, np.float32), key="w")
    assert at_once == [False, False]


def test_not_so_while_a_request_is_not_waited_for(comm, at_once):
    """Nor while its call is done: until then key and buffer belong to it."""
    allreduce = make(comm)
    other = np.ones(5, np.float32)
    allreduce(other, key="v")
    request = allreduce.start(other, key="v")
    with pytest.raises(ValueError, match="overlaps"):
        allreduce.start(other, key="x")
    allreduce(np.ones(20, np.float32), key="w")
    assert at_once == [False, False, False]
    while not request.advance():
        pass
    with pytest.raises(ValueError, match="key 'v' is under way"):
        allreduce(other, key="v")
    request.wait()
    allreduce(other, key="v")
    assert at_once == [False, False, False, False, True]


@pytest.mark.mpi(min_size=2)
def test_a_late_rank_is_waited_for(comm, taken_up):
    allreduce, late = make(comm), comm.size - 1
    expected = make(comm)
    comm.Barrier()
    for each, seconds in ((allreduce, LATE), (expected, 0)):
        for _ in range(3):
            if comm.rank == late:
                time.sleep(seconds)
            each(np.full(20, comm.rank + 1.0, np.float32), key="w")
    assert comm.rank == late or "the call of key 'w'" in taken_up
    assert bytes_of(allreduce.residual("w")) == bytes_of(expected.residual("w"))
    assert allreduce.stats.total.messages == expected.stats.total.messages


def test_a_flaw_is_told_on_all_ranks_and_changes_nothing(comm):
    allreduce = make(comm)
    before = allreduce.state_dict()
    for _ in range(2):
        array = np.ones(20, np.float32)
        array[7] = np.inf if comm.rank == comm.size - 1 else 1
        with pytest.raises(gq.NonFiniteError) as error:
            allreduce(array, key="w")
        assert (error.value.rank, error.value.key, error.value.index) == (comm.size - 1, "w", 7)
    after = allreduce.state_dict()
    assert after["keys"]["w"]["step"] == before["keys"]["w"]["step"]
    assert bytes_of(after["keys"]["w"]["residual"]) == bytes_of(before["keys"]["w"]["residual"])
    del error
    gc.collect()  # what the runtime made for these calls is used again
    for _ in range(3):
        allreduce(np.ones(20, np.float32), key="w")
        assert allreduce.stats.last.messages == 2 * (comm.size - 1)


@pytest.mark.mpi(min_size=2)
def test_all_waiting_is_counted(comm, monkeypatch):
    allreduce, late = make(comm), comm.size - 1
    run_at_once = Progress.run_at_once

    def longer(*given):
        done, waited = run_at_once(*given)
        return done, waited + 1000

    monkeypatch.setattr(Progress, "run_at_once", longer)
    for seconds in (0, LATE):
        comm.Barrier()
        if comm.rank == late:
            time.sleep(seconds)
        allreduce(np.ones(20, np.float32), key="w")
        assert allreduce.stats.last.wait >= 1000


@pytest.mark.mpi(min_size=2)
def test_a_key_that_cannot_be_looked_at_is_told(comm):
    class Broken(list):
        def __iter__(self):
            raise RuntimeError("no")

    allreduce, arrays = make(comm), [np.ones(5, np.float32), np.ones(6, np.float32)]
    allreduce(arrays, key=["a", "b"])
    key = Broken(["a", "b"]) if comm.rank == 0 else ["a", "b"]
    with pytest.raises((RuntimeError, gq.MismatchError)):
        allreduce(arrays, key=key)


@pytest.mark.parametrize("what", ["load_state_dict", "state_dict", "residual", "step", "flush", "call"])
def test_what_interrupts_it_is_refused(comm, what, monkeypatch):
    """As a signal handler does while the runtime works."""
    allreduce = make(comm)
    state, refused = allreduce.state_dict(), []
    interrupting = {
        "load_state_dict": lambda: allreduce.load_state_dict(state),
        "state_dict": allreduce.state_dict,
        "residual": lambda: allreduce.residual("w"),
        "step": lambda: allreduce.step().__enter__(),
        "flush": lambda: allreduce.flush("w"),
        "call": lambda: allreduce(np.ones(5, np.float32), key="v"),
    }

    def interrupted(*given):
        interrupt()
        return commit(*given)

    def interrupt():
        with pytest.raises(gq.Error, match="interrupted"):
            interrupting[what]()
        refused.append(what)

    commit = Memory.commit
    monkeypatch.setattr(Memory, "commit", interrupted)
    allreduce(np.ones(20, np.float32), key="w")
    assert refused == [what]
    monkeypatch.undo()
    assert allreduce.state_dict()["keys"]["w"]["step"] == 2
    allreduce(np.ones(20, np.float32), key="w")


def test_a_norm_is_computed_in_the_usual_mode(comm):
    norms, arrays = [], [np.linspace(-1, step + comm.rank, 20, dtype=np.float32) for step in range(4)]
    for control in (None, 0x5F80):  # rounds up
        allreduce, kept = make(comm), []
        before = _kernels.float_control()
        for array in arrays:
            mine = array.copy()
            if control is not None:
                _kernels.set_float_control(control)
            try:
                allreduce(mine, key="w")
            finally:
                _kernels.set_float_control(before)
            kept.append(allreduce.stats.last)
        if control is not None:
            _kernels.set_float_control(control)
        try:
            norms.append([each.residual_norm for each in kept])
        finally:
            _kernels.set_float_control(before)
    assert norms[0] == norms[1]


@pytest.mark.mpi(min_size=2)
def test_a_call_that_is_given_up_ends_its_run(comm, monkeypatch):
    ended, end = [], Run.end

    def noted(run):
        ended.append(run)
        end(run)

    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=0.3)
    allreduce(np.ones(20, np.float32), key="w")
    monkeypatch.setattr(Run, "end", noted)
    if comm.rank == 0:
        array = np.ones(20, np.float32)
        array[3] = np.nan
        with pytest.raises(gq.TimeoutError):
            allreduce(array, key="w")
        assert len(ended) == 1
    comm.Barrier()
    monkeypatch.undo()


def test_on_one_rank_a_failure_does_not_end_it(at_once):
    for _ in range(2):
        allreduce = make(MPI.COMM_SELF)
        allreduce(np.ones(20, np.float32), key="w")
        assert at_once == [False, True]
        del at_once[:]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Memory, "next", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                allreduce(np.ones(20, np.float32), key="w")
        del at_once[:]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_in_it_is_told_to_the_others(comm, error, monkeypatch):
    allreduce = make(comm)
    run_at_once = Progress.run_at_once

    def interrupted(*given):
        run_at_once(*given)
        raise error

    if comm.rank == 0:
        monkeypatch.setattr(Progress, "run_at_once", interrupted)
    kinds = comm.allgather(kind_of_error(allreduce))
    assert kinds[0] is error
    assert set(kinds[1:]) <= {None, gq.Error}  # None: all had come before
    monkeypatch.undo()
    assert comm.allgather(kind_of_error(allreduce)) == [gq.Error] * comm.size  # it cannot be used any more
    make(comm)


def kind_of_error(allreduce):
    try:
        allreduce(np.ones(20, np.float32), key="w")
    except (Exception, KeyboardInterrupt) as error:
        return type(error)
    return None


def test_in_a_step_it_takes_effect_at_its_end(comm, at_once):
    allreduce = make(comm)
    with allreduce.step():
        allreduce(np.ones(20, np.float32), key="w")
    assert at_once == [False, True]
    assert allreduce.state_dict()["keys"]["w"]["step"] == 2
    with contextlib.suppress(KeyError), allreduce.step():
        allreduce(np.ones(20, np.float32), key="w")
        raise KeyError
    assert allreduce.state_dict()["keys"]["w"]["step"] == 2

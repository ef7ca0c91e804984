"""Calls of known keys that are carried out at once, stage by stage: of codecs that sum other vectors than buffers."""

import time

import numpy as np
import pytest
from at_once import errors_of, note_at_once, require_free_at_once
from at_once import heard_long_ago as heard_long_ago
from at_once import taken_up as taken_up
from ranks import TIMEOUT, bytes_of, everywhere, inputs

import gqallreduce as gq
from gqallreduce import allreduce as allreduce_module
from gqallreduce.runtime import repeated
from gqallreduce.runtime.own import OwnValues
from gqallreduce.transport.progress import Progress

pytestmark = [pytest.mark.mpi, pytest.mark.native]
SHAPE, LATE, SOON = (24, 16), 0.2, repeated.MOST
SCHEMES = [
    "direct/randk(ratio=0.2)/ef", "ring/randk(ratio=0.2, values=float16)", "direct/randk(k=0.5)/ef",
    "direct/powersgd(rank=2)/ef", "recursive_doubling/powersgd(rank=1, inner=qsgd(bits=8))/ef",
    "direct/gradiveq(K=2, d=2, train=2, warmup=1, compress=2)",
]  # fmt: skip


@pytest.fixture
def at_once(monkeypatch):
    """Of each call, was it carried out at once?"""
    return note_at_once(monkeypatch, allreduce_module)


def values(comm, step=0, dtype="float32", order="C"):
    return inputs(comm.size, SHAPE, dtype, order, step)[comm.rank]


def make(comm, scheme="direct/powersgd(rank=2)/ef", **options):
    """Its key is known."""
    allreduce = gq.Allreduce(scheme, comm=comm, **{"timeout": TIMEOUT, **options})
    allreduce(values(comm), key="w")
    return allreduce


def sums(allreduce, comm, steps, keys=None, **form):
    """What these calls return, leave and count."""
    found = []
    for step in steps:
        arrays = [values(comm, step + 100 * number, **form) for number in range(len(keys or "w"))]
        out = [np.empty_like(each) for each in arrays] if step % 2 else None
        if keys:
            result = allreduce(arrays, key=keys, out=out)
        else:
            result = [allreduce(arrays[0], key="w", out=None if out is None else out[0])]
        left = [allreduce.residual(key) for key in keys or "w"] if allreduce.scheme.feedback else []
        last = allreduce.stats.last
        counted = last.messages, last.bytes_sent, last.dense_bytes, last.selected
        found.append([*map(bytes_of, [*result, *left]), *counted])
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", [{}, {"dtype": "float64", "order": "F"}, {"dtype": "float16"}])
@pytest.mark.parametrize("runtimes", ["native", "mixed"])
@pytest.mark.parametrize("keys", [None, ["a", "b", "c"]], ids=["alone", "group"])
def test_the_second_call_is_with_the_same_bits(comm, scheme, form, runtimes, keys, at_once, monkeypatch):
    steps = range(1, 8)
    with gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, check="always") as others:
        expected = sums(others, comm, steps, keys, **form)
        states = others.state_dict()["keys"]
    python = runtimes == "mixed" and comm.rank == 0
    with monkeypatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", "python" if python else "native")
        with gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT) as allreduce:
            del at_once[:]
            assert sums(allreduce, comm, steps, keys, **form) == expected
            assert not allreduce.home.link.progress.calls
            found = allreduce.state_dict()["keys"]
    assert at_once == [False] + [not python] * (len(steps) - 1)
    for key, state in states.items():
        assert found[key]["step"] == state["step"]
        assert repr(found[key].get("learned")) == repr(state.get("learned"))


def product(comm, step):
    """A sum of products."""
    rng = np.random.default_rng([comm.rank, step])
    x, delta = (rng.standard_normal((3, size), np.float32) for size in (9, 7))
    return gq.Outer(x, delta), np.empty((9, 7), np.float32)


def test_products_are_summed_as_before(comm, at_once):
    """They are no plain arrays."""
    with gq.Allreduce("direct/isgq(send=factors)", comm=comm, timeout=TIMEOUT) as allreduce:
        for step in range(3):
            given, out = product(comm, step)
            allreduce(given, key="w", out=out)
    assert at_once == [False] * 3


@pytest.mark.parametrize("scheme", SCHEMES[:4])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_value_that_is_not_finite_is_told_on_all_ranks(comm, scheme, value):
    allreduce, fresh = make(comm, scheme), make(comm, scheme)
    before = allreduce.state_dict()["keys"]["w"]
    array = values(comm)
    array[3, 5] = value if comm.rank == comm.size - 1 else 1
    kind, said = everywhere(comm, allreduce, array, key="w")
    assert (kind, said["rank"], said["key"]) == (gq.NonFiniteError, comm.size - 1, "w")
    after = allreduce.state_dict()["keys"]["w"]
    assert after["step"] == before["step"]
    assert sums(allreduce, comm, (1, 2)) == sums(fresh, comm, (1, 2))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("late", [1, 2])
@pytest.mark.parametrize("flawed", [False, True])
def test_a_late_rank_is_waited_for(comm, late, flawed, taken_up, monkeypatch):
    """Rank 0 begins late, so that others take the call up in the first sum, or in the second."""
    monkeypatch.setattr(repeated, "MOST", TIMEOUT)  # what comes before is over at once
    allreduce, expected, count = make(comm), make(comm), [0]
    run_at_once = Progress.run_at_once

    def slow(link_progress, running, number, tag, most, until):
        count[0] += 1
        if count[0] == late:
            most = SOON
            if comm.rank == 0:
                time.sleep(LATE)
        return run_at_once(link_progress, running, number, tag, most, until)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "run_at_once", slow)
        comm.Barrier()
        if flawed:
            array = values(comm)
            array[3, 5] = np.nan
            assert everywhere(comm, allreduce, array, key="w")[0] is gq.NonFiniteError
        found = sums(allreduce, comm, (1,))
    assert found == sums(expected, comm, (1,))
    if comm.rank == 1 and not flawed:  # direct: it receives from rank 0 in the first round
        assert taken_up[:1] == ["Operation"]
    assert sums(allreduce, comm, (2, 3)) == sums(expected, comm, (2, 3))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("where", ["draw", "form", "operand", "store"])
def test_an_error_in_it_ends_the_call_on_all_ranks(comm, error, where, monkeypatch):
    """But on those that have their sum already: an error in `store` is that of one rank alone."""
    allreduce = make(comm, "direct/randk(ratio=0.2)/ef", timeout=0.5)
    before = allreduce.state_dict()["keys"]["w"]
    kinds = errors_of(comm, allreduce, values(comm), monkeypatch, OwnValues, where, error)
    assert kinds[0] is error
    assert set(kinds[1:]) <= ({type(None), gq.Error} if where == "store" else {gq.Error})
    if kinds[comm.rank] is not type(None):
        after = allreduce.state_dict()["keys"]["w"]
        assert after["step"] == before["step"]
        assert bytes_of(after["residual"]) == bytes_of(before["residual"])
    make(comm)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_callers_errstate_is_not_that_of_a_call(comm, scheme):
    """With denormal values and results, on one rank."""
    allreduce, expected = (make(comm, scheme, average=True) for _ in range(2))
    for step in range(1, 7):
        scale = 10.0 ** np.random.default_rng(comm.rank).integers(-45, -37, SHAPE)
        array = (values(comm, step) * scale).astype(np.float32).astype(np.float64)
        same = array.copy()
        with np.errstate(all="raise" if comm.rank == 0 else "warn"):
            allreduce(array, key="v")
        expected.start(same, key="v").wait()
        assert bytes_of(array) == bytes_of(same)
    assert allreduce.unusable is None


def test_what_it_was_given_is_free_at_once(comm):
    require_free_at_once(make(comm), values(comm))

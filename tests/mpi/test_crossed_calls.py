"""Two known keys crossed: found in mid-call, on every rank, whatever the two calls' sizes and schedules are."""

import contextlib
import functools
import time

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, errors, everywhere, works

import gqallreduce as gq
from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling import model

pytestmark = pytest.mark.mpi(min_size=2)
LARGE, SMALL = 700_000, 50


def cross(comm, allreduce, one, other, odd):
    """Both keys become known; then rank `odd` uses the other one than all others do."""
    for key, elements in (one, other):
        allreduce(np.ones(elements, np.float32), key=key)
    key, elements = other if comm.rank == odd else one
    found = errors(comm, allreduce, np.ones(elements, np.float32), key=key)
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    assert {each[1]["field"] for each in found} == {"frame"}
    assert all(each[1]["ranks"] != () for each in found)
    assert everywhere(comm, allreduce, np.ones(elements, np.float32), key=key)[0] is gq.Error
    assert everywhere(comm, allreduce, np.ones(5, np.float32), key="new")[0] is gq.Error


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("sizes", [(SMALL, SMALL), (SMALL, LARGE), (LARGE, SMALL), (LARGE, LARGE + 1)])
@pytest.mark.parametrize("last", [False, True])
def test_crossed_keys(comm, schedule, sizes, last):
    """Large messages where small ones are due must not be received: MPIs write past the room."""
    allreduce = gq.Allreduce(f"{schedule}/raw", comm=comm, timeout=TIMEOUT)
    cross(comm, allreduce, ("a", sizes[0]), ("b", sizes[1]), comm.size - 1 if last else 0)
    works(comm, gq.Allreduce(f"{schedule}/raw", comm=comm, timeout=TIMEOUT))


def test_the_text_names_the_key_that_this_rank_called(comm):
    allreduce = gq.Allreduce("direct/raw", comm=comm, timeout=TIMEOUT)
    for key in ("fc1.weight", "fc2.weight"):
        allreduce(np.ones(50, np.float32), key=key)
    mine = "fc2.weight" if comm.rank == 0 else "fc1.weight"
    with pytest.raises(gq.MismatchError, match=f"this rank was in the call of key '{mine}'"):
        allreduce(np.ones(50, np.float32), key=mine)
    works(comm, gq.Allreduce("direct/raw", comm=comm, timeout=TIMEOUT))


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("sizes", [(SMALL, LARGE), (LARGE, SMALL)])
@pytest.mark.parametrize("text", ["qsgd(bits=8)/ef", "terngrad/ef"])
def test_crossed_keys_whose_schedules_differ(comm, text, sizes, odd):
    """Both calls of terngrad agree on a scale first: on that of the two mixed, with which they come no further."""
    allreduce = gq.Allreduce(text, comm=comm, timeout=TIMEOUT)
    cross(comm, allreduce, ("a", sizes[0]), ("b", sizes[1]), odd)
    works(comm, gq.Allreduce(text, comm=comm, timeout=TIMEOUT))


def test_residuals_are_as_before_the_crossed_call(comm):
    allreduce = gq.Allreduce("onebit/ef", comm=comm, timeout=TIMEOUT)
    for key in "ab":
        allreduce(np.arange(50, dtype=np.float32), key=key)
    before = {key: bytes_of(allreduce.residual(key)) for key in "ab"}
    found = errors(comm, allreduce, np.arange(50, dtype=np.float32), key="a" if comm.rank else "b")
    assert {each and each[0] for each in found} == {gq.MismatchError}
    assert {key: bytes_of(allreduce.residual(key)) for key in "ab"} == before
    assert {each["step"] for each in allreduce.state_dict()["keys"].values()} == {1}


def test_a_rank_one_step_ahead_is_found(comm):
    """The same key and form, but another step: told by the frame's header, not by its tag."""
    allreduce = gq.Allreduce("qsgd/ef", comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(50, np.float32), key="w")
    if comm.rank == 0:
        memory = allreduce.memory
        memory.commit({"w": memory.get("w").replaced(step=2)})
    found = errors(comm, allreduce, np.ones(50, np.float32), key="w")
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    works(comm, gq.Allreduce("qsgd/ef", comm=comm, timeout=TIMEOUT))


def test_a_broken_object_leaves_the_cache_and_the_others_go_on(comm):
    other = gq.Allreduce("ring/qsgd/ef", comm=comm, timeout=TIMEOUT)
    works(comm, other)
    for key in "ab":
        gq.quantized_allreduce(np.ones(20, np.float32), "ring/raw", key=key, comm=comm)
    assert gq.cached(comm, "ring/raw") is not None
    key = "a" if comm.rank else "b"
    found = errors(comm, gq.quantized_allreduce, np.ones(20, np.float32), "ring/raw", key=key, comm=comm)
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    assert gq.cached(comm, "ring/raw") is None
    works(comm, other)
    array = np.ones(20, np.float32)
    gq.quantized_allreduce(array, "ring/raw", key="a", comm=comm)
    assert (array == comm.size).all()


@pytest.mark.parametrize(
    "texts", [("ring/raw", "direct/qsgd/ef"), ("direct/terngrad/ef", "ring/raw"), ("ring/qsgd", "ring/terngrad")]
)
def test_two_objects_crossed(comm, texts):
    """Also where only one of the two agrees on a scale first, which the other ranks have nothing to say to."""
    a, b = (gq.Allreduce(text, comm=comm, timeout=TIMEOUT) for text in texts)
    for allreduce in (a, b):
        works(comm, allreduce, key="w")
    found = errors(comm, b if comm.rank == 0 else a, np.ones(39, np.float32), key="w")
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    works(comm, gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT))


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("text", ["direct/raw", "auto/raw", "onebit/ef"])
def test_two_objects_of_one_scheme_crossed(comm, text, check, monkeypatch):
    """Of two models, say, with keys and shapes alike: only the order in which they were made tells them apart."""
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    monkeypatch.setattr(model, "choose", lambda *_: (model.DENSE, "forced"))
    a, b = (gq.Allreduce(text, comm=comm, timeout=TIMEOUT, check=check) for _ in range(2))
    for known in (False, True):
        found = errors(comm, b if comm.rank == 0 else a, np.ones(39, np.float32), key="fc1.weight")
        assert {each and each[0] for each in found} == {gq.MismatchError}, (known, found)
        assert {each[1]["field"] for each in found} == {"frame"}
        a, b = (gq.Allreduce(text, comm=comm, timeout=TIMEOUT, check=check) for _ in range(2))
        for each in (a, b):
            works(comm, each, key="fc1.weight")


@pytest.mark.parametrize("call", ["first", "known", "dense", "step"])
@pytest.mark.parametrize("last", [False, True])
def test_an_object_is_made_while_the_others_call(comm, call, last, monkeypatch):
    """What the others are at is told on both sides, and the object that was not made can be made by all."""
    if call == "dense":
        monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
        monkeypatch.setattr(model, "choose", lambda *_: (model.DENSE, "forced"))
    allreduce = gq.Allreduce("auto/raw" if call == "dense" else "ring/qsgd/ef", comm=comm, timeout=TIMEOUT)
    if call != "first":
        allreduce(np.ones(50, np.float32), key="w")

    def others():
        with allreduce.step() if call == "step" else contextlib.nullcontext():
            if call != "step":
                allreduce(np.ones(50, np.float32), key="w")

    make = functools.partial(gq.Allreduce, "ring/qsgd/ef", comm=comm, timeout=TIMEOUT)
    found = errors(comm, make if comm.rank == (comm.size - 1 if last else 0) else others)
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    works(comm, make())


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("odd", [(0, 1), (2, 3)])
@pytest.mark.parametrize("late", [False, True])
def test_several_ranks_make_an_object_while_the_others_call(comm, odd, late):
    """Also a rank that comes to make one after the others have ended their call is told."""
    allreduce = gq.Allreduce("ring/qsgd/ef", comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(50, np.float32), key="w")
    make = functools.partial(gq.Allreduce, "ring/qsgd/ef", comm=comm, timeout=TIMEOUT)
    call = functools.partial(allreduce, np.ones(50, np.float32), key="w")
    if late and comm.rank == odd[1]:
        time.sleep(0.3)
        allreduce.home.control.read()  # all that has come
        time.sleep(0.3)
    found = errors(comm, make if comm.rank in odd else call)
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    works(comm, make())


@pytest.mark.parametrize("last", [False, True])
def test_a_rank_has_closed_its_object_and_makes_one_while_the_others_call(comm, last):
    mine = comm.Dup()
    make = functools.partial(gq.Allreduce, "ring/qsgd/ef", comm=mine, timeout=TIMEOUT)
    allreduce = make()
    allreduce(np.ones(50, np.float32), key="w")

    def close_and_make():
        allreduce.close()
        make()

    call = functools.partial(allreduce, np.ones(50, np.float32), key="w")
    found = errors(comm, close_and_make if comm.rank == (comm.size - 1 if last else 0) else call)
    assert {each and each[0] for each in found} == {gq.MismatchError}, found
    works(comm, make())
    mine.Free()

"""Ranks that call differently: every rank learns it, by name, and what can go on goes on."""

import numpy as np
import pytest
from ranks import TIMEOUT, errors, everywhere, works

import gqallreduce as gq
from gqallreduce.coding import frame
from gqallreduce.coding.order import to_array
from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling import model
from gqallreduce.transport.agreement import FIELDS

pytestmark = pytest.mark.mpi(min_size=2)
SCHEME = "qsgd(bits=4)/ef"
# field -> (options of the odd object, key of the odd call, odd array)
ODD = {
    "key": ({}, "v", np.ones((6, 40), np.float32)),
    "scheme": ({"scheme": "qsgd(bits=3)/ef"}, "w", np.ones((6, 40), np.float32)),
    "shape": ({}, "w", np.ones((40, 6), np.float32)),
    "dtype": ({}, "w", np.ones((6, 40), np.float64)),
    "order": ({}, "w", np.ones((6, 40), np.float32, order="F")),
    "average": ({"average": True}, "w", np.ones((6, 40), np.float32)),
    "seed": ({"seed": 1}, "w", np.ones((6, 40), np.float32)),
    "version": ({}, "w", np.ones((6, 40), np.float32)),
}


def make(comm, scheme=SCHEME, **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def test_every_field_is_tried():
    assert set(ODD) == set(FIELDS)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_differs_is_named_on_every_rank(comm, field, last, monkeypatch):
    options, key, array = ODD[field]
    odd = comm.size - 1 if last else 0
    right, other = make(comm), make(comm, **options)
    usual = right, "w", np.ones((6, 40), "f4")
    mine = (other, key, array.copy(order="K")) if comm.rank == odd else usual
    with monkeypatch.context() as patch:
        if field == "version" and comm.rank == odd:
            patch.setattr(frame, "VERSION", 2)
        kind, said = everywhere(comm, mine[0], mine[2], key=mine[1])
    assert kind is gq.MismatchError
    # of two ranks the one that is not rank 0 differs
    assert said == {"field": field, "ranks": (odd if comm.size > 2 else 1,)}
    assert right.state_dict()["keys"] == {}
    works(comm, right, key="w")


def test_two_orders_of_more_axes_differ(comm):
    """Neither of them C or Fortran."""
    order = "0,2,3,1" if comm.rank == 0 else "2,0,3,1"
    allreduce = make(comm)
    kind, said = everywhere(comm, allreduce, to_array(np.ones(81, np.float32), (3, 3, 3, 3), order), key="w")
    assert (kind, said["field"]) == (gq.MismatchError, "order")
    works(comm, allreduce, key="w")


def test_the_first_field_that_differs_is_named(comm):
    allreduce = make(comm)
    array = np.ones(10 + comm.rank, np.float32 if comm.rank else np.float64)
    kind, said = everywhere(comm, allreduce, array, key="w")
    assert (kind, said["field"]) == (gq.MismatchError, "shape")
    assert said["ranks"] == tuple(range(1, comm.size))


@pytest.mark.mpi(min_size=5)
def test_the_most_common_value_is_the_right_one(comm):
    array = np.ones(7 if comm.rank in (0, 3) else 8, np.float32)
    assert everywhere(comm, make(comm), array, key="w")[1] == {"field": "shape", "ranks": (0, 3)}


def test_leading_dimensions_may_differ(comm):
    allreduce = make(comm, "raw")
    whole = np.ones((8, 5 + comm.rank), np.float32)
    allreduce(whole[:, :5], key="w")
    assert (whole[:, :5] == comm.size).all()
    assert (whole[:, 5:] == 1).all()


def test_always_checking_finds_what_differs_later(comm):
    allreduce = make(comm, check="always")
    for _ in range(2):
        allreduce(np.ones(9, np.float32), key="w")
        allreduce(np.ones(9, np.float32), key="v")
    key = "v" if comm.rank == 0 else "w"
    kind, said = everywhere(comm, allreduce, np.ones(9, np.float32), key=key)
    assert (kind, said["field"]) == (gq.MismatchError, "key")
    works(comm, allreduce, key="w2")


# --- an invalid call of one rank ---

INVALID = {
    "dtype": ((np.ones(9, np.int32),), {}, TypeError),
    "strides": ((np.ones((9, 9, 2), np.float32)[::2, :, 0],), {}, ValueError),
    "no array": (("nine",), {}, TypeError),
    "read-only": ((np.broadcast_to(np.float32(1), (9,)),), {}, ValueError),
    "out": ((np.ones(9, np.float32),), {"out": np.ones(8, np.float32)}, ValueError),
}


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("case", INVALID)
@pytest.mark.parametrize("known", [False, True])
def test_an_invalid_call_of_one_rank(comm, case, known, check):
    """Its own error there, MismatchError elsewhere; after an agreement the object goes on, in mid-call it cannot."""
    arguments, options, own = INVALID[case]
    allreduce = make(comm, check=check)
    if known:
        allreduce(np.ones(9, np.float32), key="w")
    if comm.rank == comm.size - 1:
        found = errors(comm, allreduce, *arguments, key="w", **options)
    else:
        found = errors(comm, allreduce, np.ones(9, np.float32), key="w")
    assert found[-1][0] is own
    assert found[:-1] == [(gq.MismatchError, {"field": "arguments", "ranks": (comm.size - 1,)})] * (comm.size - 1)
    if known and check == "first":
        assert everywhere(comm, allreduce, np.ones(9, np.float32), key="w")[0] is gq.Error
        allreduce = make(comm)
    works(comm, allreduce)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("elements", [9, 500_000])
def test_an_invalid_call_for_a_known_key_on_every_schedule(comm, schedule, elements):
    allreduce = make(comm, f"{schedule}/raw")
    allreduce(np.ones(elements, np.float32), key="w")
    array = np.ones(9, np.int32) if comm.rank == 0 else np.ones(elements, np.float32)
    found = errors(comm, allreduce, array, key="w")
    assert found[0][0] is TypeError
    assert found[1:] == [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)
    works(comm, make(comm))


def test_an_invalid_call_while_the_others_agree_on_a_scale(comm):
    allreduce = make(comm, "terngrad/ef")
    allreduce(np.ones(90, np.float32), key="w")
    array = np.ones(9, np.int32) if comm.rank == 0 else np.ones(90, np.float32)
    found = errors(comm, allreduce, array, key="w")
    assert found[0][0] is TypeError
    assert found[1:] == [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)
    works(comm, make(comm, "terngrad/ef"))


def test_an_invalid_call_for_the_key_none(comm):
    """Which may have been used for several shapes: the ranks that wait for another one hear of it all the same."""
    allreduce = make(comm, "raw")
    for elements in (5, 400_000):
        allreduce(np.ones(elements, np.float32))
    array = np.ones(9, np.int32) if comm.rank == 0 else np.ones(400_000, np.float32)
    found = errors(comm, allreduce, array)
    assert found[0][0] is TypeError
    assert found[1:] == [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_an_invalid_call_while_the_others_run_dense(comm, dtype, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    monkeypatch.setattr(model, "choose", lambda *_: (model.DENSE, "forced"))
    allreduce = make(comm, "auto/qsgd/ef")
    allreduce(np.ones(9, dtype), key="w")
    array = np.ones(9, np.int32) if comm.rank == 0 else np.ones(9, dtype)
    found = errors(comm, allreduce, array, key="w")
    assert found[0][0] is TypeError
    assert found[1:] == [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)
    works(comm, allreduce)


def test_an_invalid_call_after_a_first_one_that_failed(comm):
    allreduce = make(comm)
    with pytest.raises(gq.NonFiniteError):
        allreduce(np.full(9, np.nan, np.float32), key="w")
    array = np.ones(9, np.int32) if comm.rank == 0 else np.ones(9, np.float32)
    found = errors(comm, allreduce, array, key="w")
    assert found[0][0] is TypeError
    assert {each[0] for each in found[1:]} == {gq.MismatchError}

"""NaN, Inf and overflow under MPI: the same error on every rank, and nothing has changed but the buffer."""

import numpy as np
import pytest
from ranks import TIMEOUT, Oracle, carrying, errors, everywhere, inputs, pairs, seen, state

import gqallreduce as gq
from gqallreduce.coding import lanes, layout
from gqallreduce.scheduling import model

pytestmark = pytest.mark.mpi
SHAPE = (12, 60)


def spoil(arrays, ranks, value, index=(3, 7)):
    for rank in ranks:
        arrays[rank % len(arrays)][index] = value
    return arrays


def overflowing(size):
    return [np.full(SHAPE, 3e38, np.float32) for _ in range(size)]


CASES = {
    "NaN of the last rank": lambda size: spoil(inputs(size, SHAPE), [size - 1], np.nan),
    "NaN of rank 0 in the last place": lambda size: spoil(inputs(size, SHAPE), [0], np.nan, (-1, -1)),
    "Inf of the last rank": lambda size: spoil(inputs(size, SHAPE), [size - 1], -np.inf, (0, 0)),
    "several ranks": lambda size: spoil(spoil(inputs(size, SHAPE), [size - 1], np.nan, (8, 8)), [0, 1], np.inf),
    "everything": lambda size: [np.full(SHAPE, np.nan, np.float32) for _ in range(size)],
    "infinities that cancel": lambda size: spoil(spoil(inputs(size, SHAPE), [0], np.inf), [size - 1], -np.inf),
}
NAMED = {  # the lowest rank concerned, and its first index
    "NaN of the last rank": (-1, 187),
    "NaN of rank 0 in the last place": (0, 719),
    "Inf of the last rank": (-1, 0),
    "several ranks": (0, 187),
    "everything": (0, 0),
    "infinities that cancel": (0, 187),
}


def fails_then_works(comm, scheme, arrays):
    """A good call, a bad one, a good one; returns (rank, key, index) of the error."""
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    good = inputs(comm.size, SHAPE, step=1)
    assert seen(allreduce, good[comm.rank].copy()) == oracle(good)
    before = state(allreduce)
    expected = oracle.error(arrays)
    kind, said = everywhere(comm, allreduce, arrays[comm.rank].copy(), key="w")
    assert kind is gq.NonFiniteError
    assert (said["rank"], said["key"], said["index"]) == expected
    assert state(allreduce) == before
    good = inputs(comm.size, SHAPE, step=2)
    assert seen(allreduce, good[comm.rank].copy()) == oracle(good)
    return expected


@carrying(pairs(True))
def test_what_is_not_finite_is_named_alike(comm, scheme):
    for case, arrays in CASES.items():
        rank, index = NAMED[case]
        assert fails_then_works(comm, scheme, arrays(comm.size)) == (rank % comm.size, "w", index), case


@pytest.mark.mpi(min_size=2)
@carrying([scheme for scheme in pairs() if "/threshold" not in scheme])
def test_a_sum_that_overflows_has_no_rank(comm, scheme):
    assert fails_then_works(comm, scheme, overflowing(comm.size))[0] is None


@carrying(pairs(True))
def test_many_lanes_of_which_one_is_not_finite(comm, scheme, monkeypatch):
    monkeypatch.setattr(lanes, "LANE_BYTES", 32)
    monkeypatch.setattr(layout, "BLOCK", 64)
    monkeypatch.setenv("GQALLREDUCE_MAX_MESSAGE", "100")
    arrays = spoil(inputs(comm.size, SHAPE), [comm.size // 2], np.nan, (5, 5))
    assert fails_then_works(comm, scheme, arrays) == (comm.size // 2, "w", 305)


@carrying(pairs())
def test_the_first_call_for_a_key_may_fail(comm, scheme):
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    arrays = spoil(inputs(comm.size, SHAPE), [0], np.nan)
    assert everywhere(comm, allreduce, arrays[comm.rank], key="w")[1]["index"] == 187
    assert allreduce.state_dict()["keys"] == {}
    assert allreduce.flush() == {}
    with pytest.raises(KeyError):
        allreduce.residual("w")
    good = inputs(comm.size, SHAPE)
    assert seen(allreduce, good[comm.rank].copy()) == oracle(good)


@pytest.mark.parametrize("scheme", ["direct/qsgd/ef", "ring/onebit/ef", "recursive_doubling/raw/ef"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_values_beyond_the_format(comm, scheme, dtype):
    """A float64 outside float32 is an input that is not finite; a sum beyond float16 an overflow."""
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    array = np.full((4, 50), 1e300 if dtype == "float64" else 60000, dtype)
    if scheme.endswith("raw/ef") and dtype == "float64":
        allreduce(array, key="w")
        np.testing.assert_allclose(array, 1e300 * comm.size)
    elif dtype == "float64":
        assert everywhere(comm, allreduce, array, key="w")[1] == {"rank": 0, "key": "w", "index": 0}
    elif comm.size > 1:
        assert everywhere(comm, allreduce, array, key="w")[1] == {"rank": None, "key": "w", "index": 0}


def test_an_average_may_fit_where_the_sum_does_not(comm):
    allreduce = gq.Allreduce("direct/qsgd/ef", comm=comm, timeout=TIMEOUT, average=True)
    array = np.full((4, 50), 60000, np.float16)
    allreduce(array, key="w")
    assert (array == np.float16(60000)).all()


# --- dense ---


@pytest.fixture(params=["dense", "ring/raw", "direct"])
def chosen(request, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    monkeypatch.setattr(model, "choose", lambda *_: (request.param, "forced"))
    return request.param


@pytest.mark.parametrize("feedback", ["", "/ef"])
def test_auto_names_what_is_not_finite(comm, chosen, feedback):
    allreduce = gq.Allreduce(f"auto/qsgd{feedback}", comm=comm, timeout=TIMEOUT)
    for case, arrays in CASES.items():
        allreduce(inputs(comm.size, SHAPE)[comm.rank], key="w")
        before = state(allreduce)
        kind, said = everywhere(comm, allreduce, arrays(comm.size)[comm.rank], key="w")
        assert kind is gq.NonFiniteError
        assert said == {"rank": NAMED[case][0] % comm.size, "key": "w", "index": NAMED[case][1]}, case
        assert state(allreduce) == before


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_auto_tells_an_overflow(comm, chosen, dtype):
    allreduce = gq.Allreduce("auto/raw", comm=comm, timeout=TIMEOUT)
    array = np.ones(90, dtype)
    array[33] = np.finfo(dtype).max
    assert everywhere(comm, allreduce, array, key="w")[1] == {"rank": None, "key": "w", "index": 33}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("average", [False, True])
def test_a_dense_call_adds_the_residuals(comm, dtype, average, monkeypatch):
    """Afterwards they hold only what rounding to 16 bits loses."""
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    allreduce = gq.Allreduce("auto/onebit/ef", comm=comm, timeout=TIMEOUT, average=average)
    residual = np.float64(0)
    for step, choice in enumerate(["direct", "dense", "dense"]):
        monkeypatch.setattr(model, "choose", lambda *_, choice=choice: (choice, "forced"))
        allreduce.plans.clear()
        array = inputs(comm.size, SHAPE, dtype, step=step)[comm.rank]
        exact = comm.allreduce(array.astype(np.float64)) + residual
        allreduce(array, key="w")
        residual = comm.allreduce(allreduce.residual("w").astype(np.float64))
        result = array.astype(np.float64) * (comm.size if average else 1)
        np.testing.assert_allclose(result + residual, exact, rtol=1e-6, atol=1e-5 * comm.size)
        assert allreduce.stats.last.scheme.startswith(choice)
    assert residual.any() == (dtype in ("float16", "bfloat16"))
    last = allreduce.stats.last
    assert (last.messages, last.ratio) == (0, 1.0)
    assert last.bytes_sent == (0 if comm.size == 1 else array.size * (8 if dtype == "float64" else 4))


@pytest.mark.parametrize("codec", ["topk(k=3)", "topk(k=3)/ef", "topk(ratio=0.3, sums=union)/ef", "raw", "onebit/ef"])
@pytest.mark.parametrize("schedule", ["direct", "ring", "allgather"])
def test_the_first_of_several_tensors_of_a_group_is_named(comm, schedule, codec):
    """Small ones, of which the runtime works on several before it looks whether a value was not finite."""
    allreduce, keys = gq.Allreduce(f"{schedule}/{codec}", comm=comm, timeout=TIMEOUT), list("abcdef")
    for step in range(3):
        arrays = [inputs(comm.size, (40,), step=step * 10 + n)[comm.rank] for n in range(len(keys))]
        if step == 1:
            if comm.rank == comm.size - 1:
                for number in (1, 3, 4):
                    arrays[number][7 * number] = np.nan
            kind, said = everywhere(comm, allreduce, arrays, key=keys)
            assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, comm.size - 1, "b", 7)
        else:
            allreduce(arrays, key=keys)


def test_errors_of_one_call_do_not_reach_the_next_object(comm):
    broken = gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)
    arrays = spoil(inputs(comm.size, SHAPE), [0], np.nan)
    assert {each[0] for each in errors(comm, broken, arrays[comm.rank])} == {gq.NonFiniteError}
    good = inputs(comm.size, SHAPE)
    fresh = gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)
    assert seen(fresh, good[comm.rank].copy()) == Oracle(comm, "ring/raw")(good)

"""Residuals under MPI: looked at, flushed exactly, saved and loaded again."""

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, carrying, errors, everywhere, in_turn, inputs, pairs, residual_of

import gqallreduce as gq
from gqallreduce.backends.buffer import Buffer

pytestmark = pytest.mark.mpi


def steps(allreduce, count, first=0, dtype="float32", keys=("a", "b")):
    """The bytes of the results of `count` steps over the keys."""
    results = []
    for step in range(first, first + count):
        for number, key in enumerate(keys):
            array = inputs(allreduce.size, (11, 40 + number), dtype, step=step)[allreduce.rank]
            results.append(bytes_of(allreduce(array, key=key)))
    return results


def make(comm, scheme, **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


@carrying(pairs(True))
def test_flush_returns_the_exact_sum(comm, scheme):
    flush_is_exact(comm, make(comm, scheme))
    flush_is_exact(comm, make(comm, scheme, average=True))


def flush_is_exact(comm, allreduce):
    steps(allreduce, 2)
    residual = allreduce.residual("a")
    assert residual.dtype == np.float32
    everyone = comm.allgather(residual)
    exact = np.sum(everyone, axis=0, dtype=np.float64) / (comm.size if allreduce.average else 1)
    flushed = allreduce.flush("a")
    assert (flushed.dtype, flushed.shape) == (np.float32, (11, 40))
    np.testing.assert_allclose(flushed, exact, rtol=1e-6, atol=1e-6 * np.abs(everyone).max(initial=1e-30) * comm.size)
    assert len(set(comm.allgather(bytes_of(flushed)))) == 1
    assert not allreduce.residual("a").any()
    assert not allreduce.flush("a").any()
    steps(allreduce, 1, first=2)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("average", [False, True])
def test_a_sum_of_residuals_that_leaves_float32_is_refused_and_stays_in_the_residuals(comm, average):
    allreduce = make(comm, "onebit/ef", average=average)
    steps(allreduce, 1)
    state = allreduce.state_dict()
    state["keys"]["b"]["residual"][:] = 3e38
    allreduce.load_state_dict(state)
    kind, said = everywhere(comm, allreduce.flush, "b")
    assert (kind, said["rank"], said["key"]) == (gq.NonFiniteError, None, "b")
    assert (allreduce.residual("b") == np.float32(3e38)).all()
    assert bytes_of(allreduce.residual("a")) == bytes_of(state["keys"]["a"]["residual"])
    allreduce.flush("a")


@pytest.mark.parametrize("order", ["C", "F", "0,2,3,1", "2,0,3,1"])
def test_residual_and_flush_have_the_shape_and_order_of_the_buffer(comm, order):
    allreduce = make(comm, "direct/onebit/ef")
    array = inputs(comm.size, (6, 5, 3, 7), order=order)[comm.rank]
    assert Buffer(array).order == order
    before = array.copy()
    allreduce(array, key="w")
    residual = allreduce.residual("w")
    assert residual.strides == array.strides
    assert bytes_of(residual) == bytes_of(residual_of(allreduce.memory, "w", array))
    exact = comm.allreduce(before.astype(np.float64))
    np.testing.assert_allclose(array + allreduce.flush("w"), exact, atol=1e-4)


def test_a_residual_is_a_copy(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    allreduce.residual("a")[:] = 7
    assert not (allreduce.residual("a") == 7).any()


def test_flush_of_all_keys_is_sorted(comm):
    allreduce = make(comm, "onebit/ef")
    assert allreduce.flush() == {}
    steps(allreduce, 1, keys=("b", "c", "a"))
    flushed = allreduce.flush()
    assert list(flushed) == ["a", "b", "c"]
    assert allreduce.stats.total.residual_norm == 0
    assert make(comm, "onebit").flush() == {}


def test_an_unknown_key_has_no_residual(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    plain = make(comm, "onebit")
    plain(np.ones(5, np.float32), key="a")
    for each, key in ((allreduce, "x"), (plain, "a"), (plain, "x")):
        with pytest.raises(KeyError):
            each.residual(key)
        with pytest.raises(KeyError):
            each.flush(key)


@pytest.mark.parametrize("scheme", in_turn(pairs()))
def test_a_checkpoint_continues_bit_exactly(comm, scheme):
    for dtype in ("float32", "float16"):
        continues(comm, scheme, dtype)


def continues(comm, scheme, dtype):
    expected = steps(make(comm, scheme, seed=9), 4, dtype=dtype)
    first = make(comm, scheme, seed=9)
    results = steps(first, 2, dtype=dtype)
    state = first.state_dict()
    results_of_first = steps(first, 1, first=2, dtype=dtype)  # the state is a copy
    second = make(comm, scheme)
    steps(second, 1, dtype=dtype)
    second.load_state_dict(state)
    results += steps(second, 2, first=2, dtype=dtype)
    assert results == expected
    assert results_of_first == expected[4:6]


@pytest.mark.parametrize("order", ["F", "0,2,3,1"])
def test_a_checkpoint_keeps_the_order_of_the_buffer(comm, order):
    arrays = [inputs(comm.size, (6, 5, 3, 7), order=order, step=step)[comm.rank] for step in range(3)]
    first, second = (make(comm, "ring/adaptive(pi=7)/ef") for _ in range(2))
    for array in arrays[:2]:
        first(array.copy(order="K"), key="w")
    second.load_state_dict(first.state_dict())
    results = [bytes_of(each(arrays[2].copy(order="K"), key="w")) for each in (first, second)]
    assert results[0] == results[1]
    assert bytes_of(first.residual("w")) == bytes_of(second.residual("w"))
    with pytest.raises(ValueError, match=rf"expected .*'{order}'"):
        second(np.ascontiguousarray(arrays[0]), key="w")


def test_a_checkpoint_is_arrays_and_plain_values(comm):
    allreduce = make(comm, "ring/qsgd(bits=4)/ef", seed=3)
    steps(allreduce, 2)
    state = allreduce.state_dict()
    assert list(state) == ["version", "scheme", "size", "rank", "seed", "keys"]
    assert (state["size"], state["rank"], state["seed"]) == (comm.size, comm.rank, 3)
    assert gq.Scheme.parse(state["scheme"]) == allreduce.scheme
    assert set(state["keys"]) == {"a", "b"}
    entry = state["keys"]["b"]
    assert entry["step"] == 2
    assert entry["residual"].shape == (11, 41)
    plain = [value for value in entry.values() if not isinstance(value, np.ndarray)]
    assert all(isinstance(value, (int, str, tuple)) for value in plain)


def test_a_wrong_checkpoint_is_refused_and_changes_nothing(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    before = bytes_of(allreduce.residual("a"))
    state = allreduce.state_dict()
    wrong = [
        {**state, "scheme": "qsgd/ef"},
        {**state, "size": comm.size + 1},
        {**state, "rank": comm.rank + 1},
        {**state, "version": 99},
        {key: value for key, value in state.items() if key != "size"},
        [state] * (comm.size + 1),
        None,
        make(comm, "ring/onebit/ef").state_dict(),
        {**state, "keys": {"a": {**state["keys"]["a"], "residual": np.zeros(3, np.float32)}}},
        {**state, "keys": {"a": {**state["keys"]["a"], "residual": np.full((11, 40), np.nan, np.float32)}}},
    ]
    for each in wrong:
        with pytest.raises(ValueError):  # noqa: PT011
            allreduce.load_state_dict(each)
    assert bytes_of(allreduce.residual("a")) == before
    steps(allreduce, 1, first=1)


def test_a_loaded_key_keeps_its_form(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    fresh = make(comm, "onebit/ef")
    fresh.load_state_dict(allreduce.state_dict())
    assert bytes_of(fresh.residual("a")) == bytes_of(allreduce.residual("a"))
    found = errors(comm, fresh, np.ones(7, np.float32), key="a")
    assert {each and each[0] for each in found} == {ValueError}
    assert list(fresh.flush()) == ["a", "b"]
    steps(fresh, 1)


def test_what_was_loaded_in_another_order_goes_where_it_was(comm):
    """A Fortran-ordered buffer's residual is not the C-ordered one's."""
    allreduce, fresh = (make(comm, "direct/onebit/ef") for _ in range(2))
    given = [inputs(comm.size, (6, 50), order="F", step=step)[comm.rank] for step in range(2)]
    allreduce(given[0], key="w")
    fresh.load_state_dict(allreduce.state_dict())
    np.testing.assert_array_equal(fresh.residual("w"), allreduce.residual("w"))
    expected, result = given[1].copy(order="K"), given[1]
    np.testing.assert_array_equal(fresh(result, key="w"), allreduce(expected, key="w"))


@carrying(pairs(True))
def test_a_call_that_fails_after_loading_leaves_what_was_loaded(comm, scheme):
    allreduce, fresh = (make(comm, scheme) for _ in range(2))
    steps(allreduce, 1)
    fresh.load_state_dict(allreduce.state_dict())
    array = inputs(comm.size, (11, 40), step=1)[comm.rank]
    array[-1, -1] = np.nan
    assert everywhere(comm, fresh, array, key="a")[0] is gq.NonFiniteError
    np.testing.assert_array_equal(fresh.residual("a"), allreduce.residual("a"))
    assert steps(fresh, 1, first=1) == steps(allreduce, 1, first=1)


# --- all or nothing ---


def spoil(allreduce, key, value=3e38):
    """Residuals whose sum overflows."""
    allreduce.memory.residual(key)[3] = value


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("bad", ["a", "b", "c"])
def test_a_flush_that_overflows_in_one_key_leaves_all(comm, bad):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 2, keys=("a", "b", "c"))
    spoil(allreduce, bad)
    before = {key: bytes_of(allreduce.residual(key)) for key in "abc"}
    kind, said = everywhere(comm, allreduce.flush)
    assert (kind, said) == (gq.NonFiniteError, {"rank": None, "key": bad, "index": 3})
    assert {key: bytes_of(allreduce.residual(key)) for key in "abc"} == before
    spoil(allreduce, bad, 0)
    assert sorted(allreduce.flush()) == ["a", "b", "c"]
    assert not any(allreduce.residual(key).any() for key in "abc")


@pytest.mark.mpi(min_size=2)
def test_flushes_of_different_keys_are_told(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1, keys=("a", "b"))
    before = [bytes_of(allreduce.residual(key)) for key in "ab"]
    found = errors(comm, allreduce.flush, "a" if comm.rank else "b")
    assert {each and each[0] for each in found} == {gq.MismatchError}
    found = errors(comm, allreduce.flush, "a" if comm.rank else "unknown")
    assert found == [(KeyError, {})] + [(gq.MismatchError, {"field": "arguments", "ranks": (0,)})] * (comm.size - 1)
    assert [bytes_of(allreduce.residual(key)) for key in "ab"] == before
    allreduce.flush()


def test_a_flush_is_in_the_statistics(comm):
    allreduce = make(comm, "direct/onebit/ef")
    steps(allreduce, 1)
    sent = allreduce.stats.total.bytes_sent
    allreduce.flush("a")
    last = allreduce.stats.last
    assert (last.reason, last.scheme.split("/")[1], last.residual_norm) == ("flush", "raw", 0)
    assert (last.bytes_sent > 0) == (comm.size > 1)
    assert allreduce.stats.total.bytes_sent == sent + last.bytes_sent
    assert last.total > 0


def test_kept_statistics_have_the_norm_of_their_own_call(comm):
    allreduce = make(comm, "direct/onebit/ef")
    kept, norms = [], []
    for step in range(6):
        steps(allreduce, 1, first=step, keys=("a",))
        kept.append(allreduce.stats.last)
        norms.append(np.linalg.norm(allreduce.residual("a").astype(np.float64)))
    assert len({round(norm, 3) for norm in norms}) == 6
    assert [each.residual_norm for each in kept] == pytest.approx(norms, rel=1e-6)


# --- a first call that fails ---


@pytest.mark.parametrize("sizes", [(100, 50), (50, 100), (50, 50)])
@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/qsgd", "direct/adaptive/ef"])
def test_a_first_call_that_failed_leaves_nothing(comm, scheme, sizes):
    allreduce, fresh = make(comm, scheme), make(comm, scheme)
    assert everywhere(comm, allreduce, np.full(sizes[0], np.nan, np.float32), key="w")[0] is gq.NonFiniteError
    assert allreduce.state_dict()["keys"] == {}
    for step in range(2):
        arrays = [inputs(comm.size, (sizes[1],), step=step)[comm.rank] for _ in range(2)]
        allreduce(arrays[0], key="w")
        fresh(arrays[1], key="w")
        assert bytes_of(arrays[0]) == bytes_of(arrays[1])
    if allreduce.scheme.feedback:
        assert bytes_of(allreduce.residual("w")) == bytes_of(fresh.residual("w"))
    allreduce.state_dict()


# --- what is loaded ---

WRONG = {
    "no seed": lambda state: state.pop("seed"),
    "a seed of text": lambda state: state.update(seed="7"),
    "no keys": lambda state: state.pop("keys"),
    "keys as a list": lambda state: state.update(keys=[]),
    "a key that is no text": lambda state: state["keys"].update({3: state["keys"]["a"]}),
    "an entry that is no dict": lambda state: state["keys"].update(a=None),
    "no step": lambda state: state["keys"]["b"].pop("step"),
    "a negative step": lambda state: state["keys"]["b"].update(step=-1),
    "a step that is no integer": lambda state: state["keys"]["b"].update(step=1.5),
    "no shape": lambda state: state["keys"]["b"].pop("shape"),
    "no order": lambda state: state["keys"]["b"].pop("order"),
    "an order that is none": lambda state: state["keys"]["b"].update(order="G"),
    "an order that is no text": lambda state: state["keys"]["b"].update(order=1),
    "no dtype": lambda state: state["keys"]["b"].pop("dtype"),
    "a dtype that is not taken": lambda state: state["keys"]["b"].update(dtype="int8"),
    "no residual": lambda state: state["keys"]["b"].pop("residual"),
    "a residual of another shape": lambda state: state["keys"]["b"].update(residual=np.zeros(3, np.float32)),
    "a residual with a NaN": lambda state: state["keys"]["b"]["residual"].__setitem__((0, 0), np.nan),
    "a shape that is a number": lambda state: state["keys"]["b"].update(shape=5),
    "no shape at all": lambda state: state["keys"]["b"].update(shape=None),
    "a step that is a truth": lambda state: state["keys"]["b"].update(step=True),
    "a version of two": lambda state: state.update(version=np.array([1, 2])),
    "a complex residual": lambda state: state["keys"]["b"].update(residual=np.zeros((11, 41), complex)),
    "a masked residual": lambda state: state["keys"]["b"].update(residual=np.ma.zeros((11, 41), np.float32)),
    "a residual of objects": lambda state: state["keys"]["b"].update(residual=np.full((11, 41), None)),
    "a residual beyond float32": lambda state: state["keys"]["b"].update(residual=np.full((11, 41), 1e300)),
    "a residual of text": lambda state: state["keys"]["b"].update(residual="x"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_missing_or_wrong_in_a_state_is_a_value_error_and_changes_nothing(comm, wrong):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 2)
    state = allreduce.state_dict()
    steps(allreduce, 1, first=2)
    before = allreduce.state_dict()
    WRONG[wrong](state)
    with pytest.raises(ValueError, match=r"state|key|order|axes|residual|could not"):
        allreduce.load_state_dict(state)
    after = allreduce.state_dict()
    assert after["seed"] == before["seed"]
    assert [bytes_of(after["keys"][key]["residual"]) for key in "ab"] == [
        bytes_of(before["keys"][key]["residual"]) for key in "ab"
    ]


@pytest.mark.parametrize("seed", [7, 2**40])
def test_a_seed_that_was_saved_as_a_numpy_integer_gives_the_same_bits(comm, seed):
    allreduce = make(comm, "qsgd(bits=2)", seed=seed)
    steps(allreduce, 1)
    state = allreduce.state_dict()
    state["seed"] = np.int64(state["seed"])
    for entry in state["keys"].values():
        entry.update(step=np.int32(entry["step"]), shape=[np.int64(extent) for extent in entry["shape"]])
    again = make(comm, "qsgd(bits=2)")
    again.load_state_dict(state)
    assert steps(again, 2, first=1) == steps(allreduce, 2, first=1)


@pytest.mark.parametrize("kind", [str, np.str_])
def test_the_kind_of_string_that_a_key_is_makes_no_difference(comm, kind):
    allreduce, other = make(comm, "qsgd(bits=2)/ef"), make(comm, "qsgd(bits=2)/ef")
    key = kind("w") if comm.rank == 0 else "w"
    for step in range(2):
        arrays = [inputs(comm.size, (40,), step=step)[comm.rank] for _ in range(2)]
        assert bytes_of(allreduce(arrays[0], key=key)) == bytes_of(other(arrays[1], key="w"))
    assert bytes_of(allreduce.flush(key)) == bytes_of(other.flush("w"))
    assert {type(each) for each in allreduce.state_dict()["keys"]} == {str}


def test_a_step_cannot_be_loaded_into(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    state = allreduce.state_dict()
    with allreduce.step():
        steps(allreduce, 1, first=1)
        with pytest.raises(ValueError, match="before or after"):
            allreduce.load_state_dict(state)
    assert allreduce.state_dict()["keys"]["a"]["step"] == 2


@pytest.mark.parametrize("options", [{"seed": 1.5}, {"seed": "7"}, {"average": "no"}, {"average": 1}, {"seed": True}])
def test_options_of_another_type_are_refused(comm, options):
    with pytest.raises(TypeError, match="expected"):
        make(comm, "qsgd", **options)


def test_numpy_integers_are_integers(comm):
    allreduce = make(comm, "qsgd", seed=np.int64(3), verify=np.int64(2))
    steps(allreduce, 2)
    assert (type(allreduce.seed), allreduce.state_dict()["seed"]) == (int, 3)


def test_a_loaded_residual_shares_no_memory_with_the_state(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    state = allreduce.state_dict()
    allreduce.load_state_dict(state)
    before = bytes_of(allreduce.residual("a"))
    state["keys"]["a"]["residual"][:] = 5
    assert bytes_of(allreduce.residual("a")) == before


# --- scale_memory ---


@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "ring/topk(ratio=0.1, sums=union)/ef"])
def test_residuals_are_multiplied_of_one_key_or_of_all(comm, scheme):
    allreduce = make(comm, scheme)
    steps(allreduce, 2)
    before = {key: allreduce.residual(key) for key in "ab"}
    assert allreduce.scale_memory(0.5, "a") is None
    np.testing.assert_array_equal(allreduce.residual("a"), before["a"] / 2)
    assert bytes_of(allreduce.residual("b")) == bytes_of(before["b"])
    allreduce.scale_memory(np.float32(-2))
    np.testing.assert_array_equal(allreduce.residual("a"), -before["a"])
    np.testing.assert_array_equal(allreduce.residual("b"), -2 * before["b"])
    steps(allreduce, 1, first=2)


def test_after_a_change_of_the_rate_it_is_as_if_steps_had_been_summed(comm):
    """Gradients with the factor old over new: what the memory of steps, rate times gradient, has sent. All exact."""
    gradients, of_steps = (make(comm, "direct/topk(k=3)/ef") for _ in range(2))
    for step in range(6):
        if step == 3:
            gradients.scale_memory(4.0)
        rate = 0.5 if step < 3 else 0.125
        mine = inputs(comm.size, (40,), step=step)[comm.rank]
        assert bytes_of(rate * gradients(mine.copy(), key="w")) == bytes_of(of_steps(np.float32(rate) * mine, key="w"))


def test_what_cannot_be_scaled_is_refused_on_all_ranks_and_changes_nothing(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    before = [bytes_of(allreduce.residual(key)) for key in "ab"]
    for factor in (float("nan"), float("inf"), True, "2", None, 1e300):
        assert everywhere(comm, allreduce.scale_memory, factor)[0] is ValueError
    assert everywhere(comm, allreduce.scale_memory, 2.0, "c")[0] is KeyError
    assert everywhere(comm, make(comm, "onebit").scale_memory, 2.0, "a")[0] is KeyError
    assert [bytes_of(allreduce.residual(key)) for key in "ab"] == before
    steps(allreduce, 1, first=1)


@pytest.mark.mpi(min_size=2)
def test_another_factor_on_one_rank_or_one_that_only_it_refuses_changes_nothing(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    before = bytes_of(allreduce.residual("a"))
    found = errors(comm, allreduce.scale_memory, 2.0 if comm.rank else 3.0)
    assert {each and each[0] for each in found} == {gq.MismatchError}
    found = errors(comm, allreduce.scale_memory, 2.0 if comm.rank else None)
    assert found[0][0] is ValueError
    assert None not in found
    assert bytes_of(allreduce.residual("a")) == before
    allreduce.scale_memory(2.0)


def test_a_step_that_fails_takes_scaling_back(comm):
    allreduce = make(comm, "onebit/ef")
    steps(allreduce, 1)
    before = bytes_of(allreduce.residual("a"))

    def scaled_in_vain():
        with allreduce.step():
            allreduce.scale_memory(3.0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        scaled_in_vain()
    assert bytes_of(allreduce.residual("a")) == before

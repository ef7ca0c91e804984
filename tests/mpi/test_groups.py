"""Groups of tensors under MPI: one call for several keys, each with what a call of its own gives it."""

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, carrying, errors, everywhere, inputs, pairs, state, works

import gqallreduce as gq
from gqallreduce.runtime import plans
from gqallreduce.scheduling import model

pytestmark = pytest.mark.mpi
FORMS = {
    "fc1.weight": ((60, 40), "float32", "C"), "fc1.bias": ((40,), "float32", "C"), "scale": ((), "float32", "C"),
    "fc2.weight": ((300, 33), "float16", "F"), "none": ((0,), "float32", "C"), "table": ((5000,), "float64", "C"),
    "conv": ((3, 4, 5), "float32", "0,2,1"),
}  # fmt: skip
KEYS = list(FORMS)


def make(comm, scheme="direct/onebit/ef", **options):
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def gradients(comm, step=0):
    return [
        inputs(comm.size, shape, dtype, order, 100 * step + place)[comm.rank]
        for place, (shape, dtype, order) in enumerate(FORMS.values())
    ]


@carrying([*pairs(), "dense", "dense/ef"])
def test_a_group_is_its_keys_called_alone(comm, scheme):
    """Results, residuals and steps; called and started; alone and in other groups between."""
    alone, grouped = make(comm, scheme), make(comm, scheme)
    for step in range(3):
        expected, got = gradients(comm, step), gradients(comm, step)
        for key, array in zip(KEYS, expected, strict=True):
            alone(array, key=key)
        if step == 1:
            grouped(got[:2], key=KEYS[:2])
            grouped(got[2], key=KEYS[2])
            gq.wait_all([grouped.start(got[3:5], key=KEYS[3:5]), grouped.start(tuple(got[5:]), key=tuple(KEYS[5:]))])
        elif step == 0:
            assert grouped(got, key=KEYS) is got
        else:
            assert grouped.start(got, key=KEYS).wait() is got
        assert [bytes_of(array) for array in got] == [bytes_of(array) for array in expected]
    assert state(grouped) == state(alone)


def test_one_set_of_messages_in_the_statistics(comm):
    allreduce, one = make(comm), make(comm)
    arrays = [np.full(256, comm.rank + place, np.float32) for place in range(40)]
    allreduce(arrays, key=[str(place) for place in range(40)])
    one(np.ones((40, 256), np.float32), key="w")
    last = allreduce.stats.last
    assert (last.messages, last.dense_bytes) == (one.stats.last.messages, one.stats.last.dense_bytes)
    assert last.bytes_sent > 0 or comm.size == 1
    norms = [np.linalg.norm(allreduce.residual(str(place)).astype(np.float64)) for place in range(40)]
    np.testing.assert_allclose(last.residual_norm, np.linalg.norm(norms), rtol=1e-6)
    np.testing.assert_allclose(allreduce.stats.total.residual_norm, np.linalg.norm(norms), rtol=1e-6)


def test_into_other_memory_by_the_function(comm):
    arrays, out = gradients(comm), [np.zeros_like(array) for array in gradients(comm)]
    kept = [bytes_of(array) for array in arrays]
    assert gq.quantized_allreduce(arrays, "ring/raw", key=KEYS, comm=comm, out=out) is out
    assert [bytes_of(array) for array in arrays] == kept
    for place, (shape, dtype, order) in enumerate(FORMS.values()):
        exact = np.sum([each.astype(np.float64) for each in inputs(comm.size, shape, dtype, order, place)], axis=0)
        np.testing.assert_allclose(out[place], exact, rtol=1e-2 if dtype == "float16" else 1e-4, atol=1e-2)


def test_residuals_travel_and_are_flushed_by_key(comm):
    allreduce = make(comm)
    allreduce(gradients(comm), key=KEYS)
    kept = {key: allreduce.residual(key) for key in KEYS}
    other = make(comm)
    other.load_state_dict(allreduce.state_dict())
    first, second = gradients(comm, 1), gradients(comm, 1)
    allreduce(first, key=KEYS)
    other(second, key=KEYS)
    assert [bytes_of(array) for array in first] == [bytes_of(array) for array in second]
    assert state(allreduce) == state(other)
    sums = other.flush()
    assert sorted(sums) == sorted(KEYS)
    assert not other.residual("fc1.weight").any()
    assert kept["fc1.weight"].any()


# --- all or nothing ---


@carrying([*pairs(), "dense/ef"])
def test_a_nan_of_one_key_is_an_error_of_the_whole_group(comm, scheme):
    allreduce = make(comm, scheme)
    allreduce(gradients(comm), key=KEYS)
    before, steps = state(allreduce), allreduce.stats.total.messages
    arrays = gradients(comm, 1)
    if comm.rank == comm.size - 1:
        arrays[3][17, 5] = np.nan
    kind, said = everywhere(comm, allreduce, arrays, key=KEYS)
    index = 17 * 33 + 5
    assert (kind, said["rank"], said["key"], said["index"]) == (gq.NonFiniteError, comm.size - 1, "fc2.weight", index)
    assert state(allreduce) == before
    assert allreduce.stats.total.messages == steps
    request = allreduce.start(arrays, key=KEYS)
    assert everywhere(comm, request.wait)[0] is gq.NonFiniteError
    allreduce(gradients(comm, 2), key=KEYS)


def test_a_group_in_a_step(comm):
    alone, allreduce = make(comm), make(comm)
    for each in (alone, allreduce):
        each(gradients(comm), key=KEYS)
    before = state(allreduce)

    def failing():
        with allreduce.step():
            allreduce(gradients(comm, 1), key=KEYS)
            allreduce(gradients(comm, 2), key=KEYS)
            allreduce(np.full(9, np.nan, np.float32), key="another")

    assert everywhere(comm, failing)[0] is gq.NonFiniteError
    assert state(allreduce) == before
    with allreduce.step():
        for step in (1, 2, 3):
            allreduce(gradients(comm, step), key=KEYS)
    for step in (1, 2, 3):
        for key, array in zip(KEYS, gradients(comm, step), strict=True):
            alone(array, key=key)
    assert state(allreduce) == state(alone)


# --- arguments ---

ONE = np.ones(30, np.float32)


@pytest.mark.parametrize(
    ("buf", "key", "out", "kind", "said"),
    [
        ([ONE.copy()], None, None, TypeError, "key is a NoneType, expected a list"),
        ([ONE.copy()], "w", None, TypeError, "key is a str, expected a list"),
        (ONE.copy(), ["w"], None, TypeError, "key is a list, so a group; buf is a ndarray, expected a list"),
        ([], [], None, ValueError, "got 0 buffers and 0 keys"),
        ([ONE.copy()], ["a", "b"], None, ValueError, "got 1 buffers and 2 keys"),
        ([ONE.copy(), ONE.copy()], ["a", "a"], None, ValueError, "key 'a' is in the group twice"),
        ([ONE.copy(), ONE.copy()], ["a", None], None, TypeError, "a key of the group is a NoneType"),
        ([ONE.copy(), np.ones(3, np.int64)], ["a", "b"], None, TypeError, "key 'b' of the group: got dtype int64"),
        ([ONE.copy()], ["a"], ONE.copy(), ValueError, "out: expected a list of 1 buffers"),
        ([ONE.copy()], ["a"], [ONE.copy(), ONE.copy()], ValueError, "out: expected a list of 1 buffers"),
        ([ONE.copy()], ["a"], [np.ones(31, np.float32)], ValueError, "key 'a' of the group: out has"),
        ([ONE, ONE[20:]], ["a", "b"], None, ValueError, "keys 'a' and 'b' of the group overlap"),
        ([ONE[:2], ONE[10:20], ONE[12:13]], ["a", "b", "c"], None, ValueError, "keys 'b' and 'c' of the group overlap"),
    ],
)
def test_invalid_groups(comm, buf, key, out, kind, said):
    allreduce = make(comm)
    with pytest.raises(kind, match=said):
        allreduce(buf, key=key, out=out)
    works(comm, allreduce)


def test_sources_may_be_the_same_memory_if_results_are_apart(comm):
    allreduce, shared = make(comm, "direct/raw"), np.full(40, comm.rank + 1.0, np.float32)
    out = [np.zeros(40, np.float32) for _ in range(2)]
    allreduce([shared, shared], key=["a", "b"], out=out)
    assert all((each == comm.size * (comm.size + 1) / 2).all() for each in out)
    kind, _ = everywhere(comm, allreduce, [shared, shared], key=["a", "b"], out=[out[0], shared])
    assert kind is ValueError


def test_keys_and_memory_of_a_group_under_way_belong_to_it(comm):
    allreduce, arrays = make(comm, "direct/raw"), [np.ones(50, np.float32) for _ in range(4)]
    request = allreduce.start(arrays[:3], key=["a", "b", "c"])
    for buf, key in (([arrays[3]], ["b"]), (arrays[3], "c"), ([arrays[3], arrays[2]], ["x", "y"]), (arrays[1], "z")):
        kind, _ = everywhere(comm, allreduce.start, buf, key=key)
        assert kind is ValueError
    request.wait()
    assert all((each == comm.size).all() for each in arrays[:3])
    allreduce(arrays, key=list("abcd"))


def test_a_form_that_differs_from_before(comm):
    allreduce = make(comm)
    allreduce(np.ones(9, np.float32), key="b")
    kind, _ = everywhere(comm, allreduce, [ONE.copy(), np.ones(8, np.float32)], key=["a", "b"])
    assert kind is ValueError
    allreduce([ONE.copy(), np.ones(9, np.float32)], key=["a", "b"])


@pytest.mark.parametrize("what", ["keys", "order", "form", "group and key"])
def test_ranks_with_other_groups_get_a_mismatch(comm, what):
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce, last = make(comm), comm.rank == comm.size - 1
    buf, key = [np.ones(9, np.float32), np.ones(9, np.float32)], ["a", "b"]
    if last:
        if what == "keys":
            key = ["a", "c"]
        elif what == "order":
            key = ["b", "a"]
        elif what == "form":
            buf[1] = np.ones((3, 3), np.float32)
        else:
            buf, key = buf[0], "a"
    kinds = {kind for kind, _ in errors(comm, allreduce, buf, key=key)}
    assert kinds == {gq.MismatchError}
    works(comm, allreduce)


def test_a_rank_that_is_a_step_behind_in_one_key_is_found(comm):
    """Although the group is known: the steps of its keys are in every header."""
    if comm.size == 1:
        pytest.skip("one rank cannot differ")
    allreduce = make(comm)
    allreduce([ONE.copy(), ONE.copy()], key=["a", "b"])
    saved = allreduce.state_dict()
    allreduce(ONE.copy(), key="b")
    if comm.rank == 0:
        allreduce.load_state_dict(saved)
    kinds = {found and found[0] for found in errors(comm, allreduce, [ONE.copy(), ONE.copy()], key=["a", "b"])}
    assert kinds == {gq.MismatchError}


def test_the_choice_of_auto_is_made_for_the_whole_group(comm, monkeypatch):
    asked = []
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    monkeypatch.setattr(model, "choose", lambda codec, size, forms, *_: asked.append(forms) or ("direct", "asked"))
    allreduce = make(comm, "auto/qsgd(bits=4)")
    allreduce([ONE.copy(), np.ones((5, 5), np.float32)], key=["a", "b"])
    assert [[form.shape for form in forms] for forms in asked] == [[(30,), (5, 5)]]
    assert allreduce.stats.last.scheme.startswith("direct/")


def test_a_group_is_compared_and_verified_like_a_call(comm):
    allreduce = make(comm, "direct/qsgd(bits=4)", check="always", verify=1)
    for step in range(3):
        allreduce(gradients(comm, step), key=KEYS)


def test_the_lists_may_be_changed_after_start(comm):
    """Also where the arguments are looked at again, once a call whose request was dropped is done."""
    allreduce, other = make(comm, "direct/raw"), np.ones(4000, np.float32)
    for _ in range(2):
        allreduce.start(np.ones(300000, np.float32), key="dropped")
        first, keys = [np.ones(4000, np.float32), np.ones(50, np.float32)], ["a", "b"]
        bucket = list(first)
        request = allreduce.start(bucket, key=keys)
        bucket[0], keys[1] = other, "c"
        assert request.wait() is bucket
        assert all((array == comm.size).all() for array in first)
    assert (other == 1).all()


def test_a_dense_group_names_the_lowest_rank(comm):
    if comm.size < 3:
        pytest.skip("two ranks with a fault beside one without")
    allreduce, arrays = make(comm, "dense/ef"), gradients(comm)
    if comm.rank == 1:
        arrays[5][7] = np.nan
    if comm.rank == 2:
        arrays[1][3] = np.inf
    _, said = everywhere(comm, allreduce, arrays, key=KEYS)
    assert (said["rank"], said["key"], said["index"]) == (1, "table", 7)


def test_groups_that_never_come_again_are_forgotten(comm):
    allreduce, room = make(comm, "direct/raw"), [np.ones(3, np.float32) for _ in range(40)]
    draws = np.random.default_rng(0)
    for _ in range(plans.GROUPS_MOST + 50):
        chosen = draws.permutation(40)[:3]
        allreduce([room[place] for place in chosen], key=[str(place) for place in chosen])
        for array in room:
            array.fill(1)
    assert len(allreduce.plans._known) <= plans.GROUPS_MOST
    works(comm, allreduce)


class Lower(str):
    """Text that is compared and hashed without regard to case."""

    def __eq__(self, other):
        return self.lower() == other.lower()

    def __hash__(self):
        return hash(self.lower())


class Posing:
    """No text, but equal to "w1"."""

    def __eq__(self, other):
        return other == "w1"

    def __hash__(self):
        return hash("w1")


def test_a_known_group_is_known_by_its_text(comm):
    """Whatever kind of string the keys are."""
    allreduce, array = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT), np.ones(20, np.float32)
    for keys in (["w1"], [Lower("w1")], ["w1"]):
        allreduce([array], key=keys)
    assert allreduce.state_dict()["keys"]["w1"]["step"] == 3
    allreduce([array], key=[Lower("W1")])
    assert sorted(allreduce.state_dict()["keys"]) == ["W1", "w1"]
    with pytest.raises(TypeError, match="Posing"):
        allreduce([array], key=[Posing()])

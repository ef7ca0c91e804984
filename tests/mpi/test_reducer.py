"""Gradients of a whole model: what a Reducer sums, and how a step ends."""

import gc

import numpy as np
import pytest
from mpi4py import MPI
from ranks import TIMEOUT, bytes_of, everywhere, inputs

import gqallreduce as gq

pytestmark = pytest.mark.mpi
FORMS = {
    "embed": ((300, 20), "float32", "C"), "fc1.weight": ((60, 40), "float32", "F"), "fc1.bias": ((60,), "float32", "C"),
    "norm": ((), "float32", "C"), "fc2.weight": ((33, 60), "float16", "C"), "none": ((0,), "float32", "C"),
    "fc2.bias": ((33,), "float64", "C"),
}  # fmt: skip
RULES = "*.bias=ring/raw; embed=direct/topk(ratio=0.05)/ef; norm=dense; fc2*=ring/qsgd(bits=4); *=direct/onebit/ef"
SCHEMES = {
    "embed": "direct/topk(ratio=0.05)/ef", "fc1.weight": "direct/onebit/ef", "fc1.bias": "ring/raw", "norm": "dense",
    "fc2.weight": "ring/qsgd(bits=4)", "none": "direct/onebit/ef", "fc2.bias": "ring/raw",
}  # fmt: skip


def make(comm, rules=RULES, **options):
    return gq.Reducer(rules, comm=comm, timeout=TIMEOUT, **{"bucket": "4 KiB", **options})


def gradients(comm, step=0):
    found = {}
    for place, (name, (shape, dtype, order)) in enumerate(FORMS.items()):
        found[name] = inputs(comm.size, shape, dtype, order, 100 * step + place)[comm.rank]
    return found


def taken(named):
    return {name: bytes_of(array) for name, array in named.items()}


def states(reducer):
    """What is kept, as bytes and numbers."""
    found = {}
    for scheme, state in reducer.state_dict()["schemes"].items():
        for key, entry in state["keys"].items():
            found[scheme, key] = entry["step"], bytes_of(entry.get("residual", ()))
    return found


# --- what is summed ---


@pytest.mark.parametrize("bucket", [0, "1 KiB", 20000, "1 GiB"])
def test_each_tensor_is_summed_as_by_its_own_allreduce(comm, bucket):
    """In a model's order and in each rank's own; results, residuals and steps."""
    reducer = make(comm, bucket=bucket)
    assert reducer.schemes == {}
    alone = {name: gq.Allreduce(scheme, comm=comm, average=True, timeout=TIMEOUT) for name, scheme in SCHEMES.items()}
    for step in range(4):
        named, expected = gradients(comm, step), gradients(comm, step)
        for name, array in expected.items():
            alone[name](array, key=name)
        if step % 2 == 0:
            assert reducer(named) is named
        else:
            for name in np.random.default_rng(comm.rank).permutation(list(named)):
                reducer.start(str(name), named[str(name)])
            assert reducer.wait() is None
        assert taken(named) == taken(expected)
    assert reducer.schemes == SCHEMES
    kept = states(reducer)
    for name, scheme in SCHEMES.items():
        entry = alone[name].state_dict()["keys"][name]
        assert kept[scheme, name] == (4, bytes_of(entry.get("residual", ())))
    assert reducer.stats.steps == 4


@pytest.mark.parametrize("kind", [dict, list])
def test_tensors_of_one_form_may_come_in_any_order(comm, kind):
    """Another one on each rank, as a dict and as pairs."""
    reducer, names = make(comm, "*=direct/onebit/ef"), ["a", "b", "c"]
    others = gq.Allreduce("direct/onebit/ef", comm=comm, average=True, timeout=TIMEOUT)
    for step in range(3):
        named = {name: inputs(comm.size, (50,), step=10 * step + place)[comm.rank] for place, name in enumerate(names)}
        expected = {name: others(array.copy(), key=name) for name, array in named.items()}
        turned = {names[(place + step * (comm.rank + 1)) % 3]: None for place in range(3)}
        reducer(kind((name, named[name]) for name in turned))
        assert taken(named) == taken(expected)
        for name in names:
            assert bytes_of(reducer.allreduces["direct/onebit/ef"].residual(name)) == bytes_of(others.residual(name))


@pytest.mark.parametrize("rule", ["*=raw", "*=direct/onebit/ef"])
def test_tensors_of_one_form_come_at_once_or_one_by_one(comm, rule):
    """In each step as a rank likes, once the step is known."""
    reducer, names = make(comm, rule), ["a", "b", "c"]
    others = gq.Allreduce(rule[2:], comm=comm, average=True, timeout=TIMEOUT)
    for step in range(8):
        named = {name: inputs(comm.size, (50,), step=10 * step + place)[comm.rank] for place, name in enumerate(names)}
        expected = {name: others(array.copy(), key=name) for name, array in named.items()}
        if step < 3 or (step + comm.rank) % 2:
            reducer(named)
        else:
            for name in names:
                reducer.start(name, named[name])
            reducer.wait()
        assert taken(named) == taken(expected)


def test_buckets_are_of_one_scheme_in_the_order_of_a_backward_pass(comm):
    reducer = make(comm, bucket=5000)
    reducer.register(gradients(comm))
    assert reducer.buckets == [
        ["none"], ["fc2.weight"], ["norm"], ["fc2.bias", "fc1.bias"], ["fc1.weight"], ["embed"],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="known already"):
        reducer.register(gradients(comm))


@pytest.mark.parametrize("rule", ["ring/raw", "direct/onebit/ef", "direct/powersgd(rank=2)/ef"])
def test_a_bucket_is_begun_as_soon_as_it_is_complete(comm, rule):
    """Its sums come before `wait`, while calls of another object go on, and the next bucket is not complete."""
    names, whole = ["late.a", "late.b", "early.a", "early.b"], make(comm, rule, bucket=2500)
    reducer, other = make(comm, rule, bucket=2500), gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)
    for step in range(2):
        named = {name: inputs(comm.size, (20, 15), step=10 * step + n)[comm.rank] for n, name in enumerate(names)}
        expected = {name: array.copy() for name, array in named.items()}
        if step == 0:
            reducer.register(named)
            assert reducer.buckets == [["early.b", "early.a"], ["late.b", "late.a"]]
        whole(expected)
        early = {name: bytes_of(expected[name]) for name in names[2:]}
        for name in ("early.a", "early.b", "late.a"):
            reducer.start(name, named[name])
        for _ in range(1000):
            if comm.allreduce(taken({name: named[name] for name in early}) == early, MPI.LAND):
                break
            other(np.ones(3, np.float32))
        assert taken({name: named[name] for name in early}) == early
        reducer.start("late.b", named["late.b"])
        reducer.wait()
        assert taken(named) == taken(expected)


def test_a_sum_is_not_averaged_if_so_asked(comm):
    reducer = make(comm, "raw", average=False)
    array = np.ones(5, np.float32)
    reducer([("w", array)])
    assert (array == comm.size).all()


def test_exact_sums_by_mpi_have_a_ratio_of_one(comm):
    """MPI does not tell its bytes, so a buffer is counted once; in a model's sums as in a call's."""
    reducer = make(comm, "dense")
    reducer([("w", np.ones(500, np.float32))])
    assert reducer.stats.ratio == reducer.stats.tensors["w"].ratio == 1.0


def test_results_go_into_other_arrays(comm):
    reducer = make(comm, {"a": "raw", "*": "onebit/ef"})
    for _ in range(2):
        given = {name: np.ones(50, np.float32) for name in "abc"}
        out = np.zeros(50, np.float32)
        reducer.start("a", given["a"], out=out)
        for name in "bc":
            reducer.start(name, given[name])
        reducer.wait()
        assert (out == 1).all()
        assert (given["a"] == 1).all()


def test_the_first_step_may_tell_the_tensors_in_any_order(comm):
    reducer, named = make(comm), gradients(comm)
    names = list(named)
    for name in names[comm.rank % len(names) :] + names[: comm.rank % len(names)]:
        reducer.start(name, named[name])
    reducer.wait()
    assert list(reducer.schemes) == sorted(FORMS)
    assert len(set(comm.allgather(str(taken(named))))) == 1


@pytest.mark.parametrize("how", ["discard", "twice"])
def test_a_rank_that_leaves_the_first_step_is_told_to_the_others(comm, how):
    reducer = make(comm, "ring/raw", average=False)
    if comm.rank == comm.size - 1:
        reducer.start("a", np.ones(3, np.float32))
        if how == "discard":
            reducer.discard()
        else:
            with pytest.raises(ValueError, match="'a' was started before"):
                reducer.start("a", np.ones(3, np.float32))
    else:
        reducer.start("a", np.ones(3, np.float32))
        with pytest.raises(gq.MismatchError):
            reducer.wait()
    array = np.full(3, 5, np.float32)
    reducer.start("a", array)
    reducer.wait()
    assert (array == 5 * comm.size).all()


def test_gradients_are_started_after_they_are_registered(comm):
    reducer, array = make(comm, "raw"), np.ones(3, np.float32)
    reducer.start("a", array)
    for call in (reducer.register, reducer):
        with pytest.raises(ValueError, match="started before register"):
            call({"a": array})
    reducer.wait()


# --- gradients that do not come ---


def test_a_gradient_that_never_came_counts_as_zero(comm):
    reducer, whole = make(comm), make(comm)
    for each in (reducer, whole):
        each.register(gradients(comm))
    for step in range(3):
        named, expected = gradients(comm, step), gradients(comm, step)
        absent = ["fc1.weight", "fc2.bias"] if comm.rank == comm.size - 1 else []
        for name in absent:
            expected[name][...] = 0
        whole(expected)
        for name in reversed(named):
            if name not in absent:
                reducer.start(name, named[name])
        reducer.wait()
        assert sorted(reducer.missing) == absent
        assert taken({**named, **reducer.missing}) == taken(expected)
        assert all(array.flags.f_contiguous for name, array in reducer.missing.items() if name == "fc1.weight")
    reducer(gradients(comm))
    assert reducer.missing == {}


def test_a_step_in_which_nothing_came(comm):
    reducer = make(comm, "onebit/ef")
    reducer.register([("w", np.ones(40, np.float32))])
    reducer.wait()
    assert not reducer.missing["w"].any()
    assert reducer.stats.steps == 1


# --- errors ---


@pytest.mark.parametrize("flaw", [np.nan, np.inf])
def test_after_a_flaw_nothing_of_the_step_counts(comm, flaw):
    """Also of schemes and buckets without one. The first error is that of the first bucket."""
    reducer = make(comm)
    reducer(gradients(comm))
    before, total = states(reducer), reducer.stats.bytes_sent
    named = gradients(comm, 1)
    if comm.rank == comm.size - 1:
        named["fc1.weight"][2, 3] = named["fc2.bias"][7] = flaw
    assert everywhere(comm, reducer, named) == (
        gq.NonFiniteError, {"rank": comm.size - 1, "key": "fc2.bias", "index": 7},
    )  # fmt: skip
    assert states(reducer) == before
    assert (reducer.stats.steps, reducer.stats.bytes_sent) == (1, total)
    reducer(gradients(comm, 2))
    assert {step for step, _ in states(reducer).values()} == {2}


def one_more(named):
    named["new"] = np.zeros(3, np.float32)


def another_shape(named):
    named["fc1.weight"] = np.zeros((61, 40), np.float32, "F")


def another_order(named):
    named["fc1.weight"] = np.zeros((60, 40), np.float32)


def another_dtype(named):
    named["fc1.bias"] = np.zeros(60)


def no_array(named):
    named["norm"] = [1.0]


@pytest.mark.parametrize("change", [one_more, another_shape, another_order, another_dtype, no_array])
def test_an_unfit_gradient_is_told_to_all_and_the_next_step_goes_on(comm, change):
    reducer = make(comm)
    reducer(gradients(comm))
    before, named = states(reducer), gradients(comm, 1)
    mine = comm.rank == comm.size - 1
    if mine:
        change(named)
    expected = (TypeError, ValueError) if mine else gq.MismatchError
    with pytest.raises(expected):
        reducer(named)
    assert states(reducer) == before
    reducer(gradients(comm, 1))
    assert reducer.stats.steps == 2


@pytest.mark.parametrize("place", ["first", "last"])
def test_an_unfit_gradient_of_a_bucket_is_an_error_of_its_own_start(comm, place):
    """Not of the one that makes the bucket complete."""
    reducer = gq.Reducer("*=direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    named = {name: np.full(40, comm.rank + 1, np.float32) for name in "abc"}
    reducer.register(named)
    wrong = "c" if place == "first" else "a"
    for name in "cba":
        if name != wrong:
            reducer.start(name, named[name])
            continue
        with pytest.raises(ValueError, match=rf"'{name}': got shape, order, dtype \(\(39,\)"):
            reducer.start(name, named[name][:39])
        break
    reducer(named)
    assert reducer.stats.steps == 1


def test_a_rank_that_leaves_a_step_is_told_to_the_others(comm):
    reducer = make(comm)
    reducer(gradients(comm))
    before = states(reducer)
    if comm.rank == comm.size - 1:
        reducer.start("fc2.bias", gradients(comm)["fc2.bias"])
        reducer.discard()
    else:
        with pytest.raises(gq.MismatchError, match="discard"):
            reducer(gradients(comm, 1))
    assert states(reducer) == before
    reducer(gradients(comm, 1))


def test_a_gradient_is_started_once(comm):
    reducer = make(comm)
    reducer(gradients(comm))
    named = gradients(comm, 1)
    reducer.start("embed", named["embed"])
    with pytest.raises(ValueError, match="'embed' was started before in this step"):
        reducer.start("embed", named["embed"])
    reducer(named)


def test_to_wait_after_an_error_in_start_is_an_error(comm):
    reducer = make(comm)
    reducer(gradients(comm))
    if comm.rank == comm.size - 1:
        with pytest.raises(ValueError, match="'new'"):
            reducer.start("new", np.ones(3, np.float32))
        with pytest.raises(gq.Error, match="has ended by an error"):
            reducer.wait()
    else:
        with pytest.raises(gq.MismatchError):
            reducer.wait()
    reducer(gradients(comm))
    assert reducer.stats.steps == 2


def test_a_rank_with_another_model_is_found(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    reducer, named = make(comm), gradients(comm)
    if comm.rank == 1:
        named["new"] = np.zeros(3, np.float32)
    with pytest.raises(gq.MismatchError, match="other tensors"):
        reducer.register(named)
    reducer(gradients(comm))


def test_another_order_of_tensors_is_found(comm):
    """Of the same forms: buckets would differ."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    names = "ba" if comm.rank == 1 else "ab"
    with pytest.raises(gq.MismatchError, match="another order"):
        make(comm, "raw").register([(name, np.ones(3, np.float32)) for name in names])


def test_other_rules_on_one_rank_are_found(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    reducer = make(comm, "fc*=raw; *=onebit/ef" if comm.rank else "fc1*=raw; *=onebit/ef")
    with pytest.raises(gq.MismatchError, match="other rules"):
        reducer.register(gradients(comm))


@pytest.mark.parametrize(
    ("rules", "message"),
    [("conv*=raw; *=onebit/ef", "'conv\\*=raw' applies to no tensor"), ("*=raw; fc1*=onebit/ef", "earlier rules")],
)
def test_a_rule_without_a_tensor_is_an_error(comm, rules, message):
    reducer = make(comm, rules)
    with pytest.raises(ValueError, match=message):
        reducer(gradients(comm))


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ([], ValueError, "got no tensors"),
        ([np.ones(3, np.float32)], TypeError, "expected a dict of names and arrays"),
        ([(1, np.ones(3, np.float32))], TypeError, "a int, expected a string"),
        ([("a", np.ones(3, np.float32)), ("a", np.ones(3, np.float32))], ValueError, "'a' is given twice"),
        ([("a", np.ones(3, np.int32))], TypeError, "tensor 'a': got dtype int32"),
    ],
)
def test_unfit_tensors_are_refused(comm, named, error, message):
    with pytest.raises(error, match=message):
        make(comm, "raw").register(named)


@pytest.mark.parametrize(
    ("rules", "options", "error"),
    [
        ("*=nonsense", {}, ValueError), ("*.bias=raw, *=qsgd", {}, ValueError), (3, {}, TypeError),
        ({"*": 3}, {}, TypeError), ({}, {}, ValueError), ({1: "raw"}, {}, TypeError),
        ("raw", {"bucket": "many"}, ValueError), ("raw", {"bucket": -1}, ValueError),
        ("raw", {"bucket": 1.5}, TypeError), ("raw", {"compare_every": -1}, ValueError),
    ],
)  # fmt: skip
def test_unfit_arguments_are_refused(comm, rules, options, error):
    with pytest.raises(error):
        make(comm, rules, **options)


def read_only(named):
    named["fc1.weight"].flags.writeable = False


def an_outer(named):
    named["fc1.weight"] = gq.Outer(np.ones((4, 60), np.float32), np.ones((4, 40), np.float32))


@pytest.mark.parametrize("change", [read_only, an_outer])
def test_a_gradient_that_cannot_be_written_is_told_to_all(comm, change):
    reducer = make(comm)
    reducer(gradients(comm))
    named, mine = gradients(comm, 1), comm.rank == comm.size - 1
    if mine:
        change(named)
    with pytest.raises(ValueError if mine else gq.MismatchError):
        reducer(named)
    reducer(gradients(comm, 1))
    assert reducer.stats.steps == 2


def sharing(how=None):
    """Gradients of 100 values; where the last one lies: in memory of its own, or in that of another."""
    both, named = np.ones(120, np.float32), {name: np.ones(100, np.float32) for name in "abcdef"}
    if how == "overlap":
        named["e"], named["f"] = both[:100], both[20:]
    elif how is not None:
        named["f"] = named["e" if how == "one array" else "a"]
    return named


@pytest.mark.parametrize("how", ["one array", "overlap", "another bucket"])
@pytest.mark.parametrize("started", ["at once", "one by one", "into others", "in the first step", "clipped"])
def test_gradients_that_share_memory_are_told_to_all_and_the_next_step_goes_on(comm, how, started):
    options = {"clip": 1.0, "momentum": 0.9} if started == "clipped" else {}
    reducer = make(comm, "direct/onebit/ef", bucket=900, **options)

    def step(named):
        if started == "at once":
            return reducer(named)
        for name, array in reversed(named.items()):
            if started == "into others":
                reducer.start(name, np.ones(100, np.float32), out=array)
            else:
                reducer.start(name, array)
        return reducer.wait()

    if started != "in the first step":
        for _ in range(2):
            step(sharing())
    before, steps, mine = states(reducer), reducer.stats.steps, comm.rank == comm.size - 1
    with pytest.raises(ValueError if mine else gq.MismatchError, match="overlap" if mine else "nothing of it was kept"):
        step(sharing(how if mine else None))
    assert states(reducer) == before
    for _ in range(2):
        step(sharing())
    assert reducer.stats.steps == steps + 2


def test_an_error_of_the_first_step_that_wait_has_raised_is_not_raised_again(comm):
    reducer, mine = make(comm, "raw"), comm.rank == comm.size - 1
    one, other = np.ones((2, 3), np.float32)
    for name, array in {"a": one, "b": one if mine else other}.items():
        reducer.start(name, array)
    with pytest.raises(ValueError if mine else gq.MismatchError):
        reducer.wait()
    reducer.wait()
    assert reducer.stats.steps == 1


def test_a_name_twice_is_an_error(comm):
    reducer = make(comm, "raw")
    reducer({"a": np.ones(3, np.float32)})
    with pytest.raises(ValueError, match="'a' was started before"):
        reducer([("a", np.ones(3, np.float32)), ("a", np.ones(3, np.float32))])


# --- what it cost ---


def test_statistics_tell_what_each_tensor_cost(comm):
    reducer = make(comm, compare_every=2)
    heads = "tensor", "scheme", "values", "sent", "ratio", "error", "residual"
    assert tuple(str(reducer.stats).splitlines()[0].split()) == heads
    for step in range(3):
        reducer(gradients(comm, step))
        stats = reducer.stats
        assert list(stats.tensors) == list(FORMS)
        assert sum(each.bytes_sent for each in stats.tensors.values()) == pytest.approx(stats.bytes_sent)
        assert (stats.error is None) == (step == 0)
    errors = {name: each.error for name, each in stats.tensors.items()}
    exact = {"fc1.bias", "norm", "none", "fc2.bias"}
    assert all(errors[name] < 1e-10 for name in exact)
    assert errors["fc1.weight"] > 0.01
    assert len(set(comm.allgather(str(errors)))) == 1
    norms = {name: each.residual_norm for name, each in stats.tensors.items()}
    assert {name for name, norm in norms.items() if norm} == {"embed", "fc1.weight"}
    scalars = stats.scalars()
    assert scalars["model/bytes_sent"] == stats.bytes_sent
    assert scalars["fc1.weight/residual_norm"] == norms["fc1.weight"]
    assert all(isinstance(value, float) for value in scalars.values())
    lines = str(stats).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [*FORMS, "all,"]
    assert len({len(line) for line in lines}) == 1


# --- residuals and checkpoints ---


def test_residuals_are_flushed_and_scaled(comm):
    reducer, alone = make(comm), gq.Allreduce("direct/onebit/ef", comm=comm, average=True, timeout=TIMEOUT)
    named, other = gradients(comm), gradients(comm)
    reducer(named)
    alone(other["fc1.weight"], key="fc1.weight")
    for each in (reducer, alone):
        each.scale_memory(0.5)
    found = reducer.flush()
    assert list(found) == ["embed", "fc1.weight", "none"]
    assert bytes_of(found["fc1.weight"]) == bytes_of(alone.flush("fc1.weight"))
    assert reducer.stats.residual_norm == 0


def test_flush_and_scaling_are_of_all_tensors_or_none(comm):
    reducer = make(comm, "a=direct/topk(k=1)/ef; b=direct/onebit/ef", average=False)
    reducer({"a": np.arange(4, dtype=np.float32), "b": np.float32([1, 2, 3, 4])})
    state = reducer.state_dict()
    state["schemes"]["direct/onebit/ef"]["keys"]["b"]["residual"][0] = 3.4e38
    reducer.load_state_dict(state)
    before = states(reducer)
    with pytest.raises(ValueError, match="leaves float32"):
        reducer.scale_memory(10)
    assert states(reducer) == before
    if comm.size > 1:
        with pytest.raises(gq.NonFiniteError):
            reducer.flush()
        assert states(reducer) == before


def test_a_state_that_one_rank_refuses_leaves_the_others_in_step(comm):
    reducer = make(comm)
    reducer(gradients(comm))
    state = reducer.state_dict()
    if comm.rank == 0:
        state["schemes"]["direct/onebit/ef"]["rank"] = 99
        with pytest.raises(ValueError, match="state has"):
            reducer.load_state_dict(state)
    reducer(gradients(comm, 1))
    assert reducer.stats.steps == 2


def test_a_state_of_another_model_is_refused(comm):
    reducer, other = make(comm, "direct/onebit/ef"), make(comm, "direct/onebit/ef")
    reducer({"a": np.ones(4, np.float32)})
    for named in ({"a": np.ones(5, np.float32)}, {"b": np.ones(4, np.float32)}):
        other = make(comm, "direct/onebit/ef")
        other(named)
        with pytest.raises(ValueError, match="as in this model"):
            reducer.load_state_dict(other.state_dict())
    reducer({"a": np.ones(4, np.float32)})


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_a_state_of_fewer_tensors_is_refused(comm, warmup):
    """Before the model is known, or after; also of a job in its warm-up, or after it."""
    fewer, more = ({name: np.ones(4, np.float32) for name in names} for names in ("a", "ab"))
    reducer, other, late = (make(comm, "direct/onebit/ef", warmup=warmup) for _ in range(3))
    for _ in range(2):
        other(fewer)
    state = other.state_dict()
    reducer(more)
    with pytest.raises(ValueError, match="but not 'b': it is that of another model"):
        reducer.load_state_dict(state)
    late.load_state_dict(state)
    with pytest.raises(ValueError, match="but not 'b': it is that of another model"):
        late(more)
    for each in (other, late):
        each.load_state_dict(state)
        each(fewer)


def test_a_checkpoint_goes_on_with_the_same_bits(comm):
    first, second = make(comm), make(comm)
    first(gradients(comm))
    second.register(gradients(comm))
    second.load_state_dict(first.state_dict())
    for step in (1, 2):
        one, two = gradients(comm, step), gradients(comm, step)
        first(one)
        second(two)
        assert taken(one) == taken(two)
    assert states(first) == states(second)


def test_an_unfit_checkpoint_changes_nothing(comm):
    reducer = make(comm)
    reducer(gradients(comm))
    before, good = states(reducer), reducer.state_dict()
    schemes = {**good["schemes"], "direct/onebit/ef": {**good["schemes"]["direct/onebit/ef"], "rank": 99}}
    bad = {**good, "schemes": schemes}
    for state in (bad, {}, None, {"schemes": {}}):
        with pytest.raises(ValueError, match="state has"):
            reducer.load_state_dict(state)
        assert states(reducer) == before
    reducer.start("embed", gradients(comm)["embed"])
    with pytest.raises(ValueError, match="a step of this reducer is under way"):
        reducer.load_state_dict(good)
    reducer.discard()


@pytest.mark.parametrize("as_pairs", [False, True])
def test_a_known_step_in_which_tensors_share_memory_ends_by_an_error_on_all_ranks(comm, as_pairs):
    """The first bucket is under way when the second is found to be unfit; what it would sum is zeros then."""
    reducer, given = make(comm), gradients(comm)
    reducer(given)
    before, unfit = states(reducer), gradients(comm, 1)
    if comm.rank == 0:
        unfit["fc1.weight"] = unfit["embed"].ravel()[:2400].reshape(60, 40, order="F")
    with pytest.raises((ValueError, gq.MismatchError)) as raised:
        reducer(list(unfit.items()) if as_pairs else unfit)
    assert (raised.type is ValueError) == (comm.rank == 0)
    assert states(reducer) == before
    expected = make(comm)
    for step in (0, 1):
        one, two = gradients(comm, step), gradients(comm, step)
        expected(one)
        if step:
            reducer([*two.items()] if as_pairs else two)
            assert taken(one) == taken(two)


def test_a_closed_reducer_refuses_steps(comm):
    with make(comm) as reducer:
        reducer(gradients(comm))
    with pytest.raises(gq.Error, match="after close"):
        reducer(gradients(comm))


def test_a_reducer_that_is_dropped_within_a_step_disturbs_no_other(comm):
    """Not even in the middle of a call, where the garbage collector may find it."""
    with gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT) as other:
        for _ in range(3):
            dropped = make(comm)
            dropped.register(gradients(comm))
            dropped.start("fc2.bias", gradients(comm)["fc2.bias"])
            del dropped
            gc.disable()
            try:
                call = other.start(np.ones(5, np.float32), key="w")
                gc.collect()
            finally:
                gc.enable()
            np.testing.assert_array_equal(call.wait(), comm.size)

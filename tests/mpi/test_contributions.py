"""What a Reducer sums in place of plain gradients: clipped ones, momenta, and by other rules in the first steps."""

import numpy as np
import pytest
from ranks import TIMEOUT, bytes_of, inputs

import gqallreduce as gq

pytestmark = pytest.mark.mpi
SHAPES = {"a": (30, 20), "b": (7,), "c": ()}
BETA = 0.75
ONEBIT, TOPK = "direct/onebit/ef", "direct/topk(ratio=0.1)/ef"


def make(comm, rules="ring/raw", **options):
    return gq.Reducer(rules, comm=comm, timeout=TIMEOUT, **options)


def everyone(comm, step, dtype="float32"):
    """name -> all ranks' gradients."""
    return {name: inputs(comm.size, shape, dtype, step=10 * step + n) for n, (name, shape) in enumerate(SHAPES.items())}


def gradients(comm, step, dtype="float32"):
    return {name: each[comm.rank] for name, each in everyone(comm, step, dtype).items()}


def bits(named):
    return {name: bytes_of(each) for name, each in named.items()}


def norm(named):
    return np.sqrt(sum(float((np.float64(each) ** 2).sum()) for each in named.values()))


# --- momentum ---


@pytest.mark.parametrize("option", ["momentum", "momentum_correction"])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_sums_are_the_momentum_of_the_sums(comm, option, average, dtype):
    reducer, expected = make(comm, average=average, **{option: BETA}), dict.fromkeys(SHAPES, 0.0)
    for step in range(4):
        named = gradients(comm, step, dtype)
        reducer(named)
        for name, each in everyone(comm, step, dtype).items():
            expected[name] = BETA * expected[name] + np.sum(each, 0, np.float64) / (comm.size if average else 1)
            np.testing.assert_allclose(named[name], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [ONEBIT, TOPK])
def test_what_is_compressed_is_the_momentum(comm, scheme):
    """The same bits as from one that is given the momenta: of the results, or of a rank's own gradients."""
    shared, own = make(comm, scheme, momentum=BETA), make(comm, scheme, momentum_correction=BETA)
    alone = [gq.Allreduce(scheme, comm=comm, average=True, timeout=TIMEOUT) for _ in range(2)]
    last, mine = np.zeros(SHAPES["a"], np.float32), np.zeros(SHAPES["a"], np.float32)
    for step in range(4):
        found = [inputs(comm.size, SHAPES["a"], step=step)[comm.rank] for _ in range(4)]
        shared({"a": found[0]})
        own({"a": found[1]})
        last = alone[0](found[2] + np.float32(BETA) * last, key="a")
        mine = found[3] + np.float32(BETA) * mine
        assert bytes_of(found[0]) == bytes_of(last)
        assert bytes_of(found[1]) == bytes_of(alone[1](mine.copy(), key="a"))
    for reducer, other in zip((shared, own), alone, strict=True):
        assert bytes_of(reducer.allreduces[scheme].residual("a")) == bytes_of(other.residual("a"))


def test_a_missing_gradient_counts_as_zero_and_out_is_written_alone(comm):
    reducer, last = make(comm, momentum=BETA), {}
    reducer(gradients(comm, 0) | {})
    named = gradients(comm, 1)
    before, out = bits(named), np.full(SHAPES["a"], np.nan, np.float32)
    reducer.start("a", named["a"], out=out)
    reducer.start("c", named["c"])
    if comm.rank == 0:
        reducer.start("b", named["b"])
    reducer.wait()
    assert bytes_of(named["a"]) == before["a"]
    for name, found in {"a": out, "c": named["c"], "b": named["b"] if comm.rank == 0 else reducer.missing["b"]}.items():
        first, second = (np.mean(everyone(comm, step)[name], 0) for step in (0, 1))
        if name == "b":
            second = everyone(comm, 1)[name][0] / comm.size
        last[name] = BETA * first + second
        np.testing.assert_allclose(found, last[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("option", ["momentum", "momentum_correction"])
def test_a_step_that_fails_leaves_the_momentum(comm, option):
    reducer, other = (make(comm, ONEBIT, **{option: BETA}) for _ in range(2))
    for each in (reducer, other):
        each(gradients(comm, 0))
    flawed = gradients(comm, 1)
    if comm.rank == comm.size - 1:
        flawed["b"][3] = np.nan
    with pytest.raises(gq.NonFiniteError) as caught:
        reducer(flawed)
    assert (caught.value.rank, caught.value.key, caught.value.index) == (comm.size - 1, "b", 3)
    one, two = gradients(comm, 2), gradients(comm, 2)
    reducer(one)
    other(two)
    assert bits(one) == bits(two)


# --- clipping ---


def test_each_rank_clips_its_own_gradients_before_they_are_summed(comm):
    """Half of the ranks have small gradients, which are left as they are."""
    reducer = make(comm, clip=1.0)
    for step in range(2):
        factors = [1.0 if rank % 2 else 1e-3 for rank in range(comm.size)]
        mine = {name: each * np.float32(factors[comm.rank]) for name, each in gradients(comm, step).items()}
        small = norm(mine) < 1
        assert small == (factors[comm.rank] < 1)
        mine["c"] = np.array(mine["c"])
        expected = {name: each.copy() if small else each / norm(mine) for name, each in mine.items()}
        for name in mine:
            reducer.start(name, mine[name])
        reducer.wait()
        for name, each in mine.items():
            total = comm.allreduce(np.float64(expected[name]))
            np.testing.assert_allclose(each, total / comm.size, rtol=1e-5, atol=1e-6)


def test_clipped_gradients_are_summed_when_all_have_come(comm):
    reducer = make(comm, clip=1e-3, bucket=0)
    reducer.register(gradients(comm, 0))
    named = gradients(comm, 0)
    for name in ("c", "b"):
        reducer.start(name, named[name])
    before = bits(named)
    comm.Barrier()
    assert bits(named) == before
    reducer.start("a", named["a"])
    reducer.wait()
    assert norm(named) < 1.01e-3


def test_a_flaw_is_reported_where_it_is(comm):
    reducer, named = make(comm, clip=1.0, momentum=BETA), gradients(comm, 0)
    if comm.rank == 0:
        named["b"][2] = np.inf
    with pytest.raises(gq.NonFiniteError) as caught:
        reducer(named)
    assert (caught.value.rank, caught.value.key, caught.value.index) == (0, "b", 2)


# --- warm-up ---


def test_the_first_steps_have_rules_of_their_own(comm):
    reducer = make(comm, f"b=ring/raw; *={ONEBIT}", warmup=2, warmup_rules="ring/raw")
    alone = gq.Allreduce(ONEBIT, comm=comm, average=True, timeout=TIMEOUT)
    for step in range(5):
        flawed = gradients(comm, step)
        if comm.rank == 0:
            flawed["a"][0, 0] = np.nan
        with pytest.raises(gq.NonFiniteError):  # which is no step
            reducer(flawed)
        named, exact = gradients(comm, step), everyone(comm, step)
        reducer(named)
        np.testing.assert_allclose(named["b"], np.mean(exact["b"], 0), rtol=1e-5, atol=1e-6)
        assert reducer.schemes["a"] == ("ring/raw" if step < 1 else ONEBIT)  # of the next step
        if step < 2:
            np.testing.assert_allclose(named["a"], np.mean(exact["a"], 0), rtol=1e-5, atol=1e-6)
        else:
            assert bytes_of(named["a"]) == bytes_of(alone(gradients(comm, step)["a"], key="a"))


def test_residuals_go_on_after_the_warmup(comm):
    """As one object's that loads the other's residual; after a step that fails they are still there."""
    reducer = make(comm, ONEBIT, warmup=2, warmup_rules=TOPK)
    before, after = (gq.Allreduce(text, comm=comm, average=True, timeout=TIMEOUT) for text in (TOPK, ONEBIT))
    for step in range(2):
        reducer(gradients(comm, step))
        before(gradients(comm, step)["a"], key="a")
    kept = reducer.stats.tensors["a"].residual_norm
    assert kept == pytest.approx(np.linalg.norm(before.residual("a")))
    after.load_state_dict({**after.state_dict(), "keys": {"a": before.state_dict()["keys"]["a"]}})
    flawed = gradients(comm, 9)
    flawed["b"][0] = np.nan
    with pytest.raises(gq.NonFiniteError):
        reducer(flawed)
    assert bytes_of(reducer.allreduces[TOPK].residual("a")) == bytes_of(before.residual("a"))
    for step in (2, 3):
        named = gradients(comm, step)
        reducer(named)
        assert bytes_of(named["a"]) == bytes_of(after(gradients(comm, step)["a"], key="a"))
    assert bytes_of(reducer.allreduces[ONEBIT].residual("a")) == bytes_of(after.residual("a"))
    assert "a" not in reducer.allreduces[TOPK].memory.states


def test_a_warmup_that_would_lose_residuals_is_refused(comm):
    reducer = make(comm, "a=direct/qsgd; *=ring/raw", warmup=1, warmup_rules=f"a={ONEBIT}; *=dense")
    with pytest.raises(ValueError, match="its residual would be lost"):
        reducer.register(gradients(comm, 0))


def test_steps_of_other_rules_may_be_any(comm):
    """Residuals of the rules wait in them."""
    reducer = make(comm, ONEBIT, warmup=lambda step: step % 3 == 0, warmup_rules="ring/raw")
    alone = gq.Allreduce(ONEBIT, comm=comm, average=True, timeout=TIMEOUT)
    for step in range(1, 8):
        named, exact = gradients(comm, step), everyone(comm, step)["a"]
        reducer(named)
        if step % 3 == 0:
            np.testing.assert_allclose(named["a"], np.mean(exact, 0), rtol=1e-5, atol=1e-6)
        else:
            assert bytes_of(named["a"]) == bytes_of(alone(gradients(comm, step)["a"], key="a"))
    feedback = make(comm, ONEBIT, warmup=lambda step: step % 3 == 0, warmup_rules=TOPK)
    with pytest.raises(ValueError, match="expected a scheme without /ef there"):
        feedback.register(gradients(comm, 0))


@pytest.mark.parametrize("option", [{"warmup": 1}, {"momentum": BETA}, {"clip": 2.0}, {"momentum_correction": BETA}])
def test_ranks_with_other_options_are_told(comm, option):
    if comm.size == 1:
        pytest.skip("ranks that differ need two ranks or more")
    mine = comm.rank == comm.size - 1
    reducer = make(comm, ONEBIT, warmup_rules=ONEBIT, **(option if mine else {}))
    with pytest.raises(gq.MismatchError, match="options") as caught:
        reducer(gradients(comm, 0))
    assert comm.size == 2 or caught.value.ranks == (comm.size - 1,)


@pytest.mark.parametrize(
    "option",
    [
        {"clip": 0}, {"clip": -1.0}, {"clip": float("nan")}, {"clip": True}, {"clip": "1"}, {"momentum": 1},
        {"momentum": -0.1}, {"momentum": None}, {"momentum": BETA, "momentum_correction": BETA}, {"warmup": -1},
        {"warmup": 1, "warmup_rules": "nonsense"},
    ],
)  # fmt: skip
def test_unfit_options_are_refused(comm, option):
    with pytest.raises(ValueError, match=r"expected|nonsense"):
        make(comm, **option)


@pytest.mark.parametrize("option", [{"clip": 1.0}, {"momentum": BETA}])
def test_tensors_of_16_bits_are_refused(comm, option):
    with pytest.raises(ValueError, match="'h': got float16 in host memory, expected float32, or float64"):
        make(comm, **option)({"h": np.ones(3, np.float16)})


# --- checkpoints ---


@pytest.mark.parametrize("option", ["momentum", "momentum_correction"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_checkpoint_goes_on_with_the_same_bits(comm, option, steps):
    """Within the warm-up, at its end, and after it."""
    options = {"warmup": 2, "warmup_rules": TOPK, option: BETA}
    first, second = (make(comm, ONEBIT, **options) for _ in range(2))
    for step in range(steps):
        first(gradients(comm, step))
    if steps % 2:
        second.register(gradients(comm, 0))
    second.load_state_dict(first.state_dict())
    for step in range(steps, 5):
        one, two = gradients(comm, step), gradients(comm, step)
        first(one)
        second(two)
        assert bits(one) == bits(two)


@pytest.mark.parametrize("option", ["momentum", "momentum_correction"])
def test_momentum_travels_to_other_numbers_of_ranks(comm, option):
    """What is alike on all ranks stays so; else the sum over ranks does."""
    reducer = make(comm, ONEBIT, **{option: BETA})
    for step in range(2):
        reducer(gradients(comm, step))
    states = comm.allgather(reducer.state_dict())
    part = comm.Split(comm.rank == 0)
    if comm.rank == 0:
        with make(part, ONEBIT, **{option: BETA}) as alone:
            alone.load_state_dict(states)
            kept = alone.contributions.state_dict()["kept"]["a"]
        each = [state["momentum"]["kept"]["a"] for state in states]
        np.testing.assert_allclose(kept, each[0] if option == "momentum" else np.sum(each, 0), rtol=1e-6, atol=1e-6)
    part.Free()


@pytest.mark.parametrize("option", ["momentum", "momentum_correction"])
def test_momentum_of_one_rank_is_dealt_to_all(comm, option):
    """Also of tensors without dimensions, and whatever the order of the list."""
    part, options = comm.Split(comm.rank), {option: BETA, "average": False}
    first = make(part, ONEBIT, **options)
    first(gradients(comm, 0))
    state = comm.bcast(first.state_dict(), 0)
    every = make(comm, ONEBIT, **options)
    every.load_state_dict([state])
    kept = every.state_dict()["momentum"]["kept"]
    for name, each in state["momentum"]["kept"].items():
        found = comm.allreduce(np.asarray(kept[name], np.float64)) if option == "momentum_correction" else kept[name]
        np.testing.assert_allclose(found, each, rtol=1e-6)  # results are alike on all ranks
    every.scale_memory(2.0, momentum=True)
    states = comm.allgather(every.state_dict())
    again = make(comm, ONEBIT, **options)
    again.load_state_dict(states[::-1] if comm.rank else states)
    total = np.asarray(again.state_dict()["momentum"]["kept"]["c"], np.float64)
    total = comm.allreduce(total) if option == "momentum_correction" else total
    np.testing.assert_allclose(total, 2 * state["momentum"]["kept"]["c"], rtol=1e-6)
    averages = make(comm, ONEBIT, **{option: BETA}, average=True)
    if option == "momentum":
        with pytest.raises(ValueError, match="'momentum of sums', expected 'momentum of averages'"):
            averages.load_state_dict(states)
    part.Free()


def test_an_unfit_momentum_is_refused(comm):
    reducer, without = make(comm, ONEBIT, momentum=BETA), make(comm, ONEBIT)
    reducer(gradients(comm, 0))
    state = reducer.state_dict()
    before, kind, kept = bits(state["momentum"]["kept"]), state["momentum"]["kind"], state["momentum"]["kept"]

    def with_(**other):
        return {**state, "momentum": {"kind": kind, "kept": kept, **other}}

    for wrong in ({**kept, "a": np.full((30, 20), np.nan, np.float32)}, {**kept, "a": "text"}, None):
        with pytest.raises(ValueError, match="unfit momentum"):
            reducer.load_state_dict(with_(kept=wrong))
    for wrong in ({**kept, "a": np.ones(3, np.float32)}, {**kept, "d": kept["a"]}, {"a": kept["a"]}):
        with pytest.raises(ValueError, match="the state has"):
            reducer.load_state_dict(with_(kept=wrong))
    other = make(comm, ONEBIT, momentum_correction=BETA)
    for each in (other, without):
        with pytest.raises(ValueError, match="state has the momentum"):
            each.load_state_dict(state)
    for wrong in ({"steps": -1}, {"warmup": "3"}):
        with pytest.raises(ValueError, match="state has"):
            reducer.load_state_dict({**state, **wrong})
    later = make(comm, ONEBIT, momentum=BETA)
    later.load_state_dict(state)
    with pytest.raises(ValueError, match="state has"):
        later({"other": np.ones(3, np.float32)})
    assert bits(reducer.state_dict()["momentum"]["kept"]) == before


def test_a_state_within_a_step_is_refused(comm):
    reducer = make(comm, ONEBIT, momentum=BETA)
    reducer(gradients(comm, 0))
    reducer.start("a", gradients(comm, 1)["a"])
    with pytest.raises(ValueError, match=r"a step of this reducer is under way; state_dict\(\)"):
        reducer.state_dict()
    reducer.discard()
    for wrong in (float("nan"), float("inf"), True, "2"):
        with pytest.raises(ValueError, match="expected a finite number"):
            reducer.scale_memory(wrong, momentum=True)


def test_a_function_of_steps_that_raises_on_one_rank_ends_the_step_for_all(comm):
    """And nothing of it has taken effect."""

    def is_exact(step):
        if step == 3 and comm.rank == comm.size - 1 and fails:
            raise RuntimeError("planted")
        return step < 2

    fails = True
    reducer, other = (make(comm, ONEBIT, warmup=is_exact, momentum=BETA) for _ in range(2))
    reducer(gradients(comm, 1))
    with pytest.raises(RuntimeError if comm.rank == comm.size - 1 else gq.MismatchError):
        reducer(gradients(comm, 2))
    fails = False
    for step in (1, 2, 3):
        one, two = gradients(comm, step), gradients(comm, step)
        if step > 1:
            reducer(one)
        other(two)
        assert step == 1 or bits(one) == bits(two)


def test_random_streams_go_on_after_the_warmup(comm):
    rules = "direct/qsgd(bits=2, bucket=64)"
    reducer = make(comm, rules, warmup=1, warmup_rules="direct/qsgd(bits=2, bucket=64, norm=max)")
    one, two = gradients(comm, 0), gradients(comm, 0)
    reducer(one)
    reducer(two)
    assert bytes_of(one["a"]) != bytes_of(two["a"])


def test_an_out_that_overlaps_in_part_is_refused(comm):
    reducer = make(comm, momentum=BETA)
    memory = np.ones(12, np.float32)
    reducer({"w": memory[:10].copy()})
    with pytest.raises(ValueError, match="overlaps the gradient partly"):
        reducer.start("w", memory[:10], out=memory[2:])
    assert (memory == 1).all()
    reducer({"w": memory[:10].copy()})


@pytest.mark.parametrize("size", [1e160, 1e-170, 3.0])
def test_norms_of_any_size_are_clipped(comm, size):
    reducer = make(comm, clip=size / 10)
    named = {"w": np.full(4, size, np.float64), "none": np.zeros(0)}
    reducer(named)
    np.testing.assert_allclose(named["w"], size / 20, rtol=1e-12)


def test_units_are_changed_with_the_momentum(comm):
    """A loss that is scaled by 4 from the second step on."""
    plain, scaled = (make(comm, ONEBIT, momentum=BETA) for _ in range(2))
    for each in (plain, scaled):
        each(gradients(comm, 0))
    scaled.scale_memory(4.0, momentum=True)
    one, two = gradients(comm, 1), {name: np.array(4 * each) for name, each in gradients(comm, 1).items()}
    plain(one)
    scaled(two)
    assert bits({name: 4 * each for name, each in one.items()}) == bits(two)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum_correction": 0.9}])
@pytest.mark.parametrize("rules", ["ring/raw", "direct/onebit/ef"])
def test_a_factor_that_a_momentum_cannot_take_changes_nothing(comm, options, rules):
    """On any rank: with momentum correction that of the last rank alone is too large for it."""
    reducer = gq.Reducer(rules, comm=comm, timeout=TIMEOUT, **options)
    for _ in range(2):
        reducer({"w": np.full(300, 1e5 if comm.rank == comm.size - 1 else 1e-5, np.float32)})
    before = reducer.state_dict()
    with pytest.raises((ValueError, gq.MismatchError)):
        reducer.scale_memory(1e37, momentum=True)
    after = reducer.state_dict()
    assert repr(after) == repr(before)
    reducer.load_state_dict(after)
    reducer({"w": np.ones(300, np.float32)})


@pytest.mark.parametrize("rules", ["ring/raw", "direct/onebit/ef"])
def test_factors_of_ranks_are_compared(comm, rules):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    reducer = gq.Reducer(rules, comm=comm, timeout=TIMEOUT, momentum=0.9)
    reducer({"w": np.ones(300, np.float32)})
    before = reducer.state_dict()
    with pytest.raises(gq.MismatchError):
        reducer.scale_memory(1.0 + comm.rank, momentum=True)
    assert repr(reducer.state_dict()) == repr(before)

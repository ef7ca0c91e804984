"""Particulars of gradiveq: phases, which values are a slice, what a basis captures, that ranks have one basis."""

import numpy as np
import pytest
from contract import same_bits

import gqallreduce as gq
from gqallreduce.codecs.gradiveq import GradiVeQ
from gqallreduce.coding.basis import principal
from gqallreduce.coding.layout import Form
from gqallreduce.coding.order import to_vector
from gqallreduce.coding.slices import Slices
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce

VARIANTS = [
    "gradiveq(warmup=0, train=1, compress=2, K=7, d=3)",
    "gradiveq(warmup=0, train=1, compress=1, K=16, order=hwdf, reuse=first, center=True, train_bits=4, "
    "coefficients=thc(bits=8, rotate=False, clip=0))",
]

every_schedule = pytest.mark.parametrize("schedule", sorted(SCHEDULES))


def gradients(seed, ranks, shape=(12, 5, 3, 3), inner=4):
    """Filters of all ranks and calls lie in one space of `inner` dimensions, as gradients of a convolution do."""
    size = int(np.prod(shape[1:]))
    space = np.random.default_rng(99).standard_normal((inner, size))
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((shape[0], inner)) @ space).astype(np.float32).reshape(shape) for _ in range(ranks)]


def learned(local, key="w"):
    return [memory.get(key).learned for memory in local.memory]


def run(local, steps, first=0, **options):
    """(results of rank 0, exact sums) of so many calls."""
    found = []
    for step in range(first, first + steps):
        given = gradients(step, local.size, **options)
        results = local([each.copy() for each in given], key="w")
        assert all(same_bits(results[0], each) for each in results)
        found.append((results[0], sum(each.astype(np.float64) for each in given)))
    return found


def error(pair):
    return np.linalg.norm(pair[0] - pair[1]) / np.linalg.norm(pair[1])


@every_schedule
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_after_training_sums_in_the_learned_space_are_right_and_short(schedule, ranks):
    local = LocalAllreduce(f"{schedule}/gradiveq(warmup=1, train=3, compress=5, K=45)", ranks)
    sent = []
    for step in range(9):
        ((result, exact),) = run(local, 1, step)
        assert error((result, exact)) < (1e-6 if step < 4 else 1e-5)
        sent.append(local.spent[0].bytes_sent)
        states = learned(local)
        assert (states[0]["basis"] is None) == (step < 3)
        if step >= 3:
            assert states[0]["basis"].shape == (4, 45)
            assert all(same_bits(states[0]["basis"], each["basis"]) for each in states)
    if ranks > 1:
        assert sent[0] == sent[3]
        assert 32 * sent[0] // 45 > sent[4] == sent[8]


def test_phases_are_as_long_as_said_and_come_again():
    local = LocalAllreduce("direct/gradiveq(warmup=2, train=3, compress=4, K=45, d=1)", 2)
    exact = [error(pair) < 1e-6 for pair in run(local, 2 + 2 * (3 + 4) + 3)]
    assert exact == [True] * 2 + ([True] * 3 + [False] * 4) * 2 + [True] * 3


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_quantized_training_takes_fewer_bytes_than_warm_up_and_more_than_coefficients(schedule, ranks):
    """Training sends 4 bits a value and the scales of buckets, warm-up 32 bits."""
    local = LocalAllreduce(f"{schedule}/gradiveq(warmup=1, train=2, compress=2, K=45, d=2, train_bits=4)", ranks)
    sent = []
    for step in range(5):
        run(local, 1, step, shape=(96, 5, 3, 3))
        sent.append(max(each.bytes_sent for each in local.spent))
    warm_up, training, again, compressed, last = sent
    assert training == again < warm_up / 5
    assert compressed == last < training


def test_a_phase_without_end():
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=1, compress=0, d=1, K=45)", 2)
    assert [error(pair) < 1e-6 for pair in run(local, 20)] == [True] + [False] * 19


@pytest.mark.parametrize("lam", [0.5, 0.1, 0.01])
def test_energy_left_is_at_most_what_is_allowed(lam):
    rng = np.random.default_rng(3)
    samples = rng.standard_normal((400, 30)) * 0.7 ** np.arange(30)
    basis = principal(samples.T @ samples, 0, lam).astype(float)
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-6)

    def left(rows):
        return 1 - np.sum((samples @ rows.T) ** 2) / np.sum(samples**2)

    assert left(basis) <= lam * (1 + 1e-6) < left(basis[:-1]) * (1 + 1e-6)


def test_of_nothing_there_is_no_basis_and_training_goes_on():
    assert principal(np.zeros((5, 5)), 0, 0.01).shape == (0, 5)
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=2, compress=3)", 2)
    for _ in range(5):
        local([np.zeros((12, 5, 3, 3), np.float32) for _ in range(2)], key="w")
    assert learned(local)[0]["basis"] is None
    assert learned(local)[0]["since"] == 4
    run(local, 2)
    assert learned(local)[0]["basis"] is not None or learned(local)[0]["since"] == 6


@pytest.mark.parametrize(
    ("layout", "order", "shape"),
    [
        ("oihw", "hwdf", (6, 5, 3, 2)),
        ("oihw", "filter", (6, 5, 3, 2)),
        ("hwio", "hwdf", (3, 2, 5, 6)),
        ("hwio", "filter", (3, 2, 5, 6)),
        ("oihw", "hwdf", (6, 5)),
        ("hwio", "filter", (6, 5)),
        ("oihw", "hwdf", (6, 5, 4)),
    ],
)
@pytest.mark.parametrize("memory", ["C", "F", "axes"])
def test_values_of_a_slice_are_those_of_the_definition(layout, order, shape, memory):
    """As in section 2 of the paper: filters fastest, then inputs, width, height; or filter by filter."""
    every = list(range(len(shape)))
    if memory == "axes":
        memory = ",".join(map(str, [*every[1:], every[0]]))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    slices = Slices.of(GradiVeQ(K=7, layout=layout, order=order), Form(shape, memory, "float32"))
    filters, inputs = (0, 1) if layout == "oihw" else (every[-1], every[-2])
    places = [axis for axis in every if axis not in (filters, inputs)]
    wanted = [*places, inputs, filters] if order == "hwdf" else [filters, *(axis for axis in every if axis != filters)]
    vector = to_vector(array, memory).copy()
    ordered = slices.ordered(vector)
    np.testing.assert_array_equal(ordered, array.transpose(wanted).reshape(-1))
    np.testing.assert_array_equal(vector[slices.origin(np.arange(array.size))], ordered)
    back = np.zeros_like(vector)
    slices.put(ordered, back)
    np.testing.assert_array_equal(back, vector)


@pytest.mark.parametrize(
    ("shape", "order", "expected"),
    [
        ((64, 16, 3, 3), "filter", 144 * 3),
        ((16, 16, 3, 3), "filter", 144 * 3),
        ((4, 16, 3, 3), "filter", 144 * 2),
        ((64, 16, 3, 3), "hwdf", 512),
        ((16, 16, 3, 3), "hwdf", 512),
        ((100, 784), "filter", 392),
        ((100, 5000), "filter", 500),
        ((2, 3), "filter", 3),
        ((3, 1), "filter", 1),
    ],
)
def test_the_usual_length_of_a_slice(shape, order, expected):
    assert Slices.of(GradiVeQ(order=order), Form(shape, "C", "float32")).length == expected


@pytest.mark.parametrize("coefficients", ["raw", "float16", "qsgd(bits=8)", "thc(bits=8, rotate=False, clip=0)"])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("order", ["filter", "hwdf"])
def test_with_feedback_nothing_is_lost(coefficients, center, order):
    """Through all phases; with what is no slice too."""
    text = f"gradiveq(warmup=1, train=2, compress=3, K=40, d=5, train_bits=4, order={order}, center={center}, "
    local = LocalAllreduce(f"ring/{text}coefficients={coefficients})/ef", 3)
    total, given_so_far = np.zeros((12, 5, 3, 3)), np.zeros((12, 5, 3, 3))
    for step in range(8):
        ((result, exact),) = run(local, 1, step, inner=45)
        total += result
        given_so_far += exact
        left = sum(memory.residual("w").astype(float) for memory in local.memory).reshape(total.shape)
        np.testing.assert_allclose(total + left, given_so_far, atol=3e-4)


@pytest.mark.parametrize("coefficients", ["raw", "thc(bits=8, rotate=False, clip=0)"])
def test_the_rest_is_sent_exactly(coefficients):
    local = LocalAllreduce(f"direct/gradiveq(warmup=0, train=1, compress=3, K=50, d=1, coefficients={coefficients})", 3)
    run(local, 1)
    for step in range(1, 4):
        given = [np.round(each) for each in gradients(step, 3)]
        results = local([each.copy() for each in given], key="w")
        np.testing.assert_array_equal(results[0].reshape(-1)[500:], sum(given).reshape(-1)[500:])
        assert (results[0].reshape(-1)[:500] != sum(given).reshape(-1)[:500]).any()


def test_means_of_training_are_part_of_the_result():
    """Of sums that hardly change from call to call one coefficient is enough, about their mean."""
    errors = {}
    base = np.random.default_rng(1).standard_normal((12, 5, 3, 3))
    for center in (False, True):
        local = LocalAllreduce(f"direct/gradiveq(warmup=0, train=20, compress=5, K=45, d=1, center={center})", 2)
        for step in range(22):
            noise = np.random.default_rng([2, step]).standard_normal((12, 5, 3, 3)) * 1e-3
            given = [(base + noise).astype(np.float32) / 2] * 2
            result = local([each.copy() for each in given], key="w")[0]
        errors[center] = error((result, base + noise))
    assert errors[True] < 2e-3
    assert errors[False] > 0.5


def test_a_pooled_basis_is_better_than_that_of_the_first_slice():
    errors = {}
    for reuse in ("pooled", "first"):
        local = LocalAllreduce(f"direct/gradiveq(warmup=0, train=3, compress=9, reuse={reuse}, d=4, K=45)", 2)
        run(local, 3)
        errors[reuse] = max(map(error, run(local, 5, 3)))
    assert errors["pooled"] < 1e-5 < 0.01 < errors["first"]


def test_training_begins_again_when_most_ranks_see_a_large_error():
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=2, compress=0, d=4, K=45, drift=0.5)", 3)
    run(local, 4)
    for others, expected in ((1, False), (2, True)):
        rng = np.random.default_rng(others)
        given = gradients(9, 3)
        for rank in range(others):
            given[rank] = rng.standard_normal(given[rank].shape).astype(np.float32)
        local(given, key="w")
        assert all((state["basis"] is None) == expected for state in learned(local))
    assert [error(pair) < 1e-6 for pair in run(local, 2, 20)] == [True] * 2
    assert learned(local)[0]["basis"] is not None


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_value_that_is_not_finite_is_found_where_ranks_vote_first(ranks):
    local = LocalAllreduce("ring/gradiveq(warmup=0, train=1, compress=0, d=4, K=45, drift=0.9)", ranks)
    run(local, 2)
    given = gradients(5, ranks)
    given[-1][2, 0, 1, 1] = np.nan
    with pytest.raises(gq.NonFiniteError) as caught:
        local(given, key="w")
    assert (caught.value.rank, caught.value.index) == (ranks - 1, 2 * 45 + 4)
    assert learned(local)[0]["calls"] == 2


def test_vectors_are_summed_whole():
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=1, compress=9, d=1)", 2)
    for shape in ((), (100,), (0, 3)):
        for step in range(3):
            given = [np.full(shape, step + rank, np.float32) for rank in range(2)]
            results = local([each.copy() for each in given], key=f"{shape}")
            np.testing.assert_array_equal(results[0], sum(given))
        assert local.memory[0].get(f"{shape}").learned is None


def test_a_group_is_its_tensors_called_alone():
    together, alone = (LocalAllreduce("direct/gradiveq(warmup=1, train=1, compress=2, d=2)", 3) for _ in range(2))
    shapes = {"a": (12, 5, 3, 3), "b": (7,), "c": (6, 9)}
    for step in range(8):
        given = [
            [
                np.random.default_rng([step, rank, number]).standard_normal(shape).astype(np.float32)
                for number, shape in enumerate(shapes.values())
            ]
            for rank in range(3)
        ]
        if step % 3 == 2:
            alone([mine[0].copy() for mine in given], key="a")
            together([mine[0].copy() for mine in given], key="a")
        results = together([[each.copy() for each in mine] for mine in given], key=list(shapes))
        for number, key in enumerate(shapes):
            expected = alone([mine[number].copy() for mine in given], key=key)
            assert all(results[rank][number].tobytes() == expected[rank].tobytes() for rank in range(3))


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_scale_does_not_matter(scale):
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=1, compress=2, K=45)", 2)
    for step in range(3):
        given = [each * np.float32(scale) for each in gradients(step, 2)]
        result = local([each.copy() for each in given], key="w")[0]
        assert error((result / scale, sum(each.astype(float) for each in given) / scale)) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        *({"K": -1}, {"d": 1.5}, {"d": 8, "K": 7}, {"lam": 1.0}, {"lam": -0.1}, {"order": "hwio"}, {"layout": "oi"}),
        *({"reuse": "all"}, {"center": 1}, {"warmup": -1}, {"train": 0}, {"compress": True}, {"train_bits": 1}),
        *({"coefficients": "topk"}, {"coefficients": "alq"}, {"coefficients": 3}, {"drift": 1.0}),
    ],
)
def test_other_options_are_refused(options):
    with pytest.raises(ValueError, match=f"gradiveq: {next(iter(options))}"):
        GradiVeQ(**options)


def test_its_promises():
    assert GradiVeQ().linear
    assert not GradiVeQ(train_bits=4).linear
    assert GradiVeQ().deterministic
    assert not GradiVeQ(train_bits=4).deterministic
    assert GradiVeQ(coefficients="thc(bits=8, rotate=False, clip=0)").linear
    assert not GradiVeQ().bit_exact


def _state(steps):
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=2, compress=9, center=True, K=45)", 1)
    run(local, steps)
    return learned(local)[0]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "change",
    [
        {"calls": -1},
        {"since": "a"},
        {"gathered": np.zeros((3, 3))},
        {"basis": np.zeros((4, 44), np.float32)},
        {"basis": np.zeros((0, 45), np.float32)},
        {"basis": np.full((4, 45), np.inf, np.float32)},
        {"mean": np.zeros(5, np.float32)},
        {"total": "abc"},
    ],
)
def test_an_unfit_state_is_refused(steps, change):
    codec, form = GradiVeQ(center=True, K=45), Form((12, 5, 3, 3), "C", "float32")
    state, found = _state(steps), None
    found = codec.relearned(state, form)
    assert set(found) == set(state)
    assert found["told"] == state["told"]
    with pytest.raises((ValueError, TypeError)):
        codec.relearned({**state, **change}, form)
    with pytest.raises(LookupError):
        codec.relearned({name: value for name, value in state.items() if name != "basis"}, form)


def test_an_overflow_names_a_value_of_the_slice():
    local = LocalAllreduce("direct/gradiveq(warmup=0, train=1, compress=9, d=2, K=45)", 2)
    run(local, 1)
    space = learned(local)[0]["basis"][0]
    given = [np.zeros((12, 5, 3, 3), np.float32) for _ in range(2)]
    for each in given:
        each[3] = (space / np.abs(space).max() * 3e38).reshape(5, 3, 3)
    with pytest.raises(gq.NonFiniteError) as caught:
        local(given, key="w")
    assert caught.value.rank is None
    assert 3 * 45 <= caught.value.index < 4 * 45


@pytest.mark.parametrize("size", [1, 1e-3, 1e-5])
def test_means_that_are_larger_than_gradients_take_a_little_of_them_with_feedback(size):
    """What float32 rounds of the mean, as the docstring says; with a basis of all directions nothing else is left."""
    local = LocalAllreduce("direct/gradiveq(K=4, d=4, warmup=0, train=2, center=True)/ef", 3)
    rng = np.random.default_rng(0)
    for _ in range(2):
        local([rng.standard_normal((8, 8)).astype(np.float32) for _ in range(3)], key="w")
    mean = np.abs(learned(local)[0]["mean"]).max()
    given = [(rng.standard_normal((8, 8)) * size).astype(np.float32) for _ in range(3)]
    exact = sum(each.astype(np.float64).reshape(-1) for each in given)
    result = local(given, key="w")[0].astype(np.float64).reshape(-1)
    left = sum(memory.residual("w").astype(np.float64) for memory in local.memory)
    assert np.abs(result + left - exact).max() <= 2**-20 * mean + 1e-6 * np.abs(exact).max()

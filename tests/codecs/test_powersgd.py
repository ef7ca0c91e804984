"""Particulars of powersgd: what it approximates, how a call begins where the one before ended, that nothing is lost."""

import numpy as np
import pytest
from contract import same_bits

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.codecs.powersgd import LowRank, PowerSGD, Whole, matrix_of
from gqallreduce.coding.layout import Form
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce

VARIANTS = ["powersgd(rank=2)", "powersgd(rank=1, inner=qsgd(bits=8, bucket=64))", "powersgd(rank=3, inner=float16)"]
WHOLE = VARIANTS[:2]

every_schedule = pytest.mark.parametrize("schedule", sorted(SCHEDULES))


def matrices(seed, ranks, rows, columns, rank=None):
    rng = np.random.default_rng(seed)
    if rank is None:
        return [rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(ranks)]
    left, right = (np.linalg.qr(rng.standard_normal((size, rank)))[0] for size in (rows, columns))
    return [(left * rng.uniform(1, 2, rank) @ right.T).astype(np.float32) for _ in range(ranks)]


def test_columns_that_depend_on_others_become_zero():
    p = np.array([[1, 2, 2], [2, 4, 4], [0, 0, 0], [0, 0, 5]], np.float32)
    _kernels.orthonormalize(p.reshape(-1), 4)
    np.testing.assert_allclose(p[0], np.array([1, 2, 2]) / 3, atol=1e-6)
    assert not p[1:3].any()
    assert np.linalg.norm(p[3]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("shape", "order", "expected"),
    [
        ((), "C", (1, 1)),
        ((7,), "C", (1, 7)),
        ((20, 30), "C", (20, 30)),
        ((20, 30), "F", (30, 20)),
        ((64, 32, 3, 3), "C", (64, 288)),
        ((3, 3, 32, 64), "C", (288, 64)),
        ((64, 32, 3, 3), "0,2,3,1", (64, 288)),
        ((4, 6, 5), "C", (24, 5)),
        ((8, 1, 8), "C", (8, 8)),
        ((1, 8, 4, 1), "C", (8, 4)),
        ((1, 1), "F", (1, 1)),
        ((0, 4), "C", (0, 4)),
    ],
)
def test_the_slowest_or_the_fastest_axis_is_cut_off(shape, order, expected):
    assert matrix_of(Form(shape, order, "float32")) == expected


def test_what_is_no_matrix_or_too_small_is_sent_whole():
    for shape in ((), (100,), (0, 5), (5, 5), (1, 1000)):
        assert isinstance(PowerSGD(rank=3).bind(Form(shape, "C", "float32")), Whole)
    assert isinstance(PowerSGD(rank=3).bind(Form((7, 7), "C", "float32")), LowRank)
    local = LocalAllreduce("ring/powersgd(rank=3)/ef", 3)
    given = [np.arange(50, dtype=np.float32) * (rank + 1) for rank in range(3)]
    results = local([each.copy() for each in given], key="w")
    np.testing.assert_array_equal(results[0], sum(given))
    assert not local.memory[1].residual("w").any()


@every_schedule
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8])
def test_matrices_of_that_rank_are_summed_without_error(schedule, ranks):
    """All ranks' matrices together have rank 3. Each key begins at random, so that P is well conditioned."""
    local = LocalAllreduce(f"{schedule}/powersgd(rank=3)/ef", ranks)
    for step in range(5):
        given = matrices(step, ranks, 40, 70, rank=3)
        results = local([each.copy() for each in given], key=f"w{step}")
        exact = sum(each.astype(np.float64) for each in given)
        assert np.linalg.norm(results[0] - exact) <= 1e-5 * sum(map(np.linalg.norm, given))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_call_goes_on_where_the_one_before_ended(ranks):
    """Of one matrix in every call the approximation becomes the best of that rank: by power iteration."""
    rng = np.random.default_rng(5)
    left, right = np.linalg.qr(rng.standard_normal((60, 60)))[0], np.linalg.qr(rng.standard_normal((50, 50)))[0]
    values = 0.8 ** np.arange(50)
    matrix = (left[:, :50] * values) @ right.T
    shares = rng.dirichlet(np.ones(ranks))
    given = [(matrix * share).astype(np.float32) for share in shares]
    local, errors = LocalAllreduce("direct/powersgd(rank=4)", ranks), []
    for _ in range(60):
        results = local([each.copy() for each in given], key="w")
        errors.append(np.linalg.norm(results[0] - matrix))
    best = np.linalg.norm(values[4:])
    assert errors[0] > 1.05 * best
    assert errors[-1] == pytest.approx(best, rel=1e-4)
    assert (np.diff(errors) < 1e-5).all()


@every_schedule
@pytest.mark.parametrize("inner", ["raw", "qsgd(bits=8, bucket=64)", "float16"])
def test_sum_and_residuals_are_what_was_given(schedule, inner):
    """With a quantized inner sum too: what it loses of Q is in the residual."""
    ranks, local = 4, LocalAllreduce(f"{schedule}/powersgd(rank=2, inner={inner})/ef", 4)
    total, given_so_far = np.zeros((30, 40)), np.zeros((30, 40))
    for step in range(6):
        given = matrices(step, ranks, 30, 40)
        results = local([each.copy() for each in given], key="w")
        total += results[0]
        given_so_far += sum(given)
        assert all(same_bits(results[0], each) for each in results)
    left = sum(memory.residual("w").astype(np.float64) for memory in local.memory).reshape(30, 40)
    np.testing.assert_allclose(total + left, given_so_far, atol=2e-5)


def test_a_constant_gradient_arrives_in_the_end():
    """The mean of the results tends to it: residuals are bounded."""
    local, given = LocalAllreduce("direct/powersgd(rank=1)/ef", 2), matrices(3, 2, 20, 25)
    total, steps = np.zeros((20, 25)), 400
    for _ in range(steps):
        total += local([each.copy() for each in given], key="w")[0]
    assert np.linalg.norm(total / steps - sum(given)) < 0.1 * np.linalg.norm(sum(given))


def test_bytes_are_those_of_two_thin_matrices():
    local = LocalAllreduce("direct/powersgd(rank=4)", 4)
    local([np.ones((256, 1024), np.float32) for _ in range(4)], key="w")
    sent = 2 * 3 / 4 * 4 * 4 * (256 + 1024)
    assert sent < local.spent[0].bytes_sent < sent + 12 * 32 + 64


def test_matrices_of_a_group_share_their_messages():
    """As many messages as one of them alone; each has the result and residual of a call of its own."""
    shapes = {"a": (40, 50), "b": (7,), "c": (64, 32, 3, 3), "d": (0, 3), "e": ()}
    together, alone = (LocalAllreduce("direct/powersgd(rank=2)/ef", 3, seed=4) for _ in range(2))
    for step in range(3):
        given = [
            [
                np.random.default_rng([step, rank, number]).standard_normal(shape).astype(np.float32)
                for number, shape in enumerate(shapes.values())
            ]
            for rank in range(3)
        ]
        results = together([[each.copy() for each in mine] for mine in given], key=list(shapes))
        messages = together.spent[0].messages
        for number, key in enumerate(shapes):
            expected = alone([mine[number].copy() for mine in given], key=key)
            assert alone.spent[0].messages <= messages == 8
            for rank in range(3):
                assert results[rank][number].tobytes() == expected[rank].tobytes()
                assert together.memory[rank].residual(key).tobytes() == alone.memory[rank].residual(key).tobytes()


def test_a_column_that_vanishes_begins_anew():
    """After a matrix of rank 1 there is nothing to go on from for the second column."""
    local = LocalAllreduce("direct/powersgd(rank=2)", 2)
    for ranks in (1, 2):
        given = matrices(ranks, 2, 30, 40, rank=ranks)
        results = local([each.copy() for each in given], key="w")
        exact = sum(each.astype(np.float64) for each in given)
        assert np.linalg.norm(results[0] - exact) <= 1e-5 * sum(map(np.linalg.norm, given))
    local([np.zeros((30, 40), np.float32) for _ in range(2)], key="w")
    assert not local.memory[0].get("w").learned["q"].any()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scale_does_not_matter(scale):
    """Q is kept near 1, so that neither squares vanish nor P leaves float32."""
    local = LocalAllreduce("direct/powersgd(rank=3)", 2)
    for step in range(3):
        given = [each * np.float32(scale) for each in matrices(step, 2, 40, 70, rank=3)]
        results = local([each.copy() for each in given], key="w")
        exact = sum(each.astype(np.float64) for each in given)
        assert np.linalg.norm(results[0] - exact) <= 1e-5 * np.linalg.norm(exact)


def test_a_sum_of_products_that_leaves_float32_is_an_overflow_of_no_rank():
    local = LocalAllreduce("direct/powersgd(rank=1)/ef", 2)
    given = [np.full((20, 30), 3e38, np.float32) for _ in range(2)]
    with pytest.raises(gq.NonFiniteError) as caught:
        local(given, key="w")
    assert caught.value.rank is None
    assert caught.value.key == "w"


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "a", None])
def test_other_ranks_are_refused(rank):
    with pytest.raises(ValueError, match="expected an integer from 1"):
        PowerSGD(rank=rank)


@pytest.mark.parametrize("inner", ["topk", "alq", "powersgd", "threshold", 5])
def test_other_inner_codecs_are_refused(inner):
    with pytest.raises(ValueError, match="powersgd: inner"):
        PowerSGD(inner=inner)


def test_its_promises():
    assert PowerSGD().linear
    assert PowerSGD().fixed_size
    assert not PowerSGD(inner="qsgd").linear
    assert PowerSGD(inner="qsgd").fixed_size
    assert not PowerSGD(inner="qsgd(coding=huffman)").fixed_size


def test_a_message_has_both_factors_and_stands_for_their_product():
    scheme, x = gq.Scheme.parse("powersgd(rank=2)"), matrices(1, 1, 12, 20, rank=2)[0]
    message = scheme.encode(x, seed=3, step=9)
    assert len(message) == 32 + 4 * 2 * (12 + 20)
    p, q = np.split(np.frombuffer(message[32:], np.float32), [24])
    decoded = scheme.decode(message, (12, 20), seed=3)
    np.testing.assert_allclose(decoded.reshape(12, 20), x, atol=1e-5)
    _kernels.orthonormalize(p := p.copy(), 2)
    np.testing.assert_allclose(p.reshape(2, 12).T @ q.reshape(2, 20), x, atol=1e-5)


def _states():
    local = LocalAllreduce("direct/powersgd(rank=2)/ef", 1)
    local([np.ones((20, 30), np.float32)], key="w")
    return local.memory[0].get("w").learned


@pytest.mark.parametrize(
    "change",
    [
        {"calls": 0},
        {"calls": "a"},
        {"calls": True},
        {"q": np.ones(59, np.float32)},
        {"q": np.full(60, np.nan)},
        {"q": "b"},
        {"q": None},
    ],
)
def test_an_unfit_state_is_refused(change):
    codec, form = PowerSGD(rank=2), Form((20, 30), "C", "float32")
    assert codec.relearned(_states(), form)["calls"] == 1
    with pytest.raises((ValueError, TypeError)):
        codec.relearned({**_states(), **change}, form)


def test_factors_whose_product_leaves_float32_are_no_message():
    scheme = gq.Scheme.parse("powersgd(rank=2)")
    data = bytearray(scheme.encode(np.ones((8, 8), np.float32)))
    p, q = np.zeros((2, 8), np.float32), np.full((2, 8), 3e38, np.float32)
    p[:, 0], p[0, 1], p[1, 1] = 1, 1, -1
    data[32:] = p.tobytes() + q.tobytes()
    with pytest.raises(gq.WireError, match="leave float32"):
        scheme.decode(bytes(data), (8, 8))

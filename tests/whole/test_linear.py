"""Linear codecs on whole allreduces: a rank's own values are quantized once, and their sums travel exactly."""

import numpy as np
import pytest
from contract import same_bits
from reductions import arrays, copies, nothing_lost, residuals, same_everywhere
from schemes import PARTICULARS, RANKS, SCHEDULE_NAMES

from gqallreduce import NonFiniteError, _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.hashing import hash64
from gqallreduce.runtime.local import LocalAllreduce

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
# of many steps: sums are the same bits on all schedules (the next test), so `--few` takes one
# All schedules give the same bits (below): two, which add in different ways, are enough for what takes long.
two_schedules = pytest.mark.parametrize(
    "schedule", ["direct", pytest.param("recursive_doubling", marks=pytest.mark.slow)]
)


@pytest.mark.parametrize(
    "text",
    ["terngrad", "terngrad(clip=0)", "threshold(tau=0.8)", "thc(bits=3, bucket=64)", "thc(bits=8, rotate=False)"],
)
@pytest.mark.parametrize("ranks", [3, 8])
def test_a_linear_codec_gives_every_schedule_the_same_bits(text, ranks):
    made = set()
    for schedule in SCHEDULE_NAMES:
        local = LocalAllreduce(f"{schedule}/{text}/ef", ranks, average=True)
        for step in range(3):
            results = local(arrays(step, ranks, (70, 71)), key="w")
        made.add((results[0].tobytes(), *(each.tobytes() for each in residuals(local))))
    assert len(made) == 1


# --- threshold ---


@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
def test_the_sum_is_the_exact_multiple_that_the_ranks_sent(schedule, ranks):
    """Integers in [-P, P], times tau with one rounding: nothing is thresholded again on the way."""
    tau = np.float32(0.7)
    for size in (1, ranks + 1, 9001):
        values = arrays(5, ranks, (size,))
        local = LocalAllreduce(f"{schedule}/threshold(tau=0.7)/ef", ranks)
        results = local(copies(values), key="w")
        count = sum((each >= tau).astype(np.int32) - (each <= -tau) for each in values)
        assert same_bits(results[0], count.astype(np.float32) * tau)
        for value, residual in zip(values, residuals(local), strict=True):
            np.testing.assert_array_equal(residual, value - np.where(np.abs(value) >= tau, np.copysign(tau, value), 0))


@pytest.mark.slow  # a thousand steps of eight ranks
@two_schedules
def test_a_constant_gradient_leaves_a_residual_below_twice_the_threshold(schedule):
    """|g| < tau: 1000 steps, 8 ranks; what has arrived after them is the sum of the gradients less the residuals."""
    ranks, tau = 8, 1.0
    local = LocalAllreduce(f"{schedule}/threshold(tau=1.0)/ef", ranks)
    slope = np.linspace(-0.999, 0.999, 37)
    gradients = [(slope * (0.5 + rank / 15)).astype(np.float32) for rank in range(ranks)]
    arrived, most = np.zeros(37), 0.0
    for _ in range(1000):
        arrived += local(copies(gradients), key="w")[0]
        most = max(most, *(np.abs(residual).max() for residual in residuals(local)))
    assert most < tau * (1 + 1e-5)
    left = 1000 * sum(each.astype(np.float64) for each in gradients) - arrived
    np.testing.assert_allclose(left, sum(each.astype(np.float64) for each in residuals(local)), atol=2e-2)


@every_schedule
def test_without_feedback_what_is_below_the_threshold_is_lost(schedule):
    local = LocalAllreduce(f"{schedule}/threshold(tau=1.0)", 3)
    for _ in range(5):
        assert not local([np.full(50, 0.9, np.float32) for _ in range(3)], key="w")[0].any()


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 40])
@every_schedule
def test_sums_never_exceed_the_dense_form_of_their_integers(schedule, ranks):
    """Every rank sends every value with one sign: the largest sums there are."""
    size = 4096 * 3
    local = LocalAllreduce(f"{schedule}/threshold(tau=1)", ranks)
    result = local([np.full(size, 5, np.float32) for _ in range(ranks)])[0]
    assert (result == ranks).all()
    width = int(np.ceil(np.log2(2 * ranks + 1)))
    plan = local.plan(0, Buffer(np.zeros(size, np.float32)))
    for piece in (piece for lane in plan.pieces for piece in lane):
        sizes = [found.size for found in piece.regions]
        tiles = sum(-(-size // 4096) for size in sizes)
        assert piece.bound <= 4 * len(sizes) + 4 * tiles + sum(sizes) * width / 8


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_a_sum_of_large_thresholds_that_leaves_float32_names_no_rank(schedule, ranks):
    local = LocalAllreduce(f"{schedule}/threshold(tau=3e38)/ef", ranks)
    values = [np.full(50, 0.5, np.float32) for _ in range(ranks)]
    for each in values[:2]:
        each[17:] = 3.3e38
    with pytest.raises(NonFiniteError) as caught:
        local(values, key="w")
    assert caught.value.rank is None


# --- terngrad with a shared scale ---


def in_floats(values, clip, step=0, key="w", seed=0) -> np.ndarray:
    """The sum of the ranks' ternary values in float32, which is exact, times the shared scale; and the residuals."""
    s = max(PARTICULARS["terngrad"].scale(each, clip) for each in values)
    inverse = np.float32(1) / s
    while inverse * s < 1:
        inverse = np.nextafter(inverse, np.float32(np.inf))
    total, lost = np.zeros(values[0].size, np.float32), []
    for rank, v in enumerate(values):
        random = np.empty(v.size, np.uint16)
        _kernels.random16(_kernels.Stream(hash64(seed, key, hash64(*range(len(values)))), 0, rank, step), 0, random)
        up = random.astype(np.float32) + np.float32(0.5) < np.abs(v) * inverse * np.float32(65536)
        ternary = np.where(up, np.copysign(np.float32(1), v), np.float32(0))
        total += ternary
        lost.append(v - ternary * s)
    return total * s, lost


@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("clip", [0, 2.5, 0.5])
@pytest.mark.parametrize("feedback", [False, True])
def test_integer_sums_are_those_of_floats_bit_for_bit_on_every_schedule(schedule, ranks, clip, feedback):
    for size in (1, ranks, 257, 1000):
        values = arrays(6, ranks, (size,))
        local = LocalAllreduce(f"{schedule}/terngrad(clip={clip}){'/ef' * feedback}", ranks)
        results = local(copies(values), key="w")
        expected, lost = in_floats(values, min(clip or 1, 1) if feedback else clip)
        assert all(same_bits(each, expected) for each in results)
        for mine, stated in zip(residuals(local) if feedback else [], lost, strict=feedback):
            np.testing.assert_array_equal(mine, stated)


@pytest.mark.slow  # 1500 sums
@two_schedules
def test_the_variance_of_a_shared_sum_is_that_of_one_rounding_of_each_rank(schedule):
    ranks, size, trials = 4, 64, 1500
    values = arrays(9, ranks, (size,))
    s = float(max(np.abs(each).max() for each in values))
    stated = sum(np.abs(each) * (s - np.abs(each)) for each in values).sum()
    local = LocalAllreduce(f"{schedule}/terngrad(clip=0)", ranks)
    exact = sum(each.astype(np.float64) for each in values)
    wrong = np.array([local(copies(values), key="w")[0] - exact for _ in range(trials)])
    per_trial = (wrong**2).sum(1)
    assert abs(per_trial.mean() - stated) <= 7 * per_trial.std() / np.sqrt(trials)


@every_schedule
@pytest.mark.parametrize("clip", [0.5, 2.5])
def test_what_is_clipped_stays_in_the_residual_and_comes_later(schedule, clip):
    local = LocalAllreduce(f"{schedule}/terngrad(clip={clip})/ef", 3)
    gradients, arrived = arrays(1, 3, (300,)), 0
    for _ in range(200):
        before = residuals(local)
        results = local(copies(gradients), key="w")
        same_everywhere(results)
        nothing_lost(local, gradients, before, results)
        arrived = arrived + results[0].astype(np.float64)
    mean, exact = arrived / 200, sum(each.astype(np.float64) for each in gradients)
    assert np.abs(mean - exact).max() < 0.3 if clip == 2.5 else np.corrcoef(mean, exact)[0, 1] > 0.9


@every_schedule
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("clip", [0, 2.5])
def test_one_rank_that_is_not_finite_is_named_though_the_scale_was_agreed_without_it(schedule, value, clip):
    local = LocalAllreduce(f"{schedule}/terngrad(clip={clip})/ef", 4)
    local(arrays(1, 4, (50,)), key="w")
    before = residuals(local)
    for rank in range(4):
        values = arrays(2, 4, (50,))
        values[rank][[13, 40]] = value
        with pytest.raises(NonFiniteError) as caught:
            local(values, key="w")
        assert (caught.value.rank, caught.value.index) == (rank, 13)
        np.testing.assert_array_equal(residuals(local), before)

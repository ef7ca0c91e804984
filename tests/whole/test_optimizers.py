"""The recipes of docs/optimizers.md against the published algorithms, written out, on several ranks."""

import numpy as np
import pytest

from gqallreduce.runtime.local import LocalAllreduce

RANKS, SIZE, K, STEPS = 3, 40, 4, 30
SCHEMES = ("allgather", "direct", "recursive_doubling")
every_schedule = pytest.mark.parametrize("schedule", SCHEMES)


def gradients(step):
    return [np.random.default_rng([step, rank]).standard_normal(SIZE).astype(np.float32) for rank in range(RANKS)]


def top(v):
    """C(v): the K largest values."""
    sent = np.zeros_like(v)
    places = np.argsort(-np.abs(v), kind="stable")[:K]
    sent[places] = v[places]
    return sent


def new(schedule, codec=f"topk(k={K}, sums=union)"):
    local = LocalAllreduce(f"{schedule}/{codec}/ef", RANKS)
    return local, [np.zeros(SIZE, np.float32) for _ in range(RANKS)]


def residuals(local):
    return [memory.residual("w").copy() for memory in local.memory]


@every_schedule
def test_momentum_correction_and_factor_masking(schedule):
    """Lin et al., ICLR 2018, algorithm 2: u = m u + g, v = v + u, send top-k of v, and clear u and v there."""
    local, u = new(schedule)
    _, plain_u = new(schedule)
    _, plain_v = new(schedule)
    for step in range(STEPS):
        u = [np.float32(0.9) * each + g for each, g in zip(u, gradients(step), strict=True)]
        result, *_ = local([each.copy() for each in u], key="w")
        for each, residual in zip(u, residuals(local), strict=True):
            each[residual == 0] = 0
        expected = np.zeros(SIZE, np.float32)
        for rank, g in enumerate(gradients(step)):
            plain_u[rank] = np.float32(0.9) * plain_u[rank] + g
            plain_v[rank] = plain_v[rank] + plain_u[rank]
            sent = top(plain_v[rank])
            expected += sent
            plain_u[rank][sent != 0] = plain_v[rank][sent != 0] = 0
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(u, plain_u, rtol=1e-5, atol=1e-5)


@every_schedule
def test_ef21_is_feedback_on_differences(schedule):
    """Richtarik et al., NeurIPS 2021, algorithm 2: c = C(g - h), h = h + c, H = H + the sum of c."""
    local, before = new(schedule)
    _, h = new(schedule)
    total = estimate = np.zeros(SIZE, np.float32)
    for step in range(STEPS):
        given = gradients(step)
        result, *_ = local([g - old for g, old in zip(given, before, strict=True)], key="w")
        total, before = total + result, given
        sent = [top(g - each) for g, each in zip(given, h, strict=True)]
        h = [each + c for each, c in zip(h, sent, strict=True)]
        estimate = estimate + sum(sent)
        np.testing.assert_allclose(total, estimate, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose([g - e for g, e in zip(given, residuals(local), strict=True)], h, atol=1e-4)


@every_schedule
@pytest.mark.parametrize("b", [0.25, 1.0])
def test_weighted_feedback(schedule, b):
    """z = g + b r, send C(z), r = (1 - b) r + z - C(z)."""
    local, e = new(schedule)
    _, r = new(schedule)
    _, plain = new(schedule)
    for step in range(STEPS):
        given = gradients(step)
        result, *_ = local(
            [g + np.float32(b) * mine - kept for g, mine, kept in zip(given, r, e, strict=True)], key="w"
        )
        e = residuals(local)
        r = [np.float32(1 - b) * mine + kept for mine, kept in zip(r, e, strict=True)]
        z = [g + np.float32(b) * each for g, each in zip(given, plain, strict=True)]
        plain = [np.float32(1 - b) * each + v - top(v) for each, v in zip(plain, z, strict=True)]
        np.testing.assert_allclose(result, sum(map(top, z)), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(r, plain, rtol=1e-4, atol=1e-4)


def test_nothing_is_lost_by_a_rate_inside_of_the_memory():
    """The weights less the mean of what waits are those of exact sums of the same steps, whatever the rates."""
    local, _ = new("direct")
    x = exact = np.zeros(SIZE)
    for step in range(STEPS):
        rate = np.float32(1 / (2 + step))
        steps = [rate * g for g in gradients(step)]
        exact = exact - sum(each.astype(np.float64) for each in steps)
        x = x - local(steps, key="w")[0]
    np.testing.assert_allclose(x - sum(residuals(local)), exact, atol=1e-4)

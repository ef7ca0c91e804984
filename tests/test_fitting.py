"""Levels that are fitted to a distribution: golden levels, moments, optima that nothing near them beats."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from gqallreduce import _kernels
from gqallreduce.coding import fitting
from gqallreduce.coding.distributions import EDGES, Histogram, Normal

BINS = _kernels.SPREAD_BINS
COUNTS = [(2, False), (3, True), (4, False), (7, True), (8, False), (15, True), (16, False), (31, True)]
every_count = pytest.mark.parametrize(("count", "zero"), COUNTS)

# (mean, deviation, levels above zero or all of them, Psi), for levels without zero: computed apart from this code, by
# 200 sweeps over the levels in order, from quantiles
GOLDEN = [
    (0, 2**-7, [0.0034706, 0.0114758, 0.0272057, 1], 1.39815722e-5),
    (0, 2**-6.5, [0.0048456, 0.0159788, 0.0372686, 1], 2.72560326e-5),
    (0, 0.25, [0.0807175, 0.2542912, 0.4815964, 1], 7.26311819e-3),
    (
        0.01,
        0.06,
        [-1, -0.1551738, -0.0677769, -0.0140690, 0.0338521, 0.0875017, 0.1745616, 1],
        6.66343865e-4,
    ),
    (0, 0.25, [0.0361848, 0.1095878, 0.1862859, 0.2693199, 0.3636132, 0.4790218, 0.6425237, 1], 1.47105235e-3),
]


def heavy(rng, size=100_000):
    return rng.standard_normal(size) * np.exp(rng.standard_normal(size))


def histogram_of(values) -> Histogram:
    """Of values divided by the largest magnitude."""
    ratio = values / np.abs(values).max()
    return Histogram(np.histogram(ratio, EDGES)[0].astype(np.float64))


def sampled(kind: str, seed=0) -> Histogram:
    rng = np.random.default_rng(seed)
    made = {
        "normal": lambda: rng.standard_normal(100_000),
        "heavy": lambda: heavy(rng),
        "skewed": lambda: rng.exponential(size=100_000) - 0.3,
        "mostly zero": lambda: np.where(rng.random(100_000) < 0.9, 0.0, rng.standard_normal(100_000)),
        "one value": lambda: np.full(1000, 3.0),
        "two values": lambda: np.where(rng.random(1000) < 0.5, 3.0, -1.0),
    }
    return histogram_of(made[kind]())


KINDS = ["normal", "heavy", "skewed", "mostly zero", "one value", "two values"]


@pytest.mark.parametrize("solver", ["coordinate", "optimal"])
@pytest.mark.parametrize(("mean", "deviation", "levels", "psi"), GOLDEN)
def test_golden_levels(mean, deviation, levels, psi, solver):
    expected = np.array(levels if levels[0] < 0 else [*[-each for each in reversed(levels)], *levels])
    distribution = Normal(mean, deviation)
    found = fitting.fit(distribution, expected.size, False, solver)
    assert fitting.objective(distribution, expected) == pytest.approx(psi, rel=1e-6)
    assert fitting.objective(distribution, found) == pytest.approx(psi, rel=1e-6)
    np.testing.assert_allclose(found, expected, atol=2e-3 * deviation)


def test_a_golden_step():
    found = fitting._centre(Normal(0.01, 0.06), np.array([-0.03]), None, np.array([0.2]))
    assert found[0] == pytest.approx(0.0577053327, abs=1e-9)


def test_the_levels_above_zero_are_those_of_magnitudes():
    """The optimum without a level at zero satisfies the condition for the inner cell [-l1, l1] of a symmetric grid."""
    distribution = Normal(0, 0.25)
    found = fitting.fit(distribution, 8, False)
    _, _, _, _, first, second, _, _ = found
    at = 2 * distribution.moments(np.array([first, second]))[:2]  # of |r|
    assert 2 * first * at[0, 0] == pytest.approx(second * (at[0, 1] - at[0, 0]) - (at[1, 1] - at[1, 0]), rel=1e-3)


def quadrature(distribution, x, power, density):
    grid = np.linspace(0, x, 200_001)
    return np.trapezoid(grid**power * density(grid), grid)


def test_moments_of_the_normal_distribution():
    mean, deviation = 0.2, 0.4
    distribution = Normal(mean, deviation)
    whole = 0.97589997  # of it lies between -1 and 1: Phi(2) - Phi(-3)

    def density(r):
        return np.exp(-0.5 * ((r - mean) / deviation) ** 2) / (np.sqrt(2 * np.pi) * deviation * whole)

    for x in (-1, -0.3, 0.5, 1):
        expected = [quadrature(distribution, x, power, density) for power in range(3)]
        np.testing.assert_allclose(distribution.moments(x), expected, rtol=1e-6)
    for mass in distribution.moments(np.array([-0.9, 0.1, 0.7]))[0]:
        assert distribution.moments(distribution.quantile(mass, -1.0, 1.0))[0] == pytest.approx(mass, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_a_histogram(kind):
    """Those of as many values spread evenly over each bin."""
    rng = np.random.default_rng(3)
    weight = rng.random(BINS) if kind == "normal" else np.diff(sampled(kind).moments(EDGES)[0])
    distribution = Histogram(weight)
    inner = (EDGES[:-1, None] + np.diff(EDGES)[:, None] * (np.arange(50) + 0.5) / 50).ravel()
    mass = np.repeat(weight / weight.sum() / 50, 50)
    for edge in (-1.0, EDGES[100], 0.0, EDGES[500], 1.0):
        between = (inner > min(edge, 0)) & (inner < max(edge, 0))
        expected = [np.sign(edge) * (inner[between] ** power * mass[between]).sum() for power in range(3)]
        np.testing.assert_allclose(distribution.moments(edge), expected, rtol=1e-3, atol=1e-12)
    x = np.array([0.3, -0.7])
    found = distribution.quantile(distribution.moments(x)[0], -1.0, 1.0)
    np.testing.assert_allclose(distribution.moments(found)[0], distribution.moments(x)[0], atol=1e-12)


@every_count
@pytest.mark.parametrize("solver", fitting.SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_levels_ascend_from_minus_one_to_one(kind, solver, count, zero):
    found = fitting.fit(sampled(kind), count, zero, solver)
    assert found.size == count
    assert (found[0], found[-1]) == (-1, 1)
    assert (np.diff(found) > 0).all()
    assert not zero or found[count // 2] == 0


@every_count
@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_is_not_beaten(kind, count, zero):
    """By another solver, by equal or exponential levels, or by what lies near it, to a thousandth."""
    distribution = sampled(kind)
    optimal = fitting.fit(distribution, count, zero)
    least = fitting.objective(distribution, optimal) * (1 - 1e-3) - 1e-15
    for solver in ("coordinate", "gradient"):
        assert fitting.objective(distribution, fitting.fit(distribution, count, zero, solver)) >= least
    assert fitting.objective(distribution, np.linspace(-1, 1, count)) >= least
    assert fitting.objective(distribution, fitting.fit_multiplier(distribution, count, zero)) >= least
    rng = np.random.default_rng(1)
    for _ in range(200):
        moved = optimal[1:-1] + rng.standard_normal(count - 2) * 10.0 ** rng.uniform(-5, -1) * np.abs(optimal[1:-1])
        levels = np.sort(np.concatenate([[-1], np.clip(moved, -1, 1), [1]]))
        assert fitting.objective(distribution, levels) >= least


@every_count
@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_falls_with_every_sweep(kind, count, zero):
    distribution = sampled(kind)
    for levels in fitting._starts(distribution, count, zero):
        inner = [each for each in range(1, count - 1) if not zero or each != count // 2]
        last = fitting.objective(distribution, levels)
        for _ in range(5):
            for half in (1, 0):
                which = np.array([each for each in inner if each % 2 == half], int)
                if not which.size:
                    continue
                moved = fitting._centre(distribution, levels[which - 1], levels[which], levels[which + 1])
                levels[which] = moved
                now = fitting.objective(distribution, levels)
                assert now <= last * (1 + 1e-6) + 1e-15
                last = now


def test_a_histogram_fits_heavy_tails_better_than_a_normal_distribution():
    """Buckets of a lognormal scale, by the Euclidean norm: a variance of 0.652 against 2.65 of their square norm."""
    rng = np.random.default_rng(5)
    buckets = heavy(rng, 24 * 8192).reshape(24, 8192)
    norms = np.sqrt((buckets**2).sum(1))
    weight = np.zeros(BINS)
    for bucket, norm in zip(buckets, norms, strict=True):
        weight += np.histogram(bucket / norm, EDGES)[0] * norm**2
    distribution = Histogram(weight)
    by_histogram = fitting.objective(distribution, fitting.fit(distribution, 8, False))
    by_normal = fitting.objective(distribution, fitting.fit(distribution.normal(), 8, False))
    assert by_histogram < by_normal / 2.5
    same = sampled("normal")
    close = [fitting.objective(same, fitting.fit(each, 8, False)) for each in (same, same.normal())]
    assert close[0] == pytest.approx(close[1], rel=0.05)


@pytest.mark.parametrize("zero", [False, True])
def test_the_objective_of_a_multiplier_counts_the_cells_beside_zero(zero):
    """Its derivative is the published one, and zero at the optimum."""
    mean, deviation, s = 0.0, 2.0**-7, 3
    distribution, count = Normal(mean, deviation), 2 * s + 2 + zero

    def cost(p):
        return fitting.objective(distribution, fitting.multiplied(count, zero, p))

    def derivative(p):
        """Of half of the objective: this distribution is symmetric."""
        powers = p ** np.arange(s + 1)
        mass, first, _ = distribution.moments(powers)
        inner = s * p ** (s - 1) * first[s] if zero else 2 * s * p ** (2 * s - 1) * mass[s]
        total = inner
        for j in range(s):
            between = mass[j] - mass[j + 1]
            factor = (j * p ** (j - 1) if j else 0) + (j + 1) * p**j
            total += factor * (first[j] - first[j + 1]) - (2 * j + 1) * p ** (2 * j) * between
        return total

    for p in (0.1, 0.13, 0.3, 0.6):
        assert (cost(p + 1e-6) - cost(p - 1e-6)) / 4e-6 == pytest.approx(derivative(p), rel=1e-4, abs=1e-10)
    found = fitting.fit_multiplier(distribution, count, zero)[-2]
    assert abs(derivative(found)) < 1e-6 * derivative(2 * found)
    if not zero:
        assert found == pytest.approx(0.13, abs=0.005)  # the published choice, without the inner cell, is 0.2225
        assert cost(found) == pytest.approx(3.6e-5, rel=0.02)
        assert cost(0.2225) == pytest.approx(9.4e-5, rel=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_a_multiplier_is_found_where_there_are_several_minima(seed):
    """Of few values that differ much: no multiplier of 3000 is better by more than a hundredth."""
    rng = np.random.default_rng(seed)
    weight = np.zeros(BINS)
    weight[rng.integers(0, BINS, 6)] = rng.random(6) ** 10
    distribution, count = Histogram(weight), (7, 15)[seed % 2]
    found = fitting.objective(distribution, fitting.fit_multiplier(distribution, count, True))
    tried = np.linspace(0.001, 0.999, 3000)
    assert found <= 1.01 * min(fitting.objective(distribution, fitting.multiplied(count, True, p)) for p in tried)


@pytest.mark.parametrize(("mean", "deviation"), [(0, 0.25), (0.5, 1e-4), (-0.9, 2.0**-12), (0.3, 2.0), (0, 2.0**-20)])
def test_quantiles_of_the_normal_distribution(mean, deviation):
    distribution = Normal(mean, deviation)
    first, last = distribution.moments(np.array([-1.0, 1.0]))[0]
    masses = first + (last - first) * np.array([0.001, 0.1, 0.3, 0.5, 0.8, 0.999])
    found = distribution.moments(distribution.quantile(masses, -1.0, 1.0))[0]
    np.testing.assert_allclose(found, masses, atol=1e-4)  # 3e-8 in x, where all values lie within 1e-4


@examples(100)
@given(st.integers(0, 2**32 - 1), st.sampled_from([*COUNTS, (255, True), (256, False)]), st.booleans())
def test_whatever_was_counted_gives_levels_that_a_codec_takes(seed, form, sparse):
    """Weights of any size, in a few bins only or in all."""
    rng = np.random.default_rng(seed)
    weight = rng.random(BINS) * 10.0 ** rng.uniform(-200, 200)
    if sparse:
        weight[rng.random(BINS) < 0.99] = 0
        weight[rng.integers(BINS)] = 1e-300
    count, zero = form
    for distribution in (Histogram(weight), Histogram(weight).normal()):
        for found in (fitting.fit(distribution, *form, "gradient"), fitting.fit_multiplier(distribution, *form)):
            assert (np.diff(found) > 0).all()
            assert (found[0], found[-1]) == (-1, 1)
            assert not zero or found[count // 2] == 0


def test_cube_roots():
    x = np.array([0, 1, 8, 27, 0.3, 1e-300, 5e-324, 1e300, 0.5, 4 - 1e-9])
    np.testing.assert_allclose(fitting._cube_root(x), np.cbrt(x), rtol=1e-15)

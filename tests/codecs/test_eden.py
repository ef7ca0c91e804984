"""Particulars of eden and drive: levels, scale, error, bias; and of rotations."""

import itertools

import levelled
import numpy as np
import pytest
from contract import cuts, decode, encode, region, sampled, vector

from gqallreduce import Scheme, _kernels
from gqallreduce.coding.layout import Grid

VARIANTS = ["eden(bits=1, bucket=33)", "eden(bits=3, bucket=100)", "eden(bits=2, bucket=64)"]
WHOLE = VARIANTS[1:2]
# 1 / (1 - D) - 1, D the distortion of the levels (EDEN, table 1; D: Max 1960, table I)
ERRORS = {1: 0.5708, 2: 0.1331, 3: 0.03578, 4: 0.009592}
LEAST = 32  # values that are rotated


def norms(codec, v, found) -> np.ndarray:
    """Per element, the norm of its bucket; zero where values are sent as they are."""
    made, v = np.zeros(v.size), v.astype(np.float64)
    for begin, end in itertools.pairwise(cuts(found)):
        made[begin:end] = np.linalg.norm(v[begin:end]) * (end - begin >= LEAST)
    return made


def variance(codec, v, found) -> np.ndarray:
    return ERRORS[codec.bits] * norms(codec, v, found) ** 2 / levelled.heights(found)


def spread(codec, v, found) -> np.ndarray:
    """No error is larger: it is at right angles to v, and what is decoded is at most so long."""
    return 2 * norms(codec, v, found)


def eden(**options):
    return Scheme.parse("eden").codec.make(options)


def levels_of(bits: int) -> np.ndarray:
    """Those above zero, from what a bucket of normal values decodes to, rotated again."""
    codec, n = eden(bits=bits, bucket=4096), 4096
    found = region(codec, (Grid(33), 0, n, n))
    v = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    wire, _ = encode(codec, v, None, found)
    key = int(wire[:8].view(np.uint64)[0])
    rotated = decode(codec, wire, found)
    _kernels.rotate(rotated, rotated, 0, 4096, key, 2)
    return rotated / wire[8:12].view(np.float32)[0]


@pytest.mark.parametrize("bits", ERRORS)
def test_the_levels_are_best_for_normal_values(bits):
    """Lloyd's conditions: boundaries half-way, each level the mean of what becomes it."""
    from scipy.stats import norm

    found = np.unique(np.round(levels_of(bits), 4))
    assert found.size == 2**bits
    np.testing.assert_allclose(found, -found[::-1], atol=1e-4)
    edges = np.concatenate([[-np.inf], (found[1:] + found[:-1]) / 2, [np.inf]])
    means = (norm.pdf(edges[:-1]) - norm.pdf(edges[1:])) / np.diff(norm.cdf(edges))
    np.testing.assert_allclose(found, means, atol=3e-4)
    distortion = 1 - (np.diff(norm.cdf(edges)) * found**2).sum()
    assert 1 / (1 - distortion) - 1 == pytest.approx(ERRORS[bits], rel=1e-3)


SHAPES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "lognormal": lambda rng, n: np.exp(2 * rng.standard_normal(n)),
    "1-sparse": lambda rng, n: np.arange(n) == n // 3,
    "2-sparse": lambda rng, n: np.arange(n) < 2,
    "3-sparse": lambda rng, n: np.arange(n) % (n // 3) == 1,
    "both ends": lambda rng, n: np.where(np.arange(n) == 0, 1, 0.1 * (np.arange(n) == n - 1)),
    "unequal halves": lambda rng, n: rng.standard_normal(n) * np.where(np.arange(n) < n // 2, 1, 0.1),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("bits", "size"),
    [
        (1, 32),
        (1, 100),
        (1, 1024),
        (2, 300),
        (3, 48),
        (3, 256),
        (4, 64),
        (4, 1024),
        (1, 255),
        (1, 1023),
        (2, 127),
        (4, 500),
    ],
)
def test_the_error_is_as_stated_and_there_is_no_bias(shape, bits, size):
    """The mean of T outcomes lies off by chance alone: |mean - v|^2 is about the error over T.

    Both sums are of many independent terms; 7 standard deviations, as measured, and 2 percent of |v| of bias.
    """
    codec, trials = eden(bits=bits, bucket=size), 2000
    found = region(codec, (Grid(33), 0, size, size))
    v = SHAPES[shape](np.random.default_rng(size), size).astype(np.float32)
    squares = float(np.square(v, dtype=np.float64).sum())
    got = sampled(codec, v, found, trials)
    per_trial = ((got - v) ** 2).sum(1) / squares
    allowed = 7 * per_trial.std() / np.sqrt(trials)
    low = 0.93 if size < 256 else 0.98  # short stretches lose a little less
    low *= size & (size - 1) == 0  # else what is left is exact
    assert low * ERRORS[bits] - allowed <= per_trial.mean() <= ERRORS[bits] * 1.02 + allowed
    first, second = got[::2].mean(0) - v, got[1::2].mean(0) - v
    bias = first @ second / squares  # without the part that is chance
    scatter = np.sqrt(per_trial.mean() ** 2 / (trials / 2) ** 2 / size) + 2 * 0.02 * np.sqrt(per_trial.mean() / trials)
    assert bias <= 0.02**2 + 7 * scatter


def test_one_round_would_be_biased_on_sparse_values():
    """Why there are two: one value of 1024 rotated once has one magnitude everywhere."""
    v = np.zeros(1024, np.float32)
    v[5] = 1
    once, twice = np.empty_like(v), np.empty_like(v)
    _kernels.rotate(v, once, 0, 1024, 77, 1)
    _kernels.rotate(v, twice, 0, 1024, 77, 2)
    assert np.unique(np.abs(once)).size == 1
    assert 0.4 < np.abs(twice).std() * 32 < 0.8  # sqrt(1 - 2 / pi) = 0.603 of a normal distribution


@pytest.mark.parametrize("size", [1, 2, 31])
def test_few_values_are_exact(size):
    codec = eden(bits=1, bucket=64)
    found = region(codec, (Grid(33), 64, size, 200))
    v = vector(codec, 1, size)
    wire, residual = encode(codec, v, None, found)
    assert wire.size == 8 + 4 * size
    np.testing.assert_array_equal(decode(codec, wire, found), v)
    assert not residual.any()


def test_zeros_stay_zeros_and_tiny_values_are_kept():
    codec = eden(bits=4, bucket=64)
    found = region(codec, (Grid(33), 0, 64, 64))
    assert not decode(codec, encode(codec, np.zeros(64, np.float32), None, found)[0], found).any()
    for scale in (1e-44, 1e-39, 1e-30, 1e30):
        v = (np.random.default_rng(1).standard_normal(64) * scale).astype(np.float32)
        got = decode(codec, encode(codec, v, None, found)[0], found).astype(np.float64)
        assert np.linalg.norm(got - v) <= 0.15 * np.linalg.norm(v.astype(np.float64)) + 64 * 1.5e-45


def test_a_norm_that_may_decode_beyond_float32_is_refused():
    codec = eden(bits=2, bucket=64)
    found = region(codec, (Grid(33), 0, 64, 64))
    for value, sent in ((1e36, True), (3e37, False)):
        made = encode(codec, np.full(64, value, np.float32), None, found)[0]
        assert isinstance(made, np.ndarray) == sent


def test_drive_is_eden_with_one_bit():
    v = vector(eden(), 3, 3000)
    one, other = Scheme.parse("drive(bucket=512)"), Scheme.parse("eden(bits=1, bucket=512)")
    assert one.encode(v, step=3)[32:] == other.encode(v, step=3)[32:]  # behind the header


def test_ranks_rotate_each_in_their_own_way():
    codec = eden(bits=1, bucket=256)
    found, v = region(codec, (Grid(33), 0, 256, 256)), vector(eden(), 1, 256)
    errors = [
        decode(codec, encode(codec, v, None, found, _kernels.Stream(1, 2, rank, 3))[0], found) - v
        for rank in range(400)
    ]
    errors = np.array(errors, np.float64) / np.linalg.norm(v)
    between = (errors[:-1] * errors[1:]).sum(1)
    assert abs(between.mean()) <= 7 * between.std() / np.sqrt(between.size)


@pytest.mark.parametrize(
    "text",
    ["eden(bits=0)", "eden(bits=5)", "eden(bits=2.0)", "eden(bucket=0)", "eden(bucket=2000000)", "drive(bits=1)"],
)
def test_options_out_of_range_are_refused(text):
    with pytest.raises(ValueError, match=text.partition("(")[0]):
        Scheme.parse(text)

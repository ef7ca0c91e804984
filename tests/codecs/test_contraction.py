"""Codecs whose errors are kept and may be large: how much a bucket's scale is made smaller, and the bound omega."""

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
from contract import KINDS, PLACES, cuts, decode, encode, region, vector
from schemes import CODEC

from gqallreduce import Scheme, _kernels
from gqallreduce.coding.integers import IntegerCodec
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.registry import CODECS
from gqallreduce.runtime.local import LocalAllreduce

# terngrad and thc agree their scale before they round: they have a section of their own
CONTRACTED = {name: codec for name, codec in CODEC.items() if codec.contracted and not isinstance(codec, IntegerCodec)}
every_contracted = pytest.mark.parametrize("codec", CONTRACTED.values(), ids=CONTRACTED)


def bound(text):
    return Scheme.parse(text).codec.bind(Form((1000,), "C", "float32"))


def buckets(found, *arrays):
    for begin, end in itertools.pairwise(cuts(found)):
        yield [array[begin:end].astype(np.float64) for array in arrays]


@every_contracted
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "denormal"])
def test_no_error_of_a_bucket_is_larger_than_its_values(codec, place, kind):
    found = region(codec, place)
    v = vector(codec, 1, found.size, kind)
    for step in range(5):
        wire, lost = encode(codec, v, None, found, _kernels.Stream(1, 0, 0, step))
        if isinstance(wire, int):
            continue
        for values, error in buckets(found, v, lost):
            assert np.linalg.norm(error) <= np.linalg.norm(values) * (1 + 1e-6)


@every_contracted
def test_no_other_scale_makes_the_error_smaller(codec):
    found = region(codec, (Grid(33), 0, 3000, 3000))
    v = vector(codec, 3, found.size)
    sent = decode(codec, encode(codec, v, None, found)[0], found)
    for values, q in buckets(found, v, sent):
        if values.size < 32:  # EDEN sends these as they are
            continue
        along, squares = values @ q, q @ q
        power = isinstance(codec, LevelCodec) and codec.scale != "norm"
        # The least error is at a scale as large, or was at a larger one; powers of two are the nearest to that.
        assert along >= squares * (3 / 4 if power else 1) * (1 - 1e-5)
        if isinstance(codec, LevelCodec) and not codec.nearest:
            continue
        assert along == pytest.approx(squares, rel=1e-5)


@pytest.mark.parametrize("bits", [2, 3])
def test_a_scale_is_only_ever_made_smaller_and_its_codes_stay(bits):
    """Of three bits chance may round most values towards zero: then a larger scale would have the least error."""
    plain, contracted = (bound(f"qsgd(bits={bits}, bucket=300){feedback}") for feedback in ("", "/ef"))
    assert contracted.contracted
    found, larger = region(plain, (Grid(33), 0, 9000, 9000)), 0
    few = np.tile(np.r_[1, 0.6, 0.5, np.zeros(297)], 30).astype(np.float32)
    for v in [few, *(vector(plain, 5, found.size, kind) for kind in KINDS)]:
        messages = [encode(codec, v, None, found)[0] for codec in (plain, contracted)]
        if isinstance(messages[0], int):
            continue
        before, after = (wire.reshape(30, -1) for wire in messages)
        assert np.array_equal(before[:, 4:], after[:, 4:])
        scale, smaller = (wire[:, :4].copy().view(np.float32)[:, 0].astype(np.float64) for wire in (before, after))
        q = decode(plain, before.reshape(-1), found).astype(np.float64).reshape(30, 300)
        along, squares = (v.reshape(30, 300) * q).sum(1), (q * q).sum(1)
        larger += np.count_nonzero(along > squares)
        factor = np.clip(along / np.where(squares > 0, squares, 1), 0, 1)
        factor[along >= squares] = 1
        np.testing.assert_allclose(smaller, factor * scale, rtol=1e-6, atol=2e-45)
    assert larger > 0 or bits == 2


@pytest.mark.parametrize(
    "text", ["qsgd(bits=2)", "eden(bits=1)", "alq(bits=2)", "qsgd(bits=2, rotate=True, coding=rans)"]
)
def test_messages_with_and_without_feedback_are_of_one_format(text):
    x = np.random.default_rng(1).standard_normal(3000)
    plain, kept = Scheme.parse(text), Scheme.parse(f"{text}/ef")
    assert kept.codec.contracted
    assert (kept.codec.unbiased, plain.codec.unbiased) == (False, True)
    assert plain.codec == kept.codec
    sent = [scheme.encode(x) for scheme in (plain, kept)]
    assert sent[0] != sent[1]
    for reader in (plain, kept):
        assert np.linalg.norm(reader.decode(sent[1], 3000) - x) < np.linalg.norm(reader.decode(sent[0], 3000) - x)


def test_a_copy_of_a_scheme_encodes_as_the_scheme():
    scheme, x = Scheme.parse("qsgd(bits=2)/ef"), np.arange(-50, 50)
    for twin in (copy.copy(scheme), copy.deepcopy(scheme), pickle.loads(pickle.dumps(scheme))):
        assert twin.encode(x) == scheme.encode(x)


def test_codecs_with_a_small_error_stay_as_they_are():
    for text in ("qsgd(bits=4)", "qsgd(bits=8)", "natural", "natural(bits=4)", "mx(format=fp4)", "raw", "onebit"):
        assert not Scheme.parse(f"{text}/ef").codec.contracted


@pytest.mark.parametrize("options", ["bits=2", "bits=3", "bits=2, rounding=nearest", "bits=2, rotate=True"])
def test_a_scale_that_is_a_power_of_two_is_halved_until_it_is_nearest_to_the_best(options):
    plain, made = (bound(f"natural({options}, bucket=300){feedback}") for feedback in ("", "/ef"))
    if not made.contracted:
        made = made.knowing(contracted=True)
        vars(made).pop("levels", None)
    found, halved = region(plain, (Grid(33), 0, 9000, 9000)), 0
    few = np.tile(np.r_[1, 0.6, 0.5, np.zeros(297)], 30).astype(np.float32)
    for v in [few, *(vector(plain, 5, found.size, kind) for kind in KINDS)]:
        before, after = (encode(codec, v, None, found)[0] for codec in (plain, made))
        if isinstance(before, int):
            continue
        before, after = (wire[8 * ("rotate" in options) :].reshape(30, -1) for wire in (before, after))
        assert np.array_equal(before[:, 1:], after[:, 1:])
        if "rotate" in options:
            continue
        q = decode(plain, before.reshape(-1), found).astype(np.float64).reshape(30, 300)
        along, squares = (v.reshape(30, 300).astype(np.float64) * q).sum(1), (q * q).sum(1)
        best = np.divide(along, squares, out=np.ones(30), where=along < squares)
        times = before[:, 0].astype(int) - after[:, 0]
        assert ((2.0**-times <= best * 4 / 3) | (after[:, 0] == 0)).all()
        assert ((2.0**-times > best * 2 / 3) | (times == 0)).all()
        halved += times.sum()
    assert halved > 0 or "rotate" in options


@pytest.mark.parametrize(
    "text", ["qsgd(bits=2)/ef", "qsgd(bits=1, zero_level=False)/ef", "drive/ef", "natural(bits=2)/ef"]
)
def test_residuals_stay_within_a_few_times_the_values(text):
    """Of one gradient, call by call. Without the smaller scales the first two leave any bound."""
    allreduce, steps = LocalAllreduce(f"direct/{text}", 2), 100
    gradients = np.random.default_rng(2).standard_normal((2, 2048)).astype(np.float32)
    for _ in range(steps):
        allreduce([gradient.copy() for gradient in gradients], key="w")
    held = sum(memory.residual("w") for memory in allreduce.memory)
    assert np.linalg.norm(held) < 25 * np.linalg.norm(gradients.sum(0))


# --- scales that all ranks share ---


AGREED = [
    "terngrad",
    "terngrad(clip=0)",
    "terngrad(shared=False)",
    "thc(bits=2, clip=0, rotate=False)",
    "thc(bits=2, rotate=False)",
    "thc(bits=3, clip=0, rotate=False)",
    "thc(bits=2, clip=9, bucket=4096)",
]


def gradients_of(kind, n, random):
    normal = random.standard_normal(n)
    if kind == "sparse":
        return normal * (random.random(n) < 0.02)
    if kind == "one large":
        return np.where(np.arange(n) == random.integers(n), 2 * np.sqrt(n), np.sign(normal))
    return normal if kind == "normal" else random.laplace(size=n)


@pytest.mark.parametrize("text", AGREED)
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("kind", ["normal", "laplace", "sparse", "one large"])
def test_residuals_by_a_scale_of_all_ranks_stay_near_the_values(text, small, kind):
    """New values in each call, those of one rank much smaller than those of others or not. With the scale of no
    feedback, terngrad leaves the bound in 20 to 150 calls."""
    random, size, n = np.random.default_rng(3), 3, 4096
    allreduce, most = LocalAllreduce(f"ring/{text}/ef", size), 0.0
    for _ in range(150):
        gradients = [gradients_of(kind, n, random).astype(np.float32) for _ in range(size)]
        gradients[0] *= 1e-3 if small else 1
        most = max(most, *(np.linalg.norm(gradient) for gradient in gradients))
        allreduce(gradients, key="w")
    assert max(np.linalg.norm(memory.residual("w")) for memory in allreduce.memory) < 4 * most


@pytest.mark.parametrize(
    ("text", "clip"),
    [
        ("terngrad", 1.0),
        ("terngrad(clip=0)", 1.0),
        ("terngrad(clip=0.5)", 0.5),
        ("thc(bits=2)", 1.02),
        ("thc(bits=2, clip=5)", 1.02),
        ("thc(bits=3, clip=0, rotate=False)", 3.0),
        ("thc(bits=3, clip=2)", 2.0),
        ("thc(bits=8, clip=0, rotate=False)", 127.0),
    ],
)
def test_a_step_is_at_most_the_root_mean_square_where_errors_are_kept(text, clip):
    codec = Scheme.parse(f"ring/{text}/ef").codec
    assert codec == Scheme.parse(text).codec
    assert str(Scheme.parse(f"ring/{text}/ef")).endswith("/ef")
    assert not codec.unbiased
    v = np.random.default_rng(5).standard_normal(999).astype(np.float32)
    v[5] = 1000
    root = float(np.linalg.norm(v) / np.sqrt(999))
    if "rotate=False" in text or "terngrad" in text:
        sent = np.frombuffer(Scheme.parse(f"ring/{text}/ef").encode(v), np.uint8)
        unit = sent[32:36].copy().view(np.float32)[0]
        steps = getattr(codec, "steps", 1)
        assert unit == pytest.approx(min(1000.0, clip * root) / steps, rel=1e-6)
    assert codec._clip == clip


# --- omega ---


def expected_error(codec, v):
    """The squared error of rounding v, in units of the norm, to the codec's levels, by the definition."""
    found = codec.level_set()
    levels = np.unique(found.values.astype(np.float64) / found.reach)
    above = np.clip(np.searchsorted(levels, v, side="right"), 1, levels.size - 1)
    a, b = levels[above - 1], levels[above]
    return np.minimum(v - a, b - v) ** 2 if codec.nearest else (v - a) * (b - v)


LEVELLED = [
    f"{name}({options})"
    for name in ("qsgd", "nuqsgd", "natural_dithering", "alq")
    for options in (
        "bits=2",
        "bits=3, bucket=100",
        "bits=4, norm=l2",
        "bits=3, zero_level=False",
        "bits=3, zero_level=False, rounding=nearest",
        "bits=2, norm=l2, rounding=nearest",
    )
]


@pytest.mark.parametrize("text", LEVELLED)
def test_no_bucket_has_a_larger_error_than_omega_and_one_comes_near(text):
    codec, largest = Scheme.parse(text).codec, 0.0
    n, omega = codec.bucket, codec.omega
    random = np.random.default_rng(4)
    for size in np.concatenate([np.geomspace(1e-4, 1, 400), random.uniform(0, 1, 400)]):
        for share in (1.0, 0.5, 0.1, 0.02):
            many = max(1, round(share * (n - 1)))
            v = np.zeros(n)
            v[1 : 1 + many] = size
            if codec.norm == "l2":
                v /= np.linalg.norm(v)
            else:
                v[0] = 1
            largest = max(largest, expected_error(codec, v).sum() / (v @ v))
    assert largest <= omega * (1 + 1e-9)
    assert (
        largest >= (0.75 if codec.norm == "l2" else 0.9) * omega
    )  # by l2 the worst bucket has values of several sizes


@pytest.mark.parametrize(("bits", "n"), [(2, 512), (3, 512), (4, 512), (4, 8192), (8, 64)])
def test_omega_of_uniform_levels_is_known(bits, n):
    """The largest of m (x - x^2) / (s^2 + m x^2), m = n - 1, over places x in the first step; QSGD, lemma 3.1."""
    codec, s = CODECS["qsgd"](bits=bits, bucket=n), 2 ** (bits - 1) - 1
    share = s * s / (n - 1)
    x = math.sqrt(share * share + share) - share
    assert codec.omega == pytest.approx(1 / (2 * x) - 1, rel=1e-6)
    assert CODECS["qsgd"](bits=bits, bucket=n, norm="l2").omega <= min(n / s**2, math.sqrt(n) / s)


@pytest.mark.parametrize("text", ["natural", "natural(bits=8, rounding=nearest)", "mx", "mx(format=int8)", "fp8"])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_errors_of_formats_stay_below_omega(text, spread):
    codec, n = bound(text), 512
    found = region(codec, (Grid(33), 0, n, n))
    random = np.random.default_rng(5)
    for _ in range(6):
        v = (random.standard_normal(n) * np.exp(spread * random.standard_normal(n))).astype(np.float32)
        error = np.mean(
            [np.sum(encode(codec, v, None, found, _kernels.Stream(1, 0, 0, k))[1] ** 2) for k in range(200)]
        )
        assert error <= 1.3 * codec.omega * np.sum(v.astype(np.float64) ** 2)


@pytest.mark.parametrize(("bits", "bucket", "measured"), [(4, 512, 0.1814), (4, 64, 0.1326), (4, 32, 0.1291)])
def test_omega_holds_where_the_largest_value_is_no_level(bits, bucket, measured):
    codec, draws = bound(f"natural(bits={bits}, bucket={bucket})"), 2000
    found = region(codec, (Grid(33), 0, bucket, bucket))
    v = np.full(bucket, 0.01, np.float32)
    v[0] = 4 / 3
    error = np.mean([np.sum(encode(codec, v, None, found, _kernels.Stream(k, 0, 0, 0))[1] ** 2) for k in range(draws)])
    assert error / np.sum(v * v) == pytest.approx(measured, rel=0.1)
    assert 0.99 * measured < codec.omega < 1.3 * measured


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_omega_of_eden_is_what_is_measured(bits):
    codec, n = CODECS["eden"](bits=bits, bucket=1024).bind(Form((1024,), "C", "float32")), 1024
    found = region(codec, (Grid(33), 0, n, n))
    v = np.exp(2 * np.random.default_rng(6).standard_normal(n)).astype(np.float32)
    errors = [np.sum(encode(codec, v, None, found, _kernels.Stream(1, 0, 0, step))[1] ** 2) for step in range(64)]
    assert np.mean(errors) / np.sum(v * v) == pytest.approx(codec.omega, rel=0.05)

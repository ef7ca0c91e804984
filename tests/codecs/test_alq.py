"""Particulars of codecs that learn their levels: alq, alq_n, amq and amq_n."""

import gc
import weakref

import numpy as np
import pytest
from contract import decode, encode, region, scatters, vector
from levelled import spread as spread
from levelled import variance as variance

from gqallreduce import Scheme, _kernels
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import fitting
from gqallreduce.coding.distributions import Histogram
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.coding.preparing import FROM_RANK, POOLED, SUM, Parts, alone

VARIANTS = [
    "alq(bits=3, zero_level=False, norm=l2, bucket=100, solver=coordinate)",
    "alq(bits=8, bucket=64, rounding=nearest, weight=1)",
    "alq(bits=1, zero_level=False, solver=gradient, fit=normal, bucket=33, updates=(0, 1, 3), samples=1)",
    "alq(bits=3, bucket=500, coding=rans)",
]
WHOLE = [VARIANTS[0], VARIANTS[2]]
NAMES = ["alq", "alq_n", "amq", "amq_n"]
every_name = pytest.mark.parametrize("name", NAMES)


def made(name="alq", **options):
    return Scheme.parse(name).codec.make(options)


def called(codec, v, learned, *, rank=0, size=1, number=0, answer=None):
    """What one call of a key finds out of the values; `answer` gives what an Ask is answered, if not its own values."""
    cut = v.size // 2 // codec.bucket * codec.bucket
    regions = [Region(at, size, Grid(codec.bucket), v.size) for at, size in ((0, cut), (cut, v.size - cut))]
    parts = Parts(
        regions,
        lambda found: (v[found.start : found.start + found.size], None, None),
        Workspace(),
        learned=learned,
        rank=rank,
        size=size,
        number=number,
    )
    if answer is None:
        return alone(codec.prepare(parts))
    steps, given = codec.prepare(parts), None
    while True:
        try:
            ask = steps.send(given)
        except StopIteration as done:
            return done.value
        given = None if ask is None else answer(ask)


def normal(seed=0, size=4096):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@every_name
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("zero", [False, True])
def test_before_the_first_update_levels_are_powers(name, bits, zero):
    if bits == 1 and zero:
        with pytest.raises(ValueError, match="bits=1 leaves no code for a zero level"):
            made(name, bits=bits)
        return
    codec = made(name, bits=bits, zero_level=zero)
    levels = codec.levels.values[: codec.count].astype(np.float64)
    assert codec.levels.count == codec.count == 2**bits - zero
    positive = levels[levels > 0]
    np.testing.assert_array_equal(levels, [*-positive[::-1], *[0.0] * zero, *positive])
    assert positive[-1] == 1
    if bits <= 5:
        np.testing.assert_array_equal(positive, 2.0 ** np.arange(1 - len(positive), 1))
    assert positive[0] >= 2.0**-16


@every_name
@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("fit", ["histogram", "normal"])
def test_the_first_call_learns_the_levels_of_its_own_values(name, norm, fit):
    codec, v = made(name, norm=norm, fit=fit, bits=3, bucket=256), normal() * np.repeat([1, 100], 2048).astype("f4")
    found = called(codec, v, {})
    weight, table = np.zeros(_kernels.SPREAD_BINS), region(codec, (Grid(33), 0, v.size, v.size))
    _kernels.levels_spread(v, None, norm == "l2", {"alq": 2, "amq": 2}.get(name, 0), table.table, weight)
    distribution = Histogram(weight).normal() if fit == "normal" else Histogram(weight)
    solve = fitting.fit if name.startswith("alq") else fitting.fit_multiplier
    expected = solve(distribution, 7, True).astype(np.float32)
    np.testing.assert_array_equal(found.learned["levels"], expected)
    np.testing.assert_array_equal(found.codec.levels.values[:7], expected)
    assert (found.learned["calls"], found.learned["updates"], found.learned["gathered"]) == (1, 1, None)
    assert found.mark == called(codec, v, {}).mark != called(codec, v[::-1].copy() ** 3, {}).mark != 0


def test_learned_levels_lose_less_and_just_what_they_promise():
    codec, v = made(bits=4, bucket=512), normal() ** 3
    found = region(codec, (Grid(33), 0, v.size, v.size))
    learned = called(codec, v, {}).codec
    uniform = Scheme.parse("qsgd(bits=4, bucket=512)").codec.levels.values[:15]
    before, equal, after = (variance(each, v, found).sum() for each in (codec, codec.with_levels(uniform), learned))
    assert after < 0.8 * min(before, equal)
    scatters(learned, v, found, 200, after)


def test_nearest_rounding_loses_half_a_step_at_most():
    codec, v = made(bits=4, bucket=128, rounding="nearest"), normal(1)
    found = region(codec, (Grid(33), 0, v.size, v.size))
    learned = called(codec, v, {}).codec
    got = decode(learned, encode(learned, v, None, found)[0], found)
    assert (np.abs(got - v) <= spread(learned, v, found) / 2 + 1e-6).all()
    assert learned.host_only


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"updates": (0, 3), "every": 0}, {0, 3}),
        ({"updates": (), "every": 0}, set()),
        ({"updates": (2, 4), "every": 4}, {2, 4, 8, 12, 16}),
        ({"updates": [5, 0, 5], "every": 6}, {0, 5, 6, 12, 18}),
        ({"updates": 1, "every": 5}, {1, 5, 10, 15, 20}),
    ],
)
@pytest.mark.parametrize("samples", [1, 3])
def test_levels_change_at_the_calls_that_are_named(options, expected, samples):
    codec, learned = made(bits=2, bucket=64, samples=samples, **options), {}
    for call in range(16):
        v = normal(call, 500) ** (call % 3 + 1)
        known, found = codec.known(learned), called(codec, v, learned)
        before, learned = learned, found.learned
        changed = learned["updates"] > before.get("updates", 0)
        assert changed == (call in expected), call
        assert changed or learned["levels"] is before.get("levels")
        gathers = call not in expected and any(call < update < call + samples for update in expected)
        assert (learned["gathered"] is not None) == gathers, call
        assert learned["calls"] == call + 1
        assert (known is None) == (changed or gathers), call
        assert known is None or (known.learned, known.mark, known.codec) == (learned, found.mark, found.codec)


def test_codecs_of_former_levels_are_freed():
    codec, learned, seen = made(bits=2, bucket=64, updates=(0, 1, 2), every=0), {}, []
    for call in range(3):
        found = called(codec, normal(call, 500), learned)
        learned = found.learned
        seen.append(weakref.ref(found.codec))
    del found
    gc.collect()
    assert [each() is not None for each in seen] == [False, False, True]


def test_levels_are_fitted_to_the_calls_up_to_an_update():
    codec, learned = made(bits=3, bucket=64, updates=4, every=0, samples=3), {}
    weight = np.zeros(_kernels.SPREAD_BINS)
    for call in range(5):
        v = normal(call, 320) * np.float32(call + 1)
        if call >= 2:
            _kernels.levels_spread(v, None, False, 2, region(codec, (Grid(33), 0, 320, 320)).table, weight)
        learned = called(codec, v, learned).learned
    np.testing.assert_array_equal(learned["levels"], fitting.fit(Histogram(weight), 7, True).astype(np.float32))


def test_zeros_and_what_is_not_finite_are_not_fitted_to():
    """An update without a value is made up for by the next call that has some."""
    codec = made(bits=3, bucket=64, updates=0, every=0, samples=1)
    flawed = np.full(640, np.nan, np.float32)
    learned = called(codec, np.zeros(640, np.float32), {}).learned
    learned = called(codec, flawed, learned).learned
    assert (learned["calls"], learned["updates"], learned["levels"]) == (2, 0, None)
    v = normal(3, 640)
    v[:64], v[64] = 0, np.inf
    learned = called(codec, v, learned).learned
    assert (learned["updates"], learned["gathered"]) == (1, None)
    expected = called(codec, v[128:], {}).learned["levels"]
    np.testing.assert_array_equal(learned["levels"], expected)


@pytest.mark.parametrize("share", ["key", "group"])
def test_one_rank_solves_for_all(share):
    codec, v, asked = made(bits=3, bucket=64, share=share), normal(), []
    told, others = np.linspace(-1, 1, 7, dtype=np.float32), np.arange(770.0)

    def answer(ask):
        asked.append(ask)
        return told if ask.operation == FROM_RANK else ask.values + others

    for number in (5, 6):
        found = called(codec, v, {}, rank=2, size=4, number=number, answer=answer)
        np.testing.assert_array_equal(found.learned["levels"], told)
    assert [ask.operation for ask in asked] == [SUM if share == "key" else POOLED, FROM_RANK] * 2
    assert [ask.rank for ask in asked[1::2]] == ([1, 2] if share == "key" else [0, 0])
    mine = fitting.fit(Histogram(asked[0].values + others), 7, True).astype(np.float32)
    for ask in asked[1::2]:
        np.testing.assert_array_equal(ask.values, mine if ask.rank == 2 else np.zeros(7))


def test_without_a_state_nothing_is_learned():
    codec, v = made(bucket=64), normal(2)
    assert codec.prepare(Parts([], None)) is None
    scheme = Scheme.parse("alq(bucket=64)")
    np.testing.assert_array_equal(scheme.decode(scheme.encode(v), v.size), scheme.decode(scheme.encode(v), v.size))
    found = region(codec, (Grid(4096), 0, v.size, v.size))
    assert (np.abs(scheme.decode(scheme.encode(v), v.size) - v) <= spread(codec, v, found) * (1 + 1e-6)).all()


@every_name
def test_states_are_checked(name):
    codec, form = made(name, bits=2), Form((10,), "C", "float32")
    good = {"calls": 3, "updates": 1, "levels": [-1.0, 0.0, 1.0], "gathered": np.zeros(770)}
    found = codec.relearned(good, form)
    assert found["levels"].dtype == np.float32
    assert codec.relearned({**good, "updates": 0, "levels": None, "gathered": None}, form)["levels"] is None
    assert made(name, bits=2, zero_level=False).relearned({**good, "levels": [-1, -0.5, 0.25, 1]}, form)
    for wrong in (
        {"levels": [-1.0, 1.0]}, {"levels": [-1.0, 0.5, 0.25]}, {"levels": [-1.0, np.nan, 1.0]},
        {"levels": [-2.0, 0.0, 1.0]}, {"gathered": np.zeros(3)}, {"gathered": np.full(770, -1.0)},
        {"gathered": np.full(770, np.inf)}, {"updates": -1}, {"updates": 5}, {"calls": "many"}, {"levels": "many"},
        {"calls": 0}, {"calls": -5}, {"calls": 2.9}, {"calls": True}, {"calls": 10**30}, {"updates": 1.0},
        {"levels": None}, {"updates": 0}, {"levels": [-0.1, 0.0, 0.1]}, {"levels": [-1.0, 0.1, 1.0]},
        {"levels": np.array([-1, 0, 1], complex)}, {"gathered": np.full(770, 1e308)}, {"gathered": "many"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"levels|gathered|updates|calls"):
            codec.relearned({**good, **wrong}, form)
    with pytest.raises(KeyError):
        codec.relearned({"calls": 1}, form)


@every_name
@pytest.mark.parametrize(
    "options",
    [
        "bits=0", "bits=9", "bucket=0", "norm=l1", "fit=best", "updates=-1", "updates=(0, 1.5)", "updates=true",
        "updates=(True, )", "every=-1", "samples=0", "share=all", "levels=3",
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_where_they_are_written(name, options):
    with pytest.raises(ValueError, match=name):
        Scheme.parse(f"{name}({options})")


def test_options_that_only_some_have():
    for text in ("alq(solver=best)", "alq(weight=0)", "alq_n(solver=best)", "amq(weight=3)"):
        with pytest.raises(ValueError, match="expected"):
            Scheme.parse(text)
    for text in ("alq_n(weight=2)", "amq(solver=optimal)", "amq_n(weight=1)"):
        with pytest.raises(ValueError, match="has no option"):
            Scheme.parse(text)
    assert Scheme.parse("alq(updates=0)") == Scheme.parse("alq(updates=(0, 0))") != Scheme.parse("alq")


def test_vectors_of_any_kind_are_learned_from():
    codec = made(bits=3, bucket=100)
    for kind in ("denormal", "huge", "ties", "wide", "constant", "zero", "one hot"):
        v = vector(codec, 1, 1000, kind)
        learned = called(codec, v, {}).codec
        found = region(codec, (Grid(33), 0, v.size, v.size))
        message, errors = encode(learned, v / 4, None, found)  # the largest with feedback
        np.testing.assert_allclose(decode(learned, message, found) + errors, v / 4, rtol=1e-5, atol=1e-44)


@every_name
def test_rotated_values_are_learned_from_as_they_are_sent(name):
    """Rotated, lognormal values are as normal ones are: so are the levels, and the error."""
    found, errors = {}, {}
    heavy = np.exp(normal(1, 1 << 17)) * np.sign(normal(2, 1 << 17))
    for kind, v, rotate in (("normal", normal(3, 1 << 17), False), ("heavy", heavy, True), ("as it is", heavy, False)):
        codec = made(name, bits=3, bucket=1024, zero_level=False, rotate=rotate)
        learned = called(codec, v.astype(np.float32), {})
        found[kind] = learned.learned["levels"]
        errors[kind] = np.abs(found[kind] - found["normal"]).max()
    assert errors["heavy"] < 0.03
    assert errors["as it is"] > 0.12

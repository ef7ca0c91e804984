"""Particulars of randk: which values are chosen, that all sets are equally likely, and what a call does with them."""

import itertools
import math

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.codecs.randk import RandK, places
from gqallreduce.coding.indirect import ALL_ALIKE, ALONE
from gqallreduce.coding.layout import Form
from gqallreduce.hashing import hash64
from gqallreduce.registry import CODECS
from gqallreduce.runtime.local import LocalAllreduce

VARIANTS = [
    "randk(ratio=0.3, values=float16)",
    "randk(ratio=0.7)",
    "randk(ratio=0.2, shared=False)",
    "randk(k=0.5, values=float16, shared=False)",
]
WHOLE = VARIANTS[2:3]


def stream(seed=1, step=2):
    return _kernels.Stream(seed, *ALL_ALIKE, step)


def one_by_one(n, k, given):
    """Places by the definition, in Python's integers."""
    few, found = min(k, n - k), []
    for i in itertools.count():
        if len(found) == few:
            break
        bits = np.empty(4, np.uint16)
        _kernels.random16(given, 4 * i, bits)
        place = sum(int(each) << 16 * at for at, each in enumerate(bits)) * n >> 64
        if place not in found:
            found.append(place)
    return sorted(found) if few == k else sorted(set(range(n)) - set(found))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 100, 1000])
def test_places_are_those_of_the_definition(n):
    for k in {0, min(1, n), n // 100, n // 3, n // 2, n // 2 + n % 2, n - n // 4, max(0, n - 1), n}:
        for step in range(3):
            found = places(stream(step=step), n, k)
            assert found.dtype == np.int64
            assert found.tolist() == one_by_one(n, k, stream(step=step))


def test_places_of_vectors_that_no_memory_holds():
    """Also where place and number do not fit into 64 bits together."""
    for n in (2**33 + 5, 2**62 + 1):
        found = places(stream(), n, 50)
        assert len(set(found.tolist())) == 50
        assert found.tolist() == one_by_one(n, 50, stream())


@pytest.mark.parametrize("k", [1, 15, 24, 25, 300])
def test_places_of_long_vectors(k):
    """A bit for each element, or a table of what was drawn, which costs less from 1024 elements a place on."""
    for n in (1024 * 24 + 17, 1024 * 25, 10**6):
        assert places(stream(step=k), n, k).tolist() == one_by_one(n, k, stream(step=k))


def test_no_place_is_drawn_twice():
    """In a third of these draws one place at least comes again."""
    n, k = 1024 * 701, 700
    for step in range(60):
        found = places(stream(step=step), n, k)
        assert (np.diff(found) > 0).all()
    assert found.tolist() == one_by_one(n, k, stream(step=step))


def test_more_places_than_there_are_cannot_be_drawn():
    for n, k in ((0, 1), (7, 8), (2**63, 1)):
        with pytest.raises(ValueError, match="as many as there are"):
            places(stream(), n, k)


@pytest.mark.parametrize(("n", "k"), [(5, 2), (5, 3), (6, 3), (4, 1)])
def test_every_set_is_equally_likely(n, k):
    """Counts of all sets in many draws, each within Hoeffding's bound of its expectation."""
    trials, sets = 20000, math.comb(n, k)
    counts = dict.fromkeys(itertools.combinations(range(n), k), 0)
    for step in range(trials):
        counts[tuple(places(stream(step=step), n, k).tolist())] += 1
    allowed = math.sqrt(trials / 2 * math.log(2 * sets / 1e-10))
    assert all(abs(count - trials / sets) <= allowed for count in counts.values()), counts


@pytest.mark.parametrize(("ratio", "n", "k"), [(0.01, 99, 1), (0.01, 250, 2), (1, 7, 7), (1.0, 1, 1), (0.5, 0, 0)])
def test_so_many_values_are_chosen(ratio, n, k):
    assert RandK(ratio).bind(Form((n,), "C", "float32")).summed == [(CODECS["raw"](), k)]


@pytest.mark.parametrize("ratio", [0, -1, 1.1, True, "a", math.nan, None])
def test_other_ratios_are_refused(ratio):
    with pytest.raises(ValueError, match="expected a number above 0, up to 1"):
        RandK(ratio)


def test_other_values_are_refused():
    with pytest.raises(ValueError, match="expected one of raw, float16"):
        gq.Scheme.parse("randk(values=float64)")


def test_a_message_that_cannot_be_made_names_the_value():
    scheme = gq.Scheme.parse("randk(ratio=0.3, values=float16)")
    for place in places(_kernels.Stream(hash64(0, None), *ALL_ALIKE, 0), 10, 3).tolist():
        x = np.zeros(10, np.float32)
        x[place] = 1e5
        with pytest.raises(gq.NonFiniteError) as caught:
            scheme.encode(x)
        assert (caught.value.rank, caught.value.index) == (None, place)


def test_a_ratio_is_a_number_however_it_is_written():
    one, other = gq.Scheme.parse("randk(ratio=1)"), gq.Scheme.parse("randk(ratio=1.0)")
    assert (one, one.resolved()) == (other, other.resolved())
    np.testing.assert_array_equal(other.decode(one.encode([1.0, 2.0]), 2), [1, 2])


@pytest.mark.parametrize("k", [-1, 1.5, math.nan, math.inf, True, "a", None, 2**70])
def test_other_ks_are_refused(k):
    with pytest.raises(ValueError, match="expected a whole number, or one between 0 and 1"):
        RandK(k=k)
    with pytest.raises(ValueError, match="got k and ratio"):
        gq.Scheme.parse("randk(k=3, ratio=0.1)")


@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 1000])
def test_k_says_how_many(n):
    scheme = gq.Scheme.parse("randk(k=5)")
    assert scheme == gq.Scheme.parse("randk(k=5.0)")
    assert scheme.codec.ratio == 0
    assert len(scheme.encode(np.ones(n, np.float32))) == 32 + 4 * min(n, 5)


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_with_k_below_1_so_many_calls_send_one_value(shared):
    """Each place as often, on each rank; in the residual is what was not sent. Within seven standard deviations."""
    text, ranks, n, steps, k = f"direct/randk(k=0.25, shared={shared})/ef", 2, 5, 4000, 0.25
    local, total = LocalAllreduce(text, ranks, seed=1), np.zeros(n)
    sent, given = np.zeros((ranks, n)), [np.arange(1, n + 1, dtype=np.float32)] * ranks
    before = [np.zeros(n, np.float32)] * ranks
    for _ in range(steps):
        result, *_ = local([each.copy() for each in given], key="w")
        after = [memory.residual("w").copy() for memory in local.memory]
        for rank in range(ranks):
            taken = after[rank] == 0
            assert taken.sum() <= 1
            np.testing.assert_array_equal(after[rank], np.where(taken, 0, before[rank] + given[rank]))
            sent[rank] += taken
        total, before = total + result, after
        assert shared is False or np.array_equal(after[0] == 0, after[1] == 0)
    np.testing.assert_array_equal(total + sum(before), steps * sum(given))
    assert (abs(sent - steps * k / n) < 7 * np.sqrt(steps * k / n)).all()
    assert shared or not np.array_equal(sent[0], sent[1])


@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling", "halving_doubling", "allgather"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_places_of_its_own_are_drawn_by_each_rank_and_sums_are_exact(schedule, ranks):
    local, rng = (
        LocalAllreduce(f"{schedule}/randk(ratio=0.1, shared=False)/ef", ranks, seed=6),
        np.random.default_rng(4),
    )
    due = [np.zeros(300, np.float32) for _ in range(ranks)]
    for step in range(5):
        given = [rng.integers(-200, 201, 300).astype(np.float32) for _ in range(ranks)]
        results, expected = local([each.copy() for each in given], key="w"), np.zeros(300, np.float32)
        due = [each + rest for each, rest in zip(given, due, strict=True)]
        for rank in range(ranks):
            chosen = places(_kernels.Stream(hash64(6, "w", local.group), ALL_ALIKE[0], ALONE + rank, step), 300, 30)
            expected[chosen] += due[rank][chosen]
            due[rank][chosen] = 0
            np.testing.assert_array_equal(local.memory[rank].residual("w"), due[rank])
        for result in results:
            np.testing.assert_array_equal(result, expected)


def test_a_value_that_is_not_finite_is_found_though_it_is_not_chosen():
    local = LocalAllreduce("direct/randk(k=1, shared=False)/ef", 2)
    values = [np.ones(5000, np.float32) for _ in range(2)]
    values[1][4321] = np.nan
    with pytest.raises(gq.NonFiniteError) as raised:
        local(values, key="w")
    assert (raised.value.rank, raised.value.index) == (1, 4321)


def test_its_promises():
    assert RandK().linear
    assert not RandK(values="float16").linear
    assert not RandK(shared=False).linear
    assert not RandK().unbiased


def test_a_message_is_the_chosen_values_and_is_decoded_with_the_seed_of_its_making():
    scheme, x = gq.Scheme.parse("randk(ratio=0.2)"), np.arange(1, 51, dtype=np.float32)
    message = scheme.encode(x, seed=3, step=9)
    chosen = places(_kernels.Stream(hash64(3, None), *ALL_ALIKE, 9), 50, 10)
    assert message[32:] == x[chosen].tobytes()
    expected = np.zeros(50, np.float32)
    expected[chosen] = x[chosen]
    np.testing.assert_array_equal(scheme.decode(message, 50, seed=3), expected)
    assert (scheme.decode(message, 50) != expected).any()


@pytest.mark.parametrize("values", ["raw", "float16"])
def test_a_sum_is_that_of_the_chosen_values_and_the_rest_waits(values):
    """Of small integers, which lose nothing. In the end all places have been chosen."""
    local, rng = LocalAllreduce(f"ring/randk(ratio=0.25, values={values})/ef", 3, seed=6), np.random.default_rng(4)
    waiting, everything = [np.zeros(100, np.float32) for _ in range(3)], set()
    for step in range(40):
        given = [rng.integers(-2, 3, (4, 25)).astype(np.float32) for _ in range(3)]
        results = local([each.copy() for each in given], key="w")
        chosen = places(_kernels.Stream(hash64(6, "w", local.group), *ALL_ALIKE, step), 100, 25)
        waiting = [each.reshape(-1) + old for each, old in zip(given, waiting, strict=True)]
        expected = np.zeros(100, np.float32)
        expected[chosen] = sum(waiting)[chosen]
        for rank in range(3):
            np.testing.assert_array_equal(results[rank].reshape(-1), expected)
            waiting[rank][chosen] = 0
            np.testing.assert_array_equal(local.memory[rank].residual("w"), waiting[rank])
        everything |= set(chosen.tolist())
    assert everything == set(range(100))


def test_what_float16_loses_of_chosen_values_is_in_the_residual():
    local, given = LocalAllreduce("ring/randk(ratio=1.0, values=float16)/ef", 3), np.float32(1) / np.arange(3, 103)
    results = local([given.astype(np.float32) for _ in range(3)], key="w")
    left = [memory.residual("w") for memory in local.memory]
    assert all(each.any() for each in left)
    np.testing.assert_allclose(results[0] + sum(left), 3 * given, rtol=1e-6)


@pytest.mark.parametrize("feedback", ["", "/ef"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_chosen_is_refused_too(feedback, bad):
    """By its rank and index, lowest first, also in Fortran order; nothing has changed."""
    for place in (0, 7, 59):
        local = LocalAllreduce(f"direct/randk(ratio=0.02){feedback}", 4)
        local([np.ones((12, 5), np.float32, order="F") for _ in range(4)], key="w")
        before = [memory.get("w") for memory in local.memory]
        given = [np.ones((12, 5), np.float32, order="F") for _ in range(4)]
        given[2][np.unravel_index(place, (12, 5))] = bad
        given[2][11, 4] = bad
        given[3][0, 0] = bad
        with pytest.raises(gq.NonFiniteError) as caught:
            local(given, key="w")
        assert (caught.value.rank, caught.value.key, caught.value.index) == (2, "w", place)
        assert all(memory.get("w") is state for memory, state in zip(local.memory, before, strict=True))


def test_an_overflow_of_value_and_residual_is_no_ranks():
    local = LocalAllreduce("direct/randk(ratio=0.02)/ef", 2)
    given = [np.full(100, 3e38, np.float32) * (1 - 2 * rank) for rank in range(2)]
    local([each.copy() for each in given], key="w")
    with pytest.raises(gq.NonFiniteError) as caught:
        local(given, key="w")
    assert caught.value.rank is None


def test_a_group_draws_what_its_keys_draw_alone():
    together, alone = (LocalAllreduce("direct/randk(ratio=0.1)/ef", 3, seed=8) for _ in range(2))
    shapes = {"a": (40,), "b": (7, 9), "c": (), "d": (0, 3), "e": (300, 1000)}
    alone([np.ones(40, np.float32) for _ in range(3)], key="a")
    together([np.ones(40, np.float32) for _ in range(3)], key="a")
    for step in range(3):
        given = [
            [
                np.random.default_rng([step, rank, number]).standard_normal(shape).astype(np.float32)
                for number, shape in enumerate(shapes.values())
            ]
            for rank in range(3)
        ]
        results = together([[each.copy() for each in mine] for mine in given], key=list(shapes))
        for number, key in enumerate(shapes):
            expected = alone([mine[number].copy() for mine in given], key=key)
            for rank in range(3):
                assert results[rank][number].tobytes() == expected[rank].tobytes()
                assert together.memory[rank].residual(key).tobytes() == alone.memory[rank].residual(key).tobytes()


def test_chosen_values_are_counted():
    local = LocalAllreduce("direct/randk(ratio=0.1)", 4)
    local([np.ones(1000, np.float32) for _ in range(4)])
    assert local.spent[0].selected == 100

"""A group of tensors in one call gives each key what a call of its own gives: result, residual, bits and errors."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from reductions import DTYPES, LAYOUTS, placed

from gqallreduce import _kernels
from gqallreduce.coding import lanes, layout
from gqallreduce.coding.lanes import LANES_MOST
from gqallreduce.coding.layout import Form
from gqallreduce.errors import NonFiniteError
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime import plan as plans
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheme import Scheme

# Scalars, empty ones, columns, more than one block, 16 and 64 bits, gaps; small ones before and after large ones.
FORMS = [
    ((40, 33), "float32", "C"), ((), "float32", "C"), ((7,), "float32", "C"), ((0,), "float32", "C"),
    ((300, 20), "float16", "F"), ((1000,), "bfloat16", "C"), ((520, 700), "float32", "C with gaps"),
    ((1,), "float32", "C"), ((5, 6), "float64", "C"), ((3, 4, 5), "float32", "0,2,1"), ((64,), "float64", "C"),
    ((33, 31), "float32", "F with gaps"),
]  # fmt: skip
OPTIONS = (
    "adaptive(pi=5, scope=column, signs=separate)",
    "terngrad(shared=False)",
    "qsgd(bits=3, bucket=33, norm=l2)",
    "topk(ratio=0.5, values=qsgd(bits=4, bucket=8))",
)
TEXTS = sorted({Scheme.parse(CODECS[name].example).resolved("ring").split("/", 1)[1] for name in CODECS} | {*OPTIONS})


def draws(seed, ranks, forms):
    """arrays[rank][tensor]."""
    rng = np.random.default_rng(seed)
    return [[placed(rng.standard_normal(shape), dtype, order) for shape, dtype, order in forms] for _ in range(ranks)]


def bits(local, arrays, keys):
    found = [[array.tobytes() for array in mine] for mine in arrays]
    kept = [[memory.residual(key).tobytes() for key in keys if key in memory] for memory in local.memory]
    return found, kept


def alone(local, arrays, keys, out=None):
    for number, key in enumerate(keys):
        into = None if out is None else [mine[number] for mine in out]
        local([mine[number] for mine in arrays], key=key, out=into)


def compare(text, ranks, forms, steps=2, **options):
    keys = [f"key {number}" for number in range(len(forms))]
    one_by_one, together = (LocalAllreduce(text, ranks, **options) for _ in range(2))
    for step in range(steps):
        expected, got = draws(step, ranks, forms), draws(step, ranks, forms)
        alone(one_by_one, expected, keys)
        assert together(got, key=keys) is got
        assert bits(together, got, keys) == bits(one_by_one, expected, keys)
    return one_by_one, together


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("text", TEXTS)
def test_a_group_has_the_bits_of_its_keys_alone(text, schedule):
    compare(f"{schedule}/{text}", 3, FORMS)


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 7, 8])
@pytest.mark.parametrize(
    "text", ["direct/onebit/ef", "recursive_doubling/adaptive(pi=7)/ef", "ring/qsgd(bits=4)", "raw"]
)
def test_on_any_number_of_ranks_averaged_too(text, ranks):
    compare(text if "/" in text else f"ring/{text}", ranks, FORMS, average=True)


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), max_size=3).map(tuple),
            st.sampled_from(sorted(DTYPES)),
            st.sampled_from(LAYOUTS),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["onebit/ef", "qsgd(bits=4)", "adaptive(pi=3)/ef", "terngrad/ef", "threshold(tau=0.5)/ef", "raw"]),
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 5),
)
def test_groups_of_any_forms(forms, text, schedule, ranks):
    compare(f"{schedule}/{text}", ranks, forms, steps=1)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("text", ["direct/qsgd/ef", "direct/onebit/ef"])
def test_what_16_bits_lose_of_a_tensor_in_several_lanes_is_kept(text, ranks, monkeypatch):
    """Such a tensor has several parts in a batch."""
    monkeypatch.setattr(lanes, "LANE_BYTES", 64)
    compare(text, ranks, [((2000,), "float16", "C")] * 3)


@pytest.fixture
def many_lanes(monkeypatch):
    """Few bytes make a lane, few elements a block or a batch, and few lanes are under way."""
    monkeypatch.setattr(lanes, "LANE_BYTES", 300)
    monkeypatch.setattr(layout, "BLOCK", 700)
    monkeypatch.setattr(plans, "LIVE_LEAST", 1)
    monkeypatch.setattr(plans, "LIVE_SHARE", 1e-6)
    monkeypatch.setattr(plans, "TOGETHER_MOST", 1500)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("text", ["adaptive(pi=2)/ef", "float16/ef", "terngrad/ef", "qsgd(bits=8)/ef"])
def test_tensors_with_and_without_batches_in_many_lanes(text, schedule, ranks, many_lanes, monkeypatch):
    """Also those with fewer elements than ranks, and large ones of which several lanes are in one message."""
    monkeypatch.setattr(plans, "BATCH_MOST", 1100)
    sizes = [3000, 1, 2, 3000, 5000, 1000, 2, 1000, 900, 800, 2500]
    compare(f"{schedule}/{text}", ranks, [((size,), "float32", "C") for size in sizes], steps=3)


def overflow(text, ranks, tensors):
    """(rank, key, index) that a group says, and a call of its first key alone; the others work alone."""
    keys, found = [str(number) for number in range(len(tensors))], []
    for chosen in (keys, *[[key] for key in keys]):
        arrays = [[tensors[keys.index(key)].copy() for key in chosen] for _ in range(ranks)]
        try:
            LocalAllreduce(text, ranks)(arrays, key=chosen)
            found.append(None)
        except NonFiniteError as error:
            found.append((error.rank, error.key, error.index))
    assert found[2:] == [None] * (len(tensors) - 1)
    return found[:2]


def test_an_overflow_is_that_of_its_tensor():
    large, other = np.full(512, 3e37, np.float32), np.full(2, 1e38, np.float32)
    group, alone = overflow("direct/qsgd(norm=l2)", 1, [large, other])
    assert group == alone == (None, "0", 0)
    large, other = np.full(40, 3e38, np.float32), np.ones(50, np.float32)
    for schedule in ("direct", "ring", "halving_doubling"):
        group, alone = overflow(f"{schedule}/terngrad", 3, [large, other])
        assert group[:2] == alone[:2] == (None, "0")


@pytest.mark.parametrize("text", ["direct/onebit/ef", "direct/qsgd(bits=4)"])
def test_a_key_is_called_alone_and_in_groups(text):
    keys, forms = list("abcd"), [((n,), "float32", "C") for n in (300, 4, 1000, 77)]
    one_by_one, mixed = (LocalAllreduce(text, 3) for _ in range(2))
    for step, groups in enumerate(["abcd", "dcba", "ab", "c", "bd", "a", "cda"]):
        expected, got = draws(step, 3, forms), draws(step, 3, forms)
        chosen = [keys.index(key) for key in groups]
        alone(one_by_one, [[mine[place] for place in chosen] for mine in expected], list(groups))
        given = [[mine[place] for place in chosen] for mine in got]
        if len(groups) == 1:
            mixed([mine[0] for mine in given], key=groups)
        else:
            mixed(given, key=list(groups))
        assert bits(mixed, got, keys) == bits(one_by_one, expected, keys)


def test_into_other_memory():
    keys, forms = list("abc"), [((30, 7), "float32", "C"), ((9,), "float16", "C"), ((2000,), "float32", "C")]
    one_by_one, together = (LocalAllreduce("direct/qsgd(bits=4)", 4) for _ in range(2))
    given, expected, out = draws(0, 4, forms), draws(1, 4, forms), draws(2, 4, forms)
    alone(one_by_one, given, keys, expected)
    assert together(given, key=keys, out=out) is out
    assert bits(together, out, keys) == bits(one_by_one, expected, keys)
    assert bits(together, given, keys) == bits(together, draws(0, 4, forms), keys)


@pytest.mark.parametrize("runtime", ["python"], indirect=True)  # which calls `encode`
@pytest.mark.parametrize("text", ["onebit", "adaptive", "qsgd", "terngrad"])
def test_a_codec_that_takes_no_batches_is_given_one_tensor_at_a_time(text, monkeypatch):
    keys, seen = [f"key {number}" for number in range(len(FORMS))], []
    batched, apart = (LocalAllreduce(f"direct/{text}/ef", 3) for _ in range(2))
    plain = CODECS[text].encode

    def encode(codec, x, residual, new_residual, wire, region, *rest):
        seen.append(len(region.regions))
        return plain(codec, x, residual, new_residual, wire, region, *rest)

    monkeypatch.setattr(CODECS[text], "encode", encode)
    found = []
    for local, batches in ((batched, True), (apart, False)):
        monkeypatch.setattr(CODECS[text], "batches", batches)
        seen.clear()
        for step in range(2):
            got = draws(step, 3, FORMS)
            local(got, key=keys)
            found.append(bits(local, got, keys))
        assert (max(seen) > 1) == batches
    assert found[:2] == found[2:]


def test_a_group_has_one_set_of_messages():
    forms = [((256,), "float32", "C")] * 40
    _, together = compare("direct/onebit/ef", 4, forms)
    assert {spent.messages for spent in together.spent} == {2 * 3}


def test_large_groups_have_lanes_and_each_tensor_keeps_its_own():
    forms = [
        ((1 << 19,), "float32", "C"),
        ((100,), "float32", "C"),
        ((1 << 18,), "float32", "C"),
        ((5,), "float16", "C"),
    ]
    _, together = compare("direct/qsgd(bits=8)", 2, forms, steps=1)
    plan = together.plan(0, *[Given(form) for form in forms])
    assert 1 < plan.lanes <= LANES_MOST
    regions = [region for lane in plan.pieces for chunk in lane for region in chunk.regions]
    for number, (shape, _, _) in enumerate(forms):
        mine = sorted(region for region in regions if region.segment == number)
        assert [region.start for region in mine] == [0, *np.cumsum([region.size for region in mine])[:-1]]
        assert sum(region.size for region in mine) == shape[0]


class Given:
    """What has a form."""

    def __init__(self, form):
        shape, dtype, order = form
        self.form = Form(shape, order, dtype)


@pytest.mark.parametrize("text", ["direct/onebit/ef", "direct/adaptive(pi=7)/ef", "ring/terngrad", "direct/raw"])
@pytest.mark.parametrize(("rank", "number", "index"), [(0, 0, (3, 2)), (2, 3, (17,)), (1, 4, (1, 1, 1))])
def test_errors_name_rank_key_and_index_and_leave_the_residuals(text, rank, number, index):
    forms = [((20, 30), "float32", "F"), ((8,), "float16", "C"), ((), "float32", "C"), ((90,), "float32", "C"),
             ((2, 3, 4), "float32", "C")]  # fmt: skip
    keys = list("abcde")
    local = LocalAllreduce(text, 3)
    local(draws(0, 3, forms), key=keys)
    before = bits(local, [], keys)
    arrays = draws(1, 3, forms)
    arrays[rank][number][index] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        local(arrays, key=keys)
    expected = np.ravel_multi_index(index, forms[number][0])
    assert (caught.value.rank, caught.value.key, caught.value.index) == (rank, keys[number], expected)
    assert bits(local, [], keys) == before


def test_the_first_key_of_the_lowest_rank_is_named_and_an_overflow_too():
    forms = [((50,), "float32", "C"), ((60,), "float16", "C"), ((70,), "float32", "C")]
    local = LocalAllreduce("direct/raw", 3)
    arrays = draws(0, 3, forms)
    for rank, number, at in ((2, 0, 5), (1, 2, 9), (1, 2, 7)):
        arrays[rank][number][at] = np.inf
    with pytest.raises(NonFiniteError) as caught:
        local(arrays, key=list("abc"))
    assert (caught.value.rank, caught.value.key, caught.value.index) == (1, "c", 7)
    arrays = draws(0, 3, forms)
    for mine in arrays:
        mine[1][33] = 60000
    with pytest.raises(NonFiniteError) as caught:
        local(arrays, key=list("abc"))
    assert (caught.value.rank, caught.value.key, caught.value.index) == (None, "b", 33)


@pytest.mark.parametrize("text", ["direct/onebit/ef", "ring/qsgd(bits=3)", "direct/eden", "direct/adaptive(pi=7)/ef"])
def test_threads_change_nothing(text):
    """Whether several share a tensor, or are not worth it."""
    forms = [((70_001,), "float32", "C"), ((30,), "float32", "C"), ((300, 200), "float32", "C")]
    keys, found = ["a", "b", "c"], []
    for threads in (1, 3):
        local, arrays = LocalAllreduce(text, 2), draws(7, 2, forms)
        before = _kernels.threads()
        _kernels.set_threads(threads)
        try:
            local(arrays, key=keys)
            local(arrays, key=keys)
        finally:
            _kernels.set_threads(before)
        found.append(bits(local, arrays, keys))
    assert found[0] == found[1]

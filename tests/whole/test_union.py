"""topk(sums=union): a contribution is encoded once, and sums are exact, however they are sent."""

import numpy as np
import pytest
from reductions import copies, residuals, same_everywhere
from schemes import RANKS, SCHEDULE_NAMES, sizes

from gqallreduce import NonFiniteError, Scheme, WireError
from gqallreduce.coding.layout import Form, Grid, Region
from gqallreduce.coding.union import DENSE, SUM, UnionSums
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.model import bytes_sent

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)


def common(results):
    """The result of all ranks."""
    same_everywhere(results)
    return results[0]


def whole_numbers(seed, ranks, size):
    """float32 vectors whose sums are exact in any order, many values of them zero."""
    random = np.random.default_rng(seed)
    return [(random.integers(-500, 501, size) * (random.random(size) < 0.7)).astype(np.float32) for _ in range(ranks)]


def largest(v, k):
    order = np.argsort(-np.abs(v), kind="stable")[:k]
    found = np.zeros_like(v)
    found[order] = v[order]
    return found


@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("k", [1, 7, 300, 10**6])
def test_the_result_is_the_sum_of_the_largest_values_of_each_rank(schedule, ranks, k):
    """And the residual of a rank is what it has not sent: nothing is lost, bit for bit. That is where the published
    code of gTop-k loses what one rank of a tree drops and another branch keeps."""
    for size in sizes(ranks):
        local = LocalAllreduce(f"{schedule}/topk(k={k}, sums=union)/ef", ranks)
        due = [np.zeros(size, np.float32) for _ in range(ranks)]
        for step in range(3):
            gradients = whole_numbers(step, ranks, size)
            due = [rest + gradient for rest, gradient in zip(due, gradients, strict=True)]
            sent = [largest(v, k) for v in due]
            result = common(local(copies(gradients), key="w"))
            np.testing.assert_array_equal(result, sum(sent))
            due = [v - each for v, each in zip(due, sent, strict=True)]
            for mine, rest in zip(residuals(local), due, strict=True):
                np.testing.assert_array_equal(mine, rest)


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_values_that_are_quantized_are_so_once_by_the_rank_that_has_them(schedule, ranks):
    """The same on every schedule, with the same random numbers: those of own values."""
    text, gradients = "topk(ratio=0.2, values=qsgd(bits=3, bucket=32), sums=union)/ef", whole_numbers(4, ranks, 900)
    local, other = (LocalAllreduce(f"{each}/{text}", ranks) for each in (schedule, "allgather"))
    result, expected = (each(copies(gradients), key="w")[0] for each in (local, other))
    if schedule in ("allgather", "recursive_doubling"):  # whole vectors: those of pieces begin other buckets
        np.testing.assert_array_equal(*(np.concatenate(residuals(each)) for each in (local, other)))
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-3)
    kept = sum(each.astype(np.float64) for each in residuals(local))
    np.testing.assert_allclose(result + kept, sum(gradients), atol=1e-2)


@every_schedule
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_apart_contributions_take_the_bytes_that_plan_counts_where_k_is_small(schedule, ranks):
    """No two ranks choose one place: the most bytes that sums may take, and more than `reselect` sends. Random places
    of so few values are nearly all apart.
    """
    size, k = 1 << 20, 1 << 11
    stride = size // k
    gradients = [np.zeros(size, np.float32) for _ in range(ranks)]
    for rank, gradient in enumerate(gradients):
        gradient[rank % stride :: stride] = rank + 1
    most, predicted = most_and_predicted(schedule, k, gradients)
    assert most == pytest.approx(predicted, rel=0.02)
    if schedule != "allgather" and (ranks, schedule) != (2, "recursive_doubling"):  # these send own values only
        assert predicted > 1.2 * bytes_sent(schedule, Scheme.parse(f"topk(k={k})").codec, ranks, size)


@every_schedule
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("ratio", [0.03, 0.1])
def test_contributions_at_random_places_take_the_bytes_that_plan_counts(schedule, ranks, ratio):
    """Of 16 ranks with 0.03 n places each sums have 0.39 n, not 0.48 n."""
    size, random = 1 << 16, np.random.default_rng(ranks)
    k, gradients = int(ratio * size), [np.zeros(size, np.float32) for _ in range(ranks)]
    for gradient in gradients:
        gradient[random.choice(size, k, replace=False)] = 1 + random.random(k)
    most, predicted = most_and_predicted(schedule, k, gradients)
    assert most == pytest.approx(predicted, rel=0.04)


def most_and_predicted(schedule, k, gradients):
    """Bytes: the most that a rank sends, and what the model counts."""
    local = LocalAllreduce(f"{schedule}/topk(k={k}, sums=union)", len(gradients))
    local(copies(gradients), key="w")
    predicted = bytes_sent(schedule, local.scheme.codec, len(gradients), gradients[0].size)
    return max(spent.bytes_sent for spent in local.spent), predicted


@every_schedule
def test_sums_turn_dense_where_that_is_shorter(schedule):
    ranks, size = 4, 40_000
    random = np.random.default_rng(0)
    gradients = [random.standard_normal(size).astype(np.float32) for _ in range(ranks)]
    for gradient in gradients:
        gradient[::100] = 0  # with a bit for each value 99 of 100 take more than all
    local, raw = (LocalAllreduce(f"{schedule}/{text}", ranks) for text in ("topk(ratio=1.0, sums=union)", "raw"))
    np.testing.assert_array_equal(local(copies(gradients))[0], raw(copies(gradients))[0])
    assert local.spent[0].bytes_sent <= raw.spent[0].bytes_sent * (1.03 if schedule == "allgather" else 1.015)


@every_schedule
def test_what_cancels_is_not_sent_on(schedule):
    v = np.zeros(1000, np.float32)
    v[::10] = 3
    local, kept = (LocalAllreduce(f"{schedule}/topk(k=100, sums=union)", 4) for _ in range(2))
    assert not common(local([v.copy(), -v, v.copy(), -v])).any()
    kept([v, v.copy(), v.copy(), v.copy()])
    if schedule in ("direct", "recursive_doubling"):
        assert local.spent[0].bytes_sent < kept.spent[0].bytes_sent


@every_schedule
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_and_averages(schedule, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    gradients = [each.astype(dtype) for each in whole_numbers(7, 4, 333)]
    exact = sum(largest(each.astype(np.float32), 50) for each in gradients)
    for average in (False, True):
        local = LocalAllreduce(f"{schedule}/topk(k=50, sums=union)/ef", 4, average=average)
        result = common(local(copies(gradients), key="w"))
        np.testing.assert_array_equal(result, (exact / (4 if average else 1)).astype(dtype))


@every_schedule
def test_a_sum_that_leaves_float32_is_refused_on_all_ranks_and_residuals_stay(schedule):
    local = LocalAllreduce(f"{schedule}/topk(k=3, sums=union)/ef", 4)
    local(whole_numbers(0, 4, 20), key="w")
    before = copies(residuals(local))
    values = np.zeros(20, np.float32)
    values[5] = 3e38
    with pytest.raises(NonFiniteError) as raised:
        local([values.copy() for _ in range(4)], key="w")
    assert (raised.value.rank, raised.value.index) == (None, 5)
    for mine, theirs in zip(residuals(local), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_only_messages_of_this_scheme_may_be_sums():
    codec, other = (
        Scheme.parse(text).codec.bind(Form((10,), "C", "float32"), 4) for text in ("topk(k=3, sums=union)", "topk(k=3)")
    )
    region, wire = Region(0, 10, Grid(1), 10), np.zeros(200, np.uint8)
    x, y = np.array([0, 1, 0, 0, -2, 0, 0, 0, 0, 0], np.float32), np.empty(10, np.float32)
    for values in (x, np.arange(1, 11, dtype=np.float32)):
        nbytes = UnionSums(codec.read).encode(values, None, None, wire, region, None)
        flags = wire[:12].view(np.uint32)[1] & (SUM | DENSE)
        assert flags == (SUM if values is x else SUM | DENSE)
        assert codec.decode(wire[:nbytes], y, region) == nbytes
        np.testing.assert_array_equal(y, values)
        assert codec.entries(wire[:nbytes], [region]) == np.count_nonzero(values)
        with pytest.raises(WireError):
            other.decode(wire[:nbytes], y, region)
        unfit = wire[:nbytes].copy()
        unfit[nbytes - 4 : nbytes].view(np.uint32)[:] = 0x7F800000
        for each in (codec.decode, codec.decode_add, UnionSums(codec.read).decode):
            with pytest.raises(WireError, match="not finite"):
                each(unfit, y, region)
        for changed in (1, SUM | 2, DENSE | 2, SUM | DENSE | 9, SUM | DENSE | 11, SUM | 11, 0xFFFFFFFF):
            if changed == wire[:12].view(np.uint32)[1]:
                continue
            bad = wire[:nbytes].copy()
            bad[:12].view(np.uint32)[1] = changed
            with pytest.raises(WireError):
                codec.decode(bad, y, region)


def test_a_range_is_looked_at_where_something_was_added():
    codec = Scheme.parse("topk(k=3, sums=union)").codec.bind(Form((1000,), "C", "float32"), 4)
    sums, region, wire = UnionSums(codec.read), Region(0, 1000, Grid(1), 1000), np.zeros(5000, np.uint8)
    y, x = np.full(1000, 7, np.float32), np.zeros(1000, np.float32)
    x[[3, 900]] = 1, 2
    message = wire[: codec.encode(x, None, None, wire, region, None)].copy()
    sums.decode(message, y, region)
    sums.decode_add(message, y, region)
    y[500] = 9  # no rank added it: it is not looked for
    found = np.zeros(1000, np.float32)
    codec.decode(wire[: sums.encode(y, None, None, wire, region, None)], found, region)
    np.testing.assert_array_equal(found, 2 * x)
    y[500] = 0
    UnionSums(codec.read).encode(y, None, None, wire, region, None)  # one that knows nothing looks everywhere
    codec.decode(wire, found, region)
    np.testing.assert_array_equal(found, 2 * x)

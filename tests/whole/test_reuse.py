"""topk(reuse=T, balance=N): thresholds and borders that follow from earlier calls of a key."""

import copy

import numpy as np
import pytest
from reductions import copies, nothing_lost, residuals, same_everywhere
from schemes import RANKS, SCHEDULE_NAMES

from gqallreduce import NonFiniteError, Scheme
from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import lanes, layout
from gqallreduce.coding.layout import Form
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.runtime.memory import State
from gqallreduce.runtime.plans import BORDERS_MOST, Plans
from gqallreduce.scheduling.topology import apart

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
SIZE, K = 5000, 60


def gradients(call, ranks, size=SIZE, scale=1.0):
    """Large values lie at the front."""
    slope = np.exp(-np.arange(size) / (size / 10)) * scale
    random = np.random.default_rng([call, ranks])
    return [(random.standard_normal(size) * slope).astype(np.float32) for _ in range(ranks)]


def learned(local, key="w"):
    return [memory.get(key).learned for memory in local.memory]


def sent(due, threshold, call, reuse):
    """(what a rank sends of its values, the threshold of its next call), by the rules in the docs."""
    reached = np.where(np.abs(due) >= np.float32(threshold), due, np.float32(0))
    count = np.count_nonzero(reached)
    if call % reuse and threshold and K / 2 <= count <= np.ceil(4 * K / 3):
        factor = np.float32(1.012)
        if count < 2 * K / 3:
            return reached, np.float32(threshold) / factor
        return reached, np.float32(threshold) * factor if count > 5 * K / 4 else np.float32(threshold)
    exact = np.zeros_like(due)
    order = np.argsort(-np.abs(due), kind="stable")[:K]
    exact[order] = due[order]
    return exact, np.abs(due[order]).min()


@every_schedule
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_between_searches_what_reaches_the_threshold_is_sent(schedule, ranks):
    """With gradients of one size, of growing and of falling ones."""
    reuse = 5
    local = LocalAllreduce(f"{schedule}/topk(k={K}, sums=union, reuse={reuse})/ef", ranks)
    residual, thresholds = [np.zeros(SIZE, np.float32) for _ in range(ranks)], [0.0] * ranks
    scales = [1, 1, 1.01, 1.01, 0.9, 1, 3, 3, 3, 0.01, 0.01, 0.0, 0.0, 1, 0.95, 0.9, 0.85, 0.8, 0.7, 0.8]
    for call, scale in enumerate(scales):
        given = gradients(call, ranks, scale=scale)
        due = [rest + each for rest, each in zip(residual, given, strict=True)]
        expected = [sent(each, at, call, reuse) for each, at in zip(due, thresholds, strict=True)]
        result = local(copies(given), key="w")
        same_everywhere(result)
        for rank, (mine, threshold) in enumerate(expected):
            thresholds[rank], residual[rank] = float(threshold), due[rank] - mine
            np.testing.assert_array_equal(local.memory[rank].residual("w"), residual[rank])
        assert [each["threshold"] for each in learned(local)] == thresholds
        assert [each["calls"] for each in learned(local)] == [call + 1] * ranks


@every_schedule
def test_a_threshold_is_adjusted_and_one_that_has_become_unfit_is_not_used(schedule):
    local, step = LocalAllreduce(f"{schedule}/topk(k={K}, reuse=100)", 1), np.float32(1.012)
    last = np.float32(1)
    for count, value, small, kept, threshold in [
        (90, 1, 0, K, last),  # the first call: a search
        (K, 2, 0, K, last),
        (76, 2, 0, 76, last := last * step),
        (80, 2, 0, 80, last := last * step),
        (81, 2, 0, K, last := np.float32(2)),  # more than 4/3 k
        (40, 3, 9, 40, last),
        (39, 3, 9, 39, last := last / step),
        (30, 3, 9, 30, last := last / step),
        (29, 3, 9, K, np.float32(0.5)),  # fewer than k / 2
    ]:
        given = np.zeros(300, np.float32)
        given[: 10 * small], given[300 - count :] = 0.5, value
        result = local([given.copy()], key="w")[0]
        assert np.count_nonzero(result) == kept
        assert learned(local)[0]["threshold"] == threshold


@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("text", [f"topk(k={K}, reuse=3)", f"topk(k={K}, sums=union, reuse=3, balance=2)"])
def test_nothing_is_lost_and_replicas_are_identical_in_every_call(schedule, ranks, text):
    for size in (0, 1, ranks, 333):
        local = LocalAllreduce(f"{schedule}/{text}/ef", ranks)
        for call in range(5):
            given, before = gradients(call, ranks, size), residuals(local)
            results = local(copies(given), key="w")
            same_everywhere(results)
            nothing_lost(local, given, before, results)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(lanes, "LANE_BYTES", 128)
    monkeypatch.setattr(layout, "BLOCK", 300)


def at_the_front(call, ranks, size=100_000, k=400):
    """k values of each rank, at places of its own, many of them near the begin."""
    random, found = np.random.default_rng(call), np.zeros((ranks, size), np.float32)
    for mine in found:
        mine[(size * random.random(k) ** 4).astype(int)] = random.standard_normal(k)
    return list(found)


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_between_borders_ranks_send_about_as_many_values(ranks):
    balanced, equal = (LocalAllreduce(f"direct/topk(k=400, sums=union{more})", ranks) for more in (", balance=3", ""))
    spread, before = [], None
    for call in range(5):
        for local in (balanced, equal):
            same_everywhere(local(at_the_front(call, ranks), key="w"))
            bytes_sent = [each.bytes_sent for each in local.spent]
            spread.append(max(bytes_sent) / np.mean(bytes_sent))
        borders = [each["borders"].tolist() for each in learned(balanced)]
        assert borders.count(borders[0]) == ranks
        assert borders[0] == sorted(borders[0])
        assert len(borders[0]) == ranks - 1
        assert call in (0, 3) or borders[0] == before
        before = borders[0]
    assert spread[0] == spread[1] > 1.5  # the borders of a call are those of earlier ones
    assert max(spread[2::2]) < 1.3
    assert min(spread[3::2]) > 1.5


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@every_schedule
def test_borders_change_no_sum_and_no_residual(schedule, ranks):
    """Whole numbers: sums are exact in any order."""
    balanced, equal = (
        LocalAllreduce(f"{schedule}/topk(k=200, sums=union{more})/ef", ranks) for more in (", balance=2", "")
    )
    for call in range(5):
        given = [np.rint(50 * each) for each in gradients(call, ranks)]
        results = [local(copies(given), key="w") for local in (balanced, equal)]
        same_everywhere(results[0])
        np.testing.assert_array_equal(*results)
        np.testing.assert_array_equal(residuals(balanced), residuals(equal))


@pytest.mark.usefixtures("small_pieces")
def test_borders_are_the_mean_of_the_ranks_quantiles():
    local = LocalAllreduce("direct/topk(k=40, sums=union, balance=1)", 4)
    given = [np.zeros(1000, np.float32) for _ in range(4)]
    for one, other in (given[:2], given[2:]):
        one[100:140], other[500:580:2] = 1, 1
    local(copies(given), key="w")
    pieces = len(learned(local)[0]["borders"]) + 1
    firsts = [piece * 40 // pieces for piece in range(1, pieces)]
    assert pieces >= 4
    assert learned(local)[1]["borders"].tolist() == [(100 + at + 500 + 2 * at) // 2 for at in firsts]
    plan = local.plan(0, Buffer(given[0]), learned=learned(local)[:1])
    starts = [piece.start for lane in plan.tensors[0].pieces for piece in lane]
    assert starts == [0, *learned(local)[0]["borders"].tolist()]


def test_a_message_has_room_for_what_any_borders_give():
    """So a rank with other borders is met by headers that it refuses, never by more bytes than it waits for."""
    codec = Scheme.parse("topk(k=40, sums=union, balance=1)").codec
    form = (Form((1000,), "C", "float32"),)
    local = LocalAllreduce("direct/topk(k=40, sums=union, balance=1)", 4)
    plans = [
        local.plan(0, Buffer(np.zeros(form[0].size, np.float32)), learned=[known])
        for known in (None, {"borders": np.array([1, 2, 3])}, {"borders": np.array([0, 999, 1000])}, {"borders": None})
    ]
    assert [plan.tensors[0].pieces[0][1].start for plan in plans] == [250, 1, 0, 250]
    bounds = {tuple(piece.bound for lane in plan.tensors[0].pieces for piece in lane) for plan in plans}
    assert len(bounds) == 1
    assert min(bounds.pop()) >= codec.bind(form[0], 4).nbytes_bound(plans[2].tensors[0].pieces[0][1].regions)


def test_a_rank_with_other_borders_is_refused():
    local = LocalAllreduce("direct/topk(k=40, sums=union, balance=9)", 2)
    local(gradients(0, 2), key="w")
    state = local.memory[1].get("w")
    other = {**state.learned, "borders": state.learned["borders"] + 1}
    local.memory[1].commit({"w": state.replaced(learned=other)})
    with pytest.raises(ForeignFrame):
        local(gradients(1, 2), key="w")


def test_plans_of_the_last_few_borders_are_kept():
    scheme, form = Scheme.parse("direct/topk(k=40, sums=union, balance=1)"), Form((1000,), "C", "float32")
    plans = Plans(scheme, 0, apart(2), False, 0)
    agreed = plans.propose(("w", (form,)), 0, 0, False)
    processor = LocalAllreduce("raw", 1).processors[0]
    made = [
        plans.plan(agreed, processor, [State(None, learned={"borders": np.array([at])})])
        for at in range(BORDERS_MOST + 1)
    ]
    assert len(set(map(id, made))) == BORDERS_MOST + 1
    for at in range(1, BORDERS_MOST + 1):
        assert plans.plan(agreed, processor, [State(None, learned={"borders": np.array([at])})]) is made[at]
    assert plans.plan(agreed, processor, [State(None, learned={"borders": np.array([0])})]) is not made[0]
    assert len(plans._plans) == BORDERS_MOST


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_keys_of_a_group_learn_and_give_what_they_do_alone(ranks):
    sizes = {"a": 700, "b": 5, "c": 0, "d": 3000}
    text = "direct/topk(ratio=0.05, sums=union, reuse=3, balance=2)/ef"
    together, alone = (LocalAllreduce(text, ranks) for _ in range(2))
    for call in range(5):
        given = [gradients(call, ranks, size) for size in sizes.values()]
        results = together([list(each) for each in zip(*map(copies, given), strict=True)], key=list(sizes))
        for number, key in enumerate(sizes):
            expected = alone(copies(given[number]), key=key)
            np.testing.assert_array_equal(results[0][number], expected[0])
            for one, other in zip(learned(together, key), learned(alone, key), strict=True):
                assert one["threshold"] == other["threshold"]
                np.testing.assert_array_equal(one["borders"], other["borders"])


@every_schedule
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_call_that_fails_teaches_nothing(schedule, call):
    local = LocalAllreduce(f"{schedule}/topk(k={K}, sums=union, reuse=2, balance=3)/ef", 3)
    for number in range(call):
        local(gradients(number, 3), key="w")
    before = [memory.get("w") for memory in local.memory]
    kept = copy.deepcopy(learned(local)), copies(residuals(local))
    given = gradients(call, 3)
    given[1][SIZE - 3] = np.nan
    with pytest.raises(NonFiniteError) as raised:
        local(given, key="w")
    assert (raised.value.rank, raised.value.index) == (1, SIZE - 3)
    for memory, state in zip(local.memory, before, strict=True):
        assert memory.get("w") is state
    for mine, other in zip(learned(local), kept[0], strict=True):
        assert {**mine, "borders": None} == {**other, "borders": None}
        np.testing.assert_array_equal(mine["borders"], other["borders"])
    for mine, other in zip(residuals(local), kept[1], strict=True):
        np.testing.assert_array_equal(mine, other)


KNOWN = {"calls": 3, "threshold": 0.5, "borders": np.array([2, 2, 9])}


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": 0}, {"calls": 1.5}, {"calls": True}, {"calls": None}, {"threshold": -1.0}, {"threshold": np.nan},
        {"threshold": np.inf}, {"threshold": 1e39}, {"threshold": "1"}, {"borders": None}, {"borders": [-1, 2]},
        {"borders": [3, 2]}, {"borders": [1, 11]}, {"borders": [[1]]}, {"borders": [0.5]}, {"borders": "abc"},
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused(wrong):
    codec, form = Scheme.parse("topk(k=4, sums=union, reuse=2, balance=2)").codec, Form((10,), "C", "float32")
    found = codec.relearned(copy.deepcopy(KNOWN), form)
    assert {**found, "borders": found["borders"].tolist()} == {**KNOWN, "borders": [2, 2, 9]}
    with pytest.raises((ValueError, TypeError)):
        codec.relearned(copy.deepcopy({**KNOWN, **wrong}), form)


def test_without_balance_there_are_no_borders():
    codec = Scheme.parse("topk(k=4, reuse=2)").codec
    assert codec.relearned({**KNOWN, "borders": None}, Form((10,), "C", "float32"))["threshold"] == 0.5
    with pytest.raises(ValueError, match="balance=0"):
        codec.relearned(KNOWN, Form((10,), "C", "float32"))


def test_messages_are_those_of_topk_without_these_options():
    values = gradients(1, 1)[0]
    plain, reused = (Scheme.parse(f"topk(k=9, sums=union{more})") for more in ("", ", reuse=5, balance=7"))
    assert plain.encode(values) == reused.encode(values)
    assert plain != reused
    assert plain.resolved() != reused.resolved()

"""What a codec asks of all ranks before its first encoding, and what it learns, in calls alone and in groups."""

import asking
import numpy as np
import pytest
from reductions import arrays, copies, same_everywhere
from schemes import RANKS, SCHEDULE_NAMES

from gqallreduce import NonFiniteError
from gqallreduce.coding.preparing import FROM_RANK, LARGEST, SUM, Ask, Prepared
from gqallreduce.runtime.local import LocalAllreduce


@pytest.fixture(autouse=True)
def _asking():
    asking.enter()
    yield
    asking.leave()


def expected(given, call: int):
    """A row of what is told: largest, -smallest, sizes, sum, ranks; root, its size."""
    values = [np.concatenate([[0.0], each.astype(float)]) for each in given]
    sizes, total, ranks = 0.0, 0.0, 0.0
    for rank, each in enumerate(values):
        sizes, total, ranks = sizes + each.size - 1, total + each.sum(), ranks + rank
    root = call % len(given)
    largest = max(each.max() for each in values), max(-each.min() for each in values)
    return [*largest, sizes, total, ranks, root, values[root].size]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
@pytest.mark.parametrize("suffix", ["", "/ef"])
def test_all_ranks_are_told_the_same_and_each_key_keeps_it(ranks, schedule, suffix):
    local = LocalAllreduce(f"{schedule}/asking{suffix}", ranks)
    for call in range(3):
        given = arrays(call, ranks, (37,))
        results = local(copies(given), key="w")
        same_everywhere(results)
        for memory in local.memory:
            learned = memory.get("w").learned
            assert learned["calls"] == call + 1
            np.testing.assert_array_equal(learned["told"][call], expected(given, call))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_group_learns_what_its_keys_learn_alone(ranks):
    """With other calls behind one key, so that another rank tells it."""
    sizes = {"a": 5, "b": 0, "c": 300, "d": 70_000}
    together, alone = (LocalAllreduce("direct/asking/ef", ranks) for _ in range(2))
    for local in (together, alone):
        local(arrays(9, ranks, (300,)), key="c")
    for call in range(2):
        given = [[array(call + key, size) for key, size in enumerate(sizes.values())] for array in makers(ranks)]
        together([copies(each) for each in given], key=list(sizes))
        for number, key in enumerate(sizes):
            alone([each[number].copy() for each in given], key=key)
    for mine, other in zip(together.memory, alone.memory, strict=True):
        for key in sizes:
            assert mine.get(key).learned["calls"] == other.get(key).learned["calls"] == 2 + (key == "c")
            np.testing.assert_array_equal(mine.get(key).learned["told"], other.get(key).learned["told"])


def makers(ranks):
    return [
        lambda seed, size, rank=rank: np.random.default_rng([seed, rank]).standard_normal(size).astype(np.float32)
        for rank in range(ranks)
    ]


def test_a_failed_call_has_taught_nothing():
    local = LocalAllreduce("ring/asking", 3)
    local(arrays(1, 3, (9,)), key="w")
    before = [memory.get("w") for memory in local.memory]
    bad = arrays(2, 3, (9,))
    bad[1][4] = np.nan
    with pytest.raises(NonFiniteError):
        local(bad, key="w")
    assert all(memory.get("w") is state for memory, state in zip(local.memory, before, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.uint8, bool])
def test_answers_have_the_form_of_the_question_and_the_same_bits_on_all_ranks(ranks, dtype, monkeypatch):
    told = []

    def ask(self, parts):
        values = np.array([0.0, -0.0, np.nan, 1.0]) if parts.rank == 0 else np.array([-0.0, 0.0, -np.nan, 1.0])
        mine = values.astype(dtype) if np.dtype(dtype).kind == "f" else np.ones(4, dtype)
        for operation in (LARGEST, SUM, FROM_RANK):
            found = yield Ask(operation, mine, ranks - 1)
            assert (found.dtype, found.shape) == (mine.dtype, mine.shape)
            told.append((operation, found.tobytes()))
        return Prepared(self)

    monkeypatch.setattr(asking.Asking, "_ask", ask)
    LocalAllreduce("ring/asking", ranks)(arrays(1, ranks, (9,)), key="w")
    assert len(told) == 3 * ranks
    assert len(set(told)) == 3


def test_a_bad_value_does_not_meet_a_selection_of_partial_sums():
    """A chunk whose sum is not made any more, since a value is not finite, has no running value to choose from."""
    for ranks, bad in ((4, 0), (4, 2), (5, 1), (5, 3), (8, 7)):
        local = LocalAllreduce("recursive_doubling/adaptive(pi=4)/ef", ranks)
        given = arrays(1, ranks, (100,))
        given[bad][5] = np.nan
        with pytest.raises(NonFiniteError) as caught:
            local(given, key="w")
        assert (caught.value.rank, caught.value.index) == (bad, 5)

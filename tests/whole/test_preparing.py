"""What a codec asks of all ranks before its first encoding, and what it learns, in calls alone and in groups."""

import asking
import numpy as np
import pytest
from reductions import arrays, copies, same_everywhere
from schemes import RANKS, SCHEDULE_NAMES

from gqallreduce import NonFiniteError
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

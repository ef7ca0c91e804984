"""A codec that sums other vectors runs on the Plan of exact sums where all it does is to sum buffers as they are."""

import numpy as np
import pytest

from gqallreduce import NonFiniteError
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime import indirect
from gqallreduce.runtime.indirect import IndirectPlan
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.runtime.plan import Plan

SCHEMES = "powersgd(rank=2)/ef", "gradiveq/ef", "isgq"
RANKS = 1, 3, 8


def made(scheme: str, ranks: int, monkeypatch, apart: bool):
    """An object, and the messages of its calls; apart: as if other vectors were summed."""
    messages = []

    def tap(source, to, tag, content):
        messages.append((source, to, tag, bytes(content)))
        return content

    if apart:
        monkeypatch.setattr(indirect, "_exact", lambda *_: None)
    else:
        monkeypatch.undo()
    local = LocalAllreduce(scheme, ranks)
    local.tap = tap
    return local, messages


def both(monkeypatch, scheme: str, ranks: int, call):
    """What `call(object)` returns of either kind, and whether both sent the same bytes."""
    found, sent, kinds = [], [], []
    for apart in (False, True):
        local, messages = made(scheme, ranks, monkeypatch, apart)
        found.append(call(local))
        kinds.append({type(plan) for plan in local._plans.values()})
        sent.append(sorted(messages))
    assert kinds == [{Plan}, {IndirectPlan}]
    return found, sent[0] == sent[1]


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bits_and_messages_are_the_same(monkeypatch, scheme, ranks, schedule):
    def calls(local):
        random, found = np.random.default_rng(ranks), []
        for size in sorted({0, 1, ranks - 1, ranks, ranks + 1, 31, 5001}):
            for _ in range(2):
                arrays = [random.standard_normal(size).astype(np.float32) for _ in range(ranks)]
                found += [each.tobytes() for each in local(arrays, key=f"v{size}")]
        return found

    (found, apart), same_bytes = both(monkeypatch, f"{schedule}/{scheme}", ranks, calls)
    assert found == apart
    assert same_bytes


@pytest.mark.parametrize("ranks", RANKS)
def test_groups_too(monkeypatch, ranks):
    def calls(local):
        random = np.random.default_rng(ranks)
        groups = [[random.standard_normal(size).astype(np.float32) for size in (3, 700, 0)] for _ in range(ranks)]
        return [each.tobytes() for group in local(groups, key=["a", "b", "c"]) for each in group]

    (found, apart), same_bytes = both(monkeypatch, "direct/powersgd(rank=2)/ef", ranks, calls)
    assert found == apart
    assert same_bytes


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("ranks", RANKS)
def test_values_that_cannot_be_summed_are_the_same_error(monkeypatch, ranks, value):
    def calls(local):
        arrays = [np.ones(50, np.float32) for _ in range(ranks)]
        for array in arrays[-2:]:
            array[17] = value
        with pytest.raises(NonFiniteError) as caught:
            local(arrays, key="v")
        return str(caught.value)

    if ranks == 1 and value == 3e38:
        pytest.skip("one rank's value alone is finite")
    (found, apart), _ = both(monkeypatch, "direct/powersgd(rank=2)/ef", ranks, calls)
    assert found == apart


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_of_other_dtypes_float32_is_summed_as_before(dtype):
    local = LocalAllreduce("direct/powersgd(rank=2)/ef", 2)
    local([np.ones(5, dtype) for _ in range(2)], key="v")
    assert {type(plan) for plan in local._plans.values()} == {IndirectPlan}


def test_matrices_are_not_summed_as_they_are():
    local = LocalAllreduce("direct/powersgd(rank=2)/ef", 2)
    local([np.ones((40, 40), np.float32) for _ in range(2)], key="m")
    assert {type(plan) for plan in local._plans.values()} == {IndirectPlan}

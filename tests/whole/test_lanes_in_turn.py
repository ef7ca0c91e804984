"""Lanes that run one by one: as many as keep the messages that a rank holds at a time below a limit."""

import pytest
from reductions import arrays, copies, nothing_lost, residuals, same_everywhere
from schemes import WHOLE, variants

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import lanes, layout
from gqallreduce.runtime.local import LocalAllreduce


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(lanes, "LANE_BYTES", 128)
    monkeypatch.setattr(lanes, "HELD_LEAST", 1)
    monkeypatch.setattr(lanes, "HELD_SHARE", 0.1)
    monkeypatch.setattr(lanes, "HELD_MESSAGE", 16)
    monkeypatch.setattr(layout, "BLOCK", 100)


@variants("text", WHOLE)
@pytest.mark.usefixtures("little_memory")
def test_lanes_one_by_one_lose_nothing(text):
    local = LocalAllreduce(f"allgather/{text}/ef", 3)
    for step in range(3):
        gradients, before = arrays(step, 3, (67, 71)), residuals(local)
        results = local(copies(gradients), key="w")
        same_everywhere(results)
        nothing_lost(local, gradients, before, results)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("text", ["raw", "onebit/ef", "qsgd(bits=4, bucket=64)/ef", "topk(ratio=0.1)/ef"])
def test_a_group_in_them_has_the_bits_of_its_keys_alone(text):
    shapes, keys = [(40, 31), (7,), (900,), (3, 3)], list("abcd")
    alone, together = (LocalAllreduce(f"allgather/{text}", 4) for _ in range(2))
    for step in range(2):
        given = [[arrays(step, 4, shape)[rank] for shape in shapes] for rank in range(4)]
        expected, found = ([[each.copy() for each in mine] for mine in given] for _ in range(2))
        for number, key in enumerate(keys):
            alone([mine[number] for mine in expected], key=key)
        together(found, key=keys)
        for mine, theirs in zip(expected, found, strict=True):
            assert [each.tobytes() for each in mine] == [each.tobytes() for each in theirs]


def test_units_that_are_not_cut_have_the_same_bits(request):
    """For codecs whose units are never cut by lanes."""
    found = {}
    for way in ("usual", "in turn"):
        if way == "in turn":
            request.getfixturevalue("little_memory")
        for text in ("raw", "onebit/ef", "qsgd(bits=4, bucket=64)/ef"):
            local = LocalAllreduce(f"allgather/{text}", 4)
            results = local(arrays(0, 4, (67, 71)), key="w")
            found[way, text] = results[0].tobytes()
            count = local.plan(0, Buffer(results[0])).lanes
            assert count > 1 if way == "in turn" else count == 1
    for (way, text), each in found.items():
        assert each == found["usual", text], (way, text)

"""The benchmark of predictions from end to end, and the memory that messages take."""

import argparse

import pytest

from gqallreduce.cli import report, scale
from gqallreduce.scheduling import model


def arguments(folder, *words):
    parser = argparse.ArgumentParser()
    scale.add_arguments(parser)
    return parser.parse_args(["--output", str(folder / "scale"), "--ranks", "64", "--nbytes", "4MB", *words])


def test_it_writes_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scale, "MEMORY_RANKS", (4, 16))
    assert scale.run(arguments(tmp_path, "--rates", "25Gbit/s", "1Gbit/s")) == 0
    rows = [row for kind, row in report.rows_of(tmp_path / "scale.jsonl") if kind == "scale"]
    assert len(rows) == len(scale.NODES) * 2 * 6 * len(scale.SCHEMES)
    assert {row["ranks"] for row in rows} == {2, 4, 8, 16, 32, 64}
    assert all(row["schedule"] in model.SCHEDULES and row["seconds"] > 0 for row in rows)
    assert (tmp_path / "scale.png").stat().st_size > 0
    printed = capsys.readouterr().out
    assert "64 cores  25 Gbit/s" in printed
    assert "allgather" in printed


def test_more_cores_never_make_it_slower(tmp_path):
    found = {
        (row["node"], row["rate"], row["ranks"], row["scheme"]): row for row in scale.predictions(arguments(tmp_path))
    }
    for (node, *rest), row in found.items():
        if node == "one core":
            assert found[("64 cores", *rest)]["seconds"] <= row["seconds"]


@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling", "halving_doubling"])
@pytest.mark.parametrize("ranks", [2, 16, 100])
def test_messages_stay_below_the_vector(schedule, ranks):
    """But not those of allgather, which receives all ranks' values."""
    row = scale.memory_of(schedule, ranks, 64 << 20)
    assert 0 < row["messages"] < 0.75 * row["bytes"]
    assert row["lanes_at_once"] <= row["lanes"]


def test_a_call_has_no_more_under_way_than_its_plan_says():
    """Of an allgather, whose messages are more than the vector: one lane at a time."""
    row = scale.memory_of("allgather", 100, 64 << 20)
    assert row["lanes_at_once"] == 1
    assert row["messages"] > row["bytes"]

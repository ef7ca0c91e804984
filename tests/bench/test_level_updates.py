"""The time of level updates: every kind of call is what it says, and the command prints and draws what it measured."""

import argparse
import re
from pathlib import Path

import pytest

from gqallreduce.cli import level_updates
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]


def options(*words):
    parser = argparse.ArgumentParser()
    level_updates.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_calls_learn_as_often_as_they_say(monkeypatch):
    """Each kind of call, with values of its own in every round: what is the same is not solved again."""
    made = []

    class Spy(level_updates.gq.Allreduce):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            made.append(self)

    monkeypatch.setattr(level_updates.gq, "Allreduce", Spy)
    row = level_updates.measure("alq_n(bits=3)", 4096, 2)
    plain, gathers, updates = (each.state_dict()["keys"]["w"]["learned"] for each in made)
    assert [each["calls"] for each in (plain, gathers, updates)] == [4, 4, 4]
    assert (plain["levels"], plain["gathered"]) == (None, None)
    assert gathers["levels"] is None
    assert gathers["gathered"].sum() == 3 * 1024  # not call 0: so many samples do not reach that far
    assert updates["updates"] == 3  # calls 1, 2 and 3
    assert row["bytes"] == 4096
    extra = row["updates"] - row["plain"] + 9 * (row["gathers"] - row["plain"])
    assert row["share"] == pytest.approx(3 * extra / (10_000 * row["plain"]))


def test_the_command_measures_prints_and_draws(tmp_path, capsys):
    words = ["--codecs", "alq(bits=2)", "amq", "--sizes", "4KiB", "64KiB", "--rounds", 1]
    assert level_updates.run(options(*words, "--output", tmp_path / "out")) == 0
    _, rows = read(f"{tmp_path / 'out'}.jsonl", "updates")
    assert [(row["codec"], row["bytes"]) for row in rows] == [
        (codec, size) for codec in ("alq(bits=2)", "amq") for size in (4096, 65536)
    ]
    printed = capsys.readouterr().out
    assert all(cell in printed for line in level_updates.lines(rows) for cell in line)
    for ending in ("png", "svg"):
        assert (tmp_path / f"out.{ending}").stat().st_size > 1000


def test_codecs_that_learn_no_levels_are_refused(tmp_path, capsys):
    for text in ("qsgd", "nosuch", "powersgd"):
        assert level_updates.run(options("--codecs", text, "--output", tmp_path / "out")) == 2
        assert "level_updates:" in capsys.readouterr().err


def test_the_table_of_the_docs_is_that_of_the_results():
    page = (ROOT / "docs" / "codecs.md").read_text()
    shown = re.search(r"^\| codec \| size \| call, ms .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    assert found == level_updates.lines(read(ROOT / "bench" / "results" / "level_updates.jsonl", "updates")[1])

"""The time of low-rank calls: what is measured is what is said, and the command prints, writes and draws it."""

import argparse
import re
from pathlib import Path

import pytest
from mpi4py import MPI

from gqallreduce.cli import low_rank
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]


def options(*words):
    parser = argparse.ArgumentParser()
    low_rank.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_a_ratio_is_that_of_the_times():
    row = low_rank.measure(MPI.COMM_SELF, 64, 2, 3)
    assert (row["side"], row["rank"], row["bytes"], row["sent"]) == (64, 2, 4 * 64 * 64, 0)
    assert low_rank.ratio(row, "plain") == pytest.approx(row["plain"] / (row["products"] + row["sums"]))
    assert all(row[kind] > 0 for kind in ("plain", "feedback", "products", "sums"))


def test_the_command_prints_writes_and_draws(tmp_path, capsys):
    name = tmp_path / "found"
    assert low_rank.run(options("--sides", 32, 64, "--ranks", 1, 2, "--rounds", 1, "--output", name)) == 0
    shown = capsys.readouterr().out
    assert "powersgd on 1 rank;" in shown
    assert [(each["side"], each["rank"]) for each in read(f"{name}.jsonl", "low_rank")[1]] == [
        (32, 1), (64, 1), (32, 2), (64, 2),
    ]  # fmt: skip
    assert (tmp_path / "found.png").stat().st_size > 10_000
    assert (tmp_path / "found.svg").exists()


def test_wrong_numbers_are_refused(capsys):
    assert low_rank.run(options("--ranks", 0)) == 2
    assert "expected sides, ranks and rounds of 1 or more" in capsys.readouterr().err


def test_the_table_of_the_docs_is_that_of_the_results():
    page = (ROOT / "docs" / "codecs.md").read_text()
    shown = re.search(r"^\| matrix \| rank \| call, ms .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    assert found == low_rank.lines(read(ROOT / "bench" / "results" / "low_rank.jsonl", "low_rank")[1])

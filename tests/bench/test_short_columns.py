"""Bits and errors of joined columns: against messages, and the table of the docs."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
from test_quantization_error import gradients

import gqallreduce as gq
from gqallreduce.cli import short_columns
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]


def options(*words):
    parser = argparse.ArgumentParser()
    short_columns.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.mark.parametrize("text", short_columns.CODECS)
def test_longer_columns_take_fewer_bits_and_lose_no_less(text):
    matrices = [np.random.default_rng(seed).standard_normal((60, 200)).astype(np.float32) for seed in range(2)]
    rows = [short_columns.measure(text, least, matrices) for least in (1, 512, 4096)]
    assert [row["bits"] for row in rows] == sorted((row["bits"] for row in rows), reverse=True)
    assert [row["error"] for row in rows] == sorted(row["error"] for row in rows)
    columns = 12000 / 60 if text == "onebit" else 0
    assert text != "onebit" or rows[0]["bits"] == pytest.approx((columns * (8 + 8) * 8) / 12000)


def test_the_bits_are_those_of_a_message():
    v = np.random.default_rng(1).standard_normal((4096, 4)).astype(np.float32)
    for text in short_columns.CODECS:
        row = short_columns.measure(text, 1, [v])
        message = gq.Scheme.parse(text).encode(v.reshape(-1, order="F"))  # a vector has columns of 4096
        assert row["bits"] == 8 * (len(message) - 32) / v.size


def test_the_command_measures_prints_and_draws(tmp_path, capsys):
    assert short_columns.run(options("--gradients", gradients(tmp_path), "--output", tmp_path / "out")) == 0
    machine, rows = read(f"{tmp_path / 'out'}.jsonl", "columns")
    assert machine["gradients"]["data"] == "made up"
    assert len(rows) == len(short_columns.CODECS) * len(short_columns.LEAST)
    printed = capsys.readouterr().out
    assert all(cell in printed for line in short_columns.lines(rows) for cell in line)
    for ending in ("png", "svg"):
        assert (tmp_path / f"out.{ending}").stat().st_size > 1000
    assert short_columns.run(options("--gradients", "/nowhere", "--output", tmp_path / "out")) == 2
    assert "short_columns:" in capsys.readouterr().err


def test_the_table_of_the_docs_is_that_of_the_results():
    page = (ROOT / "docs" / "codecs.md").read_text()
    shown = re.search(r"^\| least elements .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    assert found == short_columns.lines(read(ROOT / "bench" / "results" / "short_columns.jsonl", "columns")[1])

"""Bits of entropy codes: against messages, the entropy, and the tables of the docs."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
from test_quantization_error import gradients

import gqallreduce as gq
from gqallreduce.cli import entropy_codes
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]
V = np.random.default_rng(1).standard_normal(3 * 8192).astype(np.float32)


def options(*words):
    parser = argparse.ArgumentParser()
    entropy_codes.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.mark.parametrize("text", ["qsgd(bits=4)", "natural", "mx(format=fp4)", "qsgd(bits=2, norm=l2, bucket=8192)"])
def test_the_bits_are_those_of_messages_and_no_code_beats_the_entropy(text):
    row = entropy_codes.measure(text, V)
    for column in ("fixed", *entropy_codes.CODINGS):
        scheme = gq.Scheme.parse(entropy_codes.with_option(text, f"coding={column}"))
        assert row[column] == pytest.approx(8 * (len(scheme.encode(V)) - 32) / V.size, abs=0.01)
        assert row["entropy"] < row[column] <= row["fixed"] + 0.01
    assert row["rans"] < row["entropy"] + 0.08


def test_entropies_are_those_of_the_definition():
    v = np.resize(np.array([0, 0, 1, -1], np.float32), 4096)
    assert entropy_codes.measure("qsgd(bits=4, bucket=4096)", v)["entropy"] == 1.5 + 32 / 4096
    assert entropy_codes.measure("natural(bits=4, bucket=4096)", v)["entropy"] == 1.5 + 8 / 4096


def test_learned_levels_are_those_of_the_values():
    learned, uniform = (entropy_codes.measure(f"{name}(bits=3, norm=l2)", V) for name in ("alq", "qsgd"))
    assert learned["entropy"] > uniform["entropy"] + 0.5


def test_the_command_measures_prints_and_draws(tmp_path, capsys):
    codecs = ["qsgd(bits=3)", "alq(bits=2)"]
    words = ["--codecs", *codecs, "--gradients", gradients(tmp_path), "--output", tmp_path / "out"]
    assert entropy_codes.run(options(*words)) == 0
    machine, rows = read(f"{tmp_path / 'out'}.jsonl", "bits")
    assert machine["gradients"]["data"] == "made up"
    assert len(rows) == len(codecs) * (len(entropy_codes.DISTRIBUTIONS) + 1)
    printed = capsys.readouterr().out
    for data in (*entropy_codes.DISTRIBUTIONS, "recorded"):
        assert all(cell in printed for line in entropy_codes.lines(rows, data) for cell in line)
    for ending in ("png", "svg"):
        assert (tmp_path / f"out.{ending}").stat().st_size > 1000
    for wrong in ("qsgd(bits=99)", "raw"):
        assert entropy_codes.run(options("--codecs", wrong, "--output", tmp_path / "out")) == 2
        assert "entropy_codes:" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["Gaussian", "recorded"])
def test_the_tables_of_the_docs_are_those_of_the_results(data):
    page = (ROOT / "docs" / "codecs.md").read_text()
    shown = re.search(rf"^\| {data} values, codec .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    rows = read(ROOT / "bench" / "results" / "entropy_codes.jsonl", "bits")[1]
    assert found == entropy_codes.lines(rows, data)

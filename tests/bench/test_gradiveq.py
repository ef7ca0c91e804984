"""bench/gradiveq.py: losses are those of the definition, trainings are the same whatever the ranks, all is written."""

import argparse
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from gqallreduce.cli import gradiveq, gradiveq_results, projection
from gqallreduce.cli.report import read
from gqallreduce.cli.training.convnet import ConvNet
from gqallreduce.cli.training.convolutions import Setting, ratio, train
from gqallreduce.cli.training.data import load

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def options(*words):
    parser = argparse.ArgumentParser()
    gradiveq.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def gradients(count, shape=(4, 3, 2, 2), rank=5):
    """Filters that all lie in one space of few dimensions, and something beside it."""
    draws = np.random.default_rng(0)
    space = draws.standard_normal((rank, 12))
    found = draws.standard_normal((count, 4, rank)) @ space + 0.1 * draws.standard_normal((count, 4, 12))
    return [each.reshape(shape).astype(np.float32) for each in found]


@pytest.mark.parametrize("reuse", ["first", "pooled"])
def test_the_loss_is_what_lies_outside_the_leading_directions_of_the_training(reuse):
    given = gradients(30)
    length, d, found = projection.losses(given, 20, 8, K=12, d=6, reuse=reuse)
    samples = np.array(given[:20], np.float64).reshape(20, 4, 12)[:, : 1 if reuse == "first" else 4].reshape(-1, 12)
    basis = np.linalg.svd(samples)[2][:6]
    rows = np.array(given[20:28], np.float64).reshape(8, 4, 12)
    lost = np.linalg.norm(rows - rows @ basis.T @ basis, axis=(1, 2)) / np.linalg.norm(rows, axis=(1, 2))
    assert (length, d) == (12, 6)
    assert found == pytest.approx(lost, rel=1e-3)


def test_what_is_no_slice_does_not_count():
    given = gradients(12)
    whole = projection.losses([each[:3] for each in given], 10, K=18, d=3)[2]
    longer = [each.copy() for each in given]
    for each in longer:
        each[3:] = 1e3  # the last 12 of 48 values: a third slice of 18 would need 54
    assert projection.losses(longer, 10, K=18, d=3)[2] == pytest.approx(whole, rel=1e-4)


def test_whole_filters_lose_less_than_parts_of_two():
    given = gradients(120)
    aligned, not_aligned = (projection.against_length(given, length, "filter", "first", 60, 60) for length in (24, 16))
    assert (aligned["aligned"], not_aligned["aligned"]) == (True, False)
    assert aligned["d"] / aligned["K"] == not_aligned["d"] / not_aligned["K"] == 1 / 8
    assert projection.units((16, 8, 3, 2)) == {"hwdf": 128, "filter": 48}
    assert projection.with_energy(given, 12, "filter", "pooled", 0.01, 60, 60)["d"] == 5


def test_a_basis_that_no_longer_fits_loses_more():
    given, other = gradients(120), [each[::-1, ::-1, ::-1].copy() for each in gradients(100)]
    row = projection.ageing(given + other, 24, 20)
    assert len(row["energy"]) == 2
    assert row["energy"][1] > 1.1 * row["energy"][0]


@needs_torch
def test_training_learns_and_coefficients_are_fewer():
    data, setting = load(), Setting(steps=60, batch=64)
    scheme = "gradiveq(warmup=10, train=10, compress=20)"
    kept = {"conv2.weight": []}
    exact, compressed = (train(MPI.COMM_SELF, data, each, 0, setting, kept) for each in ("raw", scheme))
    assert exact["accuracy"] > 0.5 < compressed["accuracy"]
    assert (exact["ratio"], exact["bases"]) == (None, {})
    assert {name: len(each) for name, each in compressed["bases"].items()} == dict.fromkeys(
        ("conv1.weight", "conv2.weight", "conv3.weight"), 2
    )
    assert compressed["ratio"] > 1.5
    assert len(kept["conv2.weight"]) == 120
    again = train(MPI.COMM_SELF, data, "raw", 0, setting)
    assert (again["accuracy"], again["loss"]) == (exact["accuracy"], exact["loss"])


@needs_torch
def test_the_ratio_is_that_of_all_values_to_all_coefficients():
    bases = {"conv2.weight": [(144, 36)], "conv3.weight": [(144, 72), (144, 36)]}
    assert ratio(ConvNet((8, 8), 10, 0), bases) == pytest.approx((2304 + 4608) / (2304 / 4 + 4608 * 3 / 8))


def test_calls_that_are_timed_send_coefficients():
    row = gradiveq.measure(MPI.COMM_SELF, 1, (16, 16, 3, 3), 1)
    assert (row["ranks"], row["bytes"], row["K"], row["d"]) == (1, 4 * 2304, 432, 54)
    assert all(row[kind] > 0 for kind in ("dense", "raw", "gradiveq"))


@needs_torch
def test_the_command_prints_writes_and_draws(tmp_path, capsys, monkeypatch):
    name = tmp_path / "found"
    monkeypatch.setattr(gradiveq, "SCHEMES", gradiveq.SCHEMES[:2])
    monkeypatch.setattr(gradiveq, "SHAPES", gradiveq.SHAPES[:2])
    words = "--steps", 420, "--seeds", 0, "--lengths", 256, 288, "--rounds", 1, "--output", name
    assert gradiveq.run(options(*words), MPI.COMM_SELF) == 0
    shown = capsys.readouterr().out
    assert "Loss of the projection" in shown
    losses = {(row["K"], row["order"], row["reuse"]): row["loss"] for row in read(f"{name}.jsonl", "loss")[1]}
    assert losses[256, "hwdf", "first"] < losses[288, "hwdf", "first"]
    assert losses[288, "filter", "first"] < losses[256, "filter", "first"]
    assert losses[288, "filter", "pooled"] < losses[288, "filter", "first"]
    assert len(gradiveq_results.training_lines(read(f"{name}.jsonl", "training")[1])) == 2
    assert len(gradiveq_results.time_lines(read(f"{name}.jsonl", "time")[1])) == 2
    assert (tmp_path / "found.png").stat().st_size > 10_000
    assert (tmp_path / "found.svg").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("--steps", 300), "expected 400 steps"), (("--rounds", 0), "a round"), ((), "pip install torch")],
)
def test_what_cannot_be_measured_is_refused_and_earlier_results_stay(tmp_path, capsys, monkeypatch, words, problem):
    data = load()  # first: SciPy looks among the modules for torch
    monkeypatch.setattr(gradiveq, "load_everywhere", lambda *_: data)
    monkeypatch.setitem(sys.modules, "torch", None)
    before = tmp_path / "found.jsonl"
    before.write_text("earlier")
    assert gradiveq.run(options(*words, "--output", tmp_path / "found"), MPI.COMM_SELF) == 2
    assert problem in capsys.readouterr().err
    assert before.read_text() == "earlier"


def shown(first):
    """The cells of the table in the docs whose head begins so."""
    page = (ROOT / "docs" / "training.md").read_text()
    table = re.search(rf"^\| {re.escape(first)} \|.*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:] if line]


def test_the_losses_of_the_docs_are_those_of_the_results():
    assert shown("K | multiple of") == gradiveq_results.loss_lines(read(RESULTS / "gradiveq.jsonl", "loss")[1])


def test_the_trainings_of_the_docs_are_those_of_the_results():
    files = {"digits": "gradiveq.jsonl", "MNIST": "gradiveq_mnist.jsonl"}
    lines = {data: gradiveq_results.training_lines(read(RESULTS / file, "training")[1]) for data, file in files.items()}
    assert shown("data | scheme | accuracy % | K / d") == [[data, *line] for data in files for line in lines[data]]


def test_the_speed_ups_of_the_docs_are_those_of_the_results():
    rows = [row for file in ("", "_netbed_4x1gbit") for row in read(RESULTS / f"gradiveq{file}.jsonl", "time")[1]]
    lines = gradiveq_results.time_lines(rows)
    layers = dict.fromkeys((line[1], line[2]) for line in lines)
    expected = [[*layer, *(line[6] for line in lines if (line[1], line[2]) == layer)] for layer in layers]
    assert shown("layer | size | 2 ranks") == expected

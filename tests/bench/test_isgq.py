"""bench/isgq.py: errors are those of the messages, trainings are those of their sums, all is written and drawn."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import factors, isgq, isgq_results
from gqallreduce.cli.report import read
from gqallreduce.cli.training.data import load

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "isgq.jsonl"


def options(*words):
    parser = argparse.ArgumentParser()
    isgq.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.fixture(scope="module")
def data():
    return load(None)


def test_factors_are_those_of_the_gradients(data):
    worker = factors.Worker(data, 32)
    worker.network.draw(1)
    found = worker.factors(data.training.images[:32].T, data.training.labels[:32], 32)
    assert [weight.name for weight, _, _ in found] == ["fc1.weight", "fc2.weight", "fc3.weight"]
    for weight, x, delta in found:
        assert (x >= 0).all()
        np.testing.assert_allclose(x.T @ delta, weight.gradient.T, atol=1e-6)


def test_factors_always_travel_in_the_experiments():
    for text in (*factors.TRAINED, *factors.OF_WORKERS):
        codec = gq.Scheme.parse(factors.sent(text)).codec
        assert codec.name != "isgq" or codec.send == "factors"
    given = gq.Outer(np.ones((64, 2), np.float32), np.ones((64, 2), np.float32))
    assert factors.decoded("isgq(bits=2)", given.x, given.delta, 0, 0)[1] == 2 * (4 + 4 * 64 + 32)


@pytest.mark.slow  # means over many workers
def test_errors_are_less_with_scales_and_gains_and_of_dither_with_workers(data):
    rows = [row for _, row in factors.errors(data, 20)]
    found = {(row["method"], row["bits"], row["layer"]): row["error"] for row in rows}
    for layer in range(3):
        assert found["alternated", "2, 2", layer] < found["fixed", "2, 2", layer]
        assert found["rows, gains", "2, 2", layer] < found["rows", "2, 2", layer]
        assert found["dither, rows", "3, 3", layer] < found["dither, rows", "2, 2", layer] / 4
    one, many = ({row["scheme"]: row["error"] for _, row in factors.workers(data, count)} for count in (1, 32))
    assert many["isgq(bits=2)"] < one["isgq(bits=2)"] / 3
    assert many["isgq(method=mse, bits=2, scale=matrix)"] > one["isgq(method=mse, bits=2, scale=matrix)"] / 3


def test_a_training_by_exact_sums_does_not_depend_on_the_workers(data):
    rows = [next(factors.training(data, "raw", count, 0, 5))[1] for count in (1, 4)]
    assert rows[0]["accuracy"] == pytest.approx(rows[1]["accuracy"], abs=0.02)
    assert rows[0]["ratio"] == 1
    _, row = next(factors.training(data, "isgq(bits=2)", 16, 0, 2))
    assert row["ratio"] > 100  # 8 samples each


def test_times_are_of_the_sums(data):
    rows = isgq.measure(MPI.COMM_SELF, (40, 30), 4, 2)
    by_scheme = {row["scheme"]: row for row in rows}
    assert by_scheme["MPI_Allreduce"]["error"] < 1e-10
    assert 0 < by_scheme["isgq(bits=4, send=factors)"]["error"] < by_scheme["isgq(bits=2, send=factors)"]["error"]
    assert max(row["speedup"] for row in rows if row["scheme"].startswith("MPI")) == 1
    assert all(row["seconds"] > 0 for row in rows)


@pytest.mark.slow  # whole experiments
def test_the_command_prints_writes_and_draws(tmp_path, capsys, monkeypatch):
    for name, few in (("LOOKS", (5,)), ("WORKERS", (1, 4)), ("TRAINED", ("raw", "isgq(bits=2)"))):
        monkeypatch.setattr(factors, name, few)
    name = tmp_path / "found"
    words = "--steps", 2, "--seeds", 0, "--rounds", 1, "--most", 784_000, "--output", name
    assert isgq.run_on(MPI.COMM_SELF, options(*words)) == 0
    shown = capsys.readouterr().out
    for part in ("of one worker", "Error of the mean", "Training", "Times of calls", "rows, gains"):
        assert part in shown
    assert len(read(f"{name}.jsonl", "training")[1]) == 4
    assert (tmp_path / "found.png").stat().st_size > 10_000
    assert (tmp_path / "found.svg").exists()


def test_wrong_numbers_are_refused(capsys):
    assert isgq.run_on(MPI.COMM_SELF, options("--rounds", 0)) == 2
    assert "expected steps, rounds, seeds and numbers of 1 or more" in capsys.readouterr().err
    assert isgq.run_on(MPI.COMM_SELF, options("--data", "/nosuch")) == 2


def table(heading):
    page = (ROOT / "docs" / "training.md").read_text()
    shown = re.search(rf"^\| {re.escape(heading)} .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    lines = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in shown.splitlines() if line]
    return lines[0], lines[2:]


def test_the_tables_of_the_docs_are_those_of_the_results():
    assert table("method | bits of x, delta") == isgq_results.error_table(read(RESULTS, "error")[1])
    assert table("step | scheme | 1 workers") == isgq_results.workers_table(read(RESULTS, "workers")[1])
    assert table("scheme | workers | accuracy")[1] == isgq_results.training_lines(read(RESULTS, "training")[1])
    assert table("layer | gradient | samples")[1] == isgq_results.layer_lines(read(RESULTS, "layer")[1])

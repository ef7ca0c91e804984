"""bench/mem_sgd.py: gradients and losses of logistic regression, and what the paper says of runs without memory."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from scipy.sparse import csr_matrix

from gqallreduce.cli import logistic, mem_sgd
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]


def small(sparse):
    draws = np.random.default_rng(0)
    features = (draws.standard_normal((40, 7)) * (draws.random((40, 7)) < 0.6)).astype(np.float32)
    labels = np.sign(draws.standard_normal(40)).astype(np.float32)
    return logistic.Logistic(csr_matrix(features) if sparse else features, labels, 1, 1.0, 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_mean_of_all_gradients_is_the_slope_of_the_loss(sparse):
    data, x, out = small(sparse), np.linspace(-1, 1, 7), np.empty(7, np.float32)
    mean = np.zeros(7)
    for sample in range(40):
        data.gradient(x.astype(np.float32), sample, out)
        mean += out / 40.0
    for place in range(7):
        step = np.zeros(7)
        step[place] = 1e-2
        assert mean[place] == pytest.approx((data.loss(x + step) - data.loss(x - step)) / 2e-2, abs=2e-4)


def test_the_mean_over_ranks_of_the_gradients_of_their_samples_is_the_mean_of_all():
    data, x, one, mean = small(False), np.linspace(-1, 1, 7, dtype=np.float32), np.empty(7, np.float32), np.zeros(7)
    for sample in range(40):
        data.gradient(x, sample, one)
        mean += one / 40
    for ranks in (1, 3):
        found = np.zeros(7)
        for rank in range(ranks):
            data.gradient_of_part(x, rank, ranks, one)
            found += one / ranks
        assert found == pytest.approx(mean, abs=1e-6)


def test_no_loss_is_below_the_least():
    data = small(False)
    assert all(data.loss(x) > data.least() for x in np.random.default_rng(1).standard_normal((50, 7)))


def test_the_mean_has_the_weights_of_the_theory():
    found, weights = 0.0, (np.arange(30) + 5.0) ** 2
    for t in range(30):
        found += mem_sgd._share(t, 5.0) * (np.sin(t) - found)
    assert found == pytest.approx(weights @ np.sin(np.arange(30)) / weights.sum())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    name = tmp_path_factory.mktemp("mem_sgd") / "out"
    parser = argparse.ArgumentParser()
    mem_sgd.add_arguments(parser)
    chosen = parser.parse_args(["--data", "digits", "--epochs", "2", "--output", str(name)])
    assert mem_sgd.run(chosen, MPI.COMM_SELF) == 0
    return name, read(f"{name}.jsonl", "run")[1]


@pytest.mark.slow  # a whole experiment
def test_with_memory_one_value_a_step_goes_where_sgd_goes_and_without_it_stands_still(outcome):
    name, rows = outcome
    excess = {(row["scheme"], row["delay"]): row["loss"][-1] - row["least"] for row in rows}
    assert excess["raw", 64] < 0.02
    assert excess["topk(k=1, sums=union)/ef", 64] < 2 * excess["raw", 64]
    assert excess["topk(k=1, sums=union)", 64] > 10 * excess["topk(k=1, sums=union)/ef", 64]
    assert excess["randk(k=1)/ef", 64] < excess["randk(k=1)", 64]
    assert all(row["loss"][-1] >= row["least"] for row in rows)
    for ending in ("png", "svg"):
        assert Path(f"{name}.{ending}").stat().st_size > 1000


@pytest.mark.parametrize("name", ["mem_sgd", "mem_sgd_sorted"])
def test_the_table_of_the_docs_is_that_of_the_results(name):
    page = (ROOT / "docs" / "training.md").read_text()
    rows = mem_sgd.lines(read(ROOT / "bench" / "results" / f"{name}.jsonl", "run")[1])
    tables = re.findall(r"^\| data \| scheme \| delay.*?\n\n", page, re.MULTILINE | re.DOTALL)
    (shown,) = (each for each in tables if f"\n| {rows[0][0]} |" in each)
    found = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    assert found == [line[:6] for line in rows]

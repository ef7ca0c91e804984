"""A training whose gradients are summed by their factors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from images import write_images
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import report
from gqallreduce.cli.training.network import Network
from gqallreduce.cli.training.sums import Sums, with_rows

ROOT = Path(__file__).parents[2]


def network_with_gradients(align=16, samples=7):
    network = Network((6, 5, 4, 3), samples, align)
    network.draw(1)
    random = np.random.default_rng(2)
    images = random.random((samples, 6), np.float32).T
    network.loss_and_gradients(images, random.integers(0, 3, samples), 1 / samples)
    return network


def test_the_factors_of_a_gradient_are_input_and_delta_by_rows_of_samples():
    for weight in network_with_gradients().weights:
        if weight.name.endswith("bias"):
            assert weight.factors is None
            continue
        x, delta = weight.factors
        assert x.flags.c_contiguous
        assert delta.flags.c_contiguous
        assert (x.min() >= 0, delta.min() < 0) == (True, True), "ReLU is before the product, not after it"
        np.testing.assert_allclose(delta.T @ x, weight.gradient, atol=1e-6)


@pytest.mark.parametrize("align", [1, 16])
@pytest.mark.parametrize("scheme", ["isgq(bits=3, x_bits=1, send=factors)/ef", "isgq(method=mvu, send=factors)"])
def test_a_sum_is_that_of_the_product_written_into_the_gradient(align, scheme):
    network = network_with_gradients(align)
    expected = gq.Allreduce(scheme, comm=MPI.COMM_SELF, seed=3)
    assignment = {weight.name: scheme for weight in network.weights}
    with Sums(network.weights, assignment, MPI.COMM_SELF, 3, {}) as sums:
        before = {weight.name: weight.gradient.copy() for weight in network.weights}
        for weight in network.weights:
            sums.start(weight)
        sums.wait()
        results = {}
        for weight in network.weights:
            if weight.factors:
                result = expected(gq.Outer(*weight.factors), key=weight.name).T
            else:
                result = expected(before[weight.name].copy(), key=weight.name)
            results[weight.name] = result
            assert weight.gradient.tobytes() == result.tobytes()
            assert sums.tensors[weight.name].encode > 0
            assert np.allclose(weight.gradient, before[weight.name], atol=1e-6) is (weight.factors is None)
            assert np.abs(weight.gradient_memory).sum() == pytest.approx(np.abs(weight.gradient).sum()), "gaps are 0"
        if "/ef" in scheme:
            sums.flush(network.weights)
            for weight in network.weights:
                np.testing.assert_allclose(results[weight.name] + weight.gradient, before[weight.name], atol=1e-6)


def test_another_scheme_gets_the_gradient_itself():
    weight = network_with_gradients().weights[0]
    weight.gradient[...] = 2
    with Sums([weight], {weight.name: "raw"}, MPI.COMM_SELF, 0, {}) as sums:
        sums.start(weight)
        sums.wait()
    assert (weight.gradient == 2).all()


def test_rows_of_zeros_are_added_to_a_part_with_fewer_samples():
    matrix = np.ones((2, 3), np.float32)
    assert with_rows(matrix, None) is matrix
    assert with_rows(matrix, 2) is matrix
    longer = with_rows(matrix, 4)
    assert (longer.dtype, longer.shape, longer.flags.c_contiguous) == (np.float32, (4, 3), True)
    assert longer.sum(axis=1).tolist() == [3, 3, 0, 0]


def trained(folder, *words):
    """The rows of one training in one process."""
    few = ["--data", str(folder), "--hidden", "20", "--batch", "32", "--epochs", "2", "--seeds", "0"]
    few += ["--optimizers", "sgd", "--rates", "sgd=0.1", "--output", str(folder / "made")]
    few += ["--error-every", "5", "--log-every", "4", "--norm-every", "4"]
    command = [sys.executable, ROOT / "bench" / "train_mlp.py", *few, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return {kind: report.read(folder / "made.jsonl", kind)[1] for kind in ("run", "error", "weight")}


@pytest.mark.slow  # tests/mpi/test_training.py trains by factors too
def test_a_training_by_factors_runs_and_is_reproducible(tmp_path):
    write_images(tmp_path)
    schemes = ["isgq(send=factors)", "isgq(bits=3, send=factors)/ef", "fc1*=isgq(send=factors); *=raw", "raw"]
    words = ["--schemes", *schemes, "--flush"]
    found, again = trained(tmp_path, *words), trained(tmp_path, *words)
    weights = {row["scheme"]: row["weights"] for row in found["run"]}
    assert weights == {row["scheme"]: row["weights"] for row in again["run"]}
    assert len(set(weights.values())) == len(schemes)
    for row in found["run"]:
        assert row["diverged"] is None
        assert row["accuracy"] > 0.25  # by guessing 0.1
    for row in found["error"]:
        assert row["error"] < 1e-10 if row["scheme"] == "raw" else 0.001 < row["error"] < 3
    for row in found["weight"]:
        waits = "/ef" in row["scheme"] and row["key"].endswith("weight")
        assert (row["residual_norm"] > 0) is waits


@pytest.mark.slow  # so does tests/mpi/test_training.py
def test_sums_by_factors_that_are_started_train_the_same_weights(tmp_path):
    write_images(tmp_path)
    words = ["--schemes", "isgq(send=factors)/ef", "--rule", "*.bias=raw"]
    waited, started = trained(tmp_path, *words), trained(tmp_path, *words, "--overlap", "always")
    assert started["run"][0]["weights"] == waited["run"][0]["weights"]

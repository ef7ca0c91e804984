"""The training from end to end, on as many ranks as there are. Nothing here looks at a time."""

import argparse
import json

import numpy as np
import pytest
from images import write_images

from gqallreduce.cli import report
from gqallreduce.cli.training import command, evaluation, sums
from gqallreduce.cli.training.data import part
from gqallreduce.cli.training.experiment import weight_names
from gqallreduce.cli.training.weights import Weight
from gqallreduce.errors import NonFiniteError, ReplicaError

pytestmark = pytest.mark.mpi
NAMES = weight_names([36, 20, 10])


def train(comm, folder, *words, images=True):
    """Runs the command on all ranks, by default on a few images in the folder; the exit status."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    few = ["--hidden", "20", "--batch", "32", "--epochs", "2", "--seeds", "0", "--output", str(folder / "made")]
    if images and comm.rank == 0:
        write_images(folder)
    found = ["--data", str(folder)] if images else []
    return command.run_on(comm, parser.parse_args([*few, *found, *words]))


def rows(comm, folder, kind):
    """What rank 0 wrote, told to all."""
    return comm.bcast(report.read(folder / "made.jsonl", kind)[1] if comm.rank == 0 else None)


def test_every_scheme_trains_and_all_is_written(folder, comm):
    schemes = ["dense", "raw", "onebit/ef", "ring/qsgd(bits=4)", "fc1*=adaptive(pi=4)/ef; *=onebit", "isgq/ef"]
    assert train(comm, folder, "--schemes", *schemes, "--log-every", "5", "--loss-at", "4", "--flush") == 0
    found = rows(comm, folder, "run")
    assert [row["scheme"] for row in found] == schemes
    for row in found:
        assert row["steps"] == 12
        assert row["diverged"] is None
        assert set(row["loss_at"]) == {"4", "6", "12"}
        assert row["communication_least"] <= row["communication"]
        if comm.size > 1:
            assert (
                row["sent_with_flush"] > row["sent"]
                if "/ef" in row["scheme"]
                else row["sent_with_flush"] == row["sent"]
            )
    assert {row["key"] for row in rows(comm, folder, "weight")} == set(NAMES)
    if comm.rank == 0:
        assert all((folder / f"made.{ending}").stat().st_size > 0 for ending in ("md", "png", "svg"))


def test_exact_sums_train_as_one_process_would(folder, comm):
    """The same samples make the same mini-batches on any number of ranks."""
    assert train(comm, folder, "--schemes", "dense", "raw", "--optimizers", "sgd", "--loss-at", "3") == 0
    together = rows(comm, folder, "evaluation")
    from mpi4py import MPI

    alone = (
        train(MPI.COMM_SELF, folder, "--schemes", "dense", "--optimizers", "sgd", "--loss-at", "3")
        if comm.rank == 0
        else 0
    )
    assert alone == 0
    expected = rows(comm, folder, "evaluation")
    for first in (0, 3):
        for row, other in zip(together[first : first + 3], expected, strict=True):
            assert row["step"] == other["step"]
            assert row["test_loss"] == pytest.approx(other["test_loss"], rel=1e-3)
            assert row["training_loss"] == pytest.approx(other["training_loss"], rel=1e-3)


def test_bytes_are_those_of_the_calls_and_of_the_exact_sums_at_the_end_of_epochs(folder, comm):
    words = ["--schemes", "dense", "onebit/ef", "--log-every", "1", "--flush"]
    assert train(comm, folder, *words, "--rule", "*.bias=dense", "--align", "1") == 0
    dense, onebit = rows(comm, folder, "run")
    values = 20 * 36 + 20 + 10 * 20 + 10
    assert dense["sent"] == pytest.approx(2 * (comm.size - 1) / comm.size * 4 * values, abs=4)
    assert dense["ratio"] == pytest.approx(1, abs=0.01)
    weights = 20 * 36 + 10 * 20
    flushed = 2 * (comm.size - 1) / comm.size * 4 * weights * 2 / 12
    assert onebit["sent_with_flush"] - onebit["sent"] == pytest.approx(flushed)
    logged = [row["bytes_sent"] for row in rows(comm, folder, "weight") if row["scheme"] == "onebit/ef"]
    assert len(logged) == 12 * len(NAMES)
    assert sum(logged) <= 12 * comm.size * onebit["sent"], "no rank sends more than all do"


@pytest.mark.parametrize("overlap", [pytest.param("always", marks=pytest.mark.slow), "alternate"])
def test_sums_started_during_the_backward_pass_train_the_same_weights(folder, comm, overlap):
    words = ["--schemes", "onebit/ef", "ring/qsgd(bits=4)", "fc1*=adaptive(pi=4)/ef; *=onebit", "isgq(send=factors)/ef"]
    words += ["--rule", "*.bias=raw", "--log-every", "1"]  # sums of MPI have other bits when they are started
    assert train(comm, folder, *words) == 0
    expected = rows(comm, folder, "run"), rows(comm, folder, "weight")
    assert train(comm, folder, *words, "--overlap", overlap) == 0
    found = rows(comm, folder, "run"), rows(comm, folder, "weight")
    for row, other in zip(found[0], expected[0], strict=True):
        assert (row["weights"], row["sent"]) == (other["weights"], other["sent"])
        assert (row["hidden"] is None) == (overlap == "always")
        assert other["hidden"] is None
    sent = [
        {(row["scheme"], row["step"], row["key"]): row["bytes_sent"] for row in each[1]} for each in (found, expected)
    ]
    assert sent[0] == sent[1]


@pytest.mark.slow  # six trainings
def test_a_run_that_diverges_is_reported_and_the_others_go_on(folder, comm):
    words = ["--optimizers", "sgd", "adam", "--rates", "sgd=1e30", "--schemes", "onebit/ef", "dense", "raw"]
    assert train(comm, folder, *words) == 0
    for row in rows(comm, folder, "run"):
        assert (row["diverged"] is None) is (row["optimizer"] == "adam"), row
    if comm.rank == 0:
        assert "1 of 1 diverged after" in (folder / "made.md").read_text()


@pytest.mark.parametrize(
    "words", [["--schemes", "nonsense"], ["--rule", "fc9*=raw"], ["--data", "absent"], ["--batch", "171"]]
)
def test_what_cannot_be_trained_is_refused_on_every_rank_before_anything_starts(folder, comm, capsys, words):
    assert train(comm, folder, *words) == 2
    assert capsys.readouterr().err.startswith("train_mlp: ") is (comm.rank == 0)
    assert not (folder / "made.jsonl").exists()


@pytest.mark.parametrize("scheme", ["onebit/ef", "adaptive(pi=4)/ef", "ring/qsgd(bits=2)", "raw", "dense"])
def test_views_with_gaps_are_summed_as_they_are(comm, scheme):
    exact = np.zeros((10, 7))
    weight = Weight("w", (10, 7), 16, np.float32)
    with sums.Sums([weight], {"w": scheme}, comm, 0, sums.baselines(comm, [scheme])) as summing:
        for rank in range(comm.size):
            gradient = np.random.default_rng(rank).standard_normal((10, 7)).astype(np.float32)
            exact += gradient
            if rank == comm.rank:
                weight.gradient[...] = gradient
        summing.start(weight, at_once=True)
        cost = summing.wait()
        total = weight.gradient.astype(np.float64)
        flushed, nbytes = summing.flush([weight])
        if flushed:
            total += weight.gradient
            assert nbytes == 2 * (comm.size - 1) / comm.size * 4 * 70
        if flushed or scheme in ("raw", "dense"):
            np.testing.assert_allclose(total, exact, atol=1e-5)
    assert np.abs(weight.gradient_memory).sum() == pytest.approx(np.abs(weight.gradient).sum()), "gaps stay zero"
    assert cost.bytes_sent > 0 or comm.size == 1
    weight.value[...] = weight.gradient
    evaluation.replicas_digest(comm, [weight])


@pytest.mark.parametrize("samples", [1, 8, 11])
def test_a_sum_by_factors_is_that_of_all_ranks_products_also_where_their_samples_differ(comm, samples):
    """Ranks with fewer samples, or none, send rows of zeros."""
    scheme = "isgq(bits=8, send=factors)/ef"
    random = np.random.default_rng(5)
    x, delta = random.random((samples, 7), np.float32), random.standard_normal((samples, 10)).astype(np.float32)
    mine = part(samples, comm.rank, comm.size)
    weight = Weight("w", (10, 7), 16, np.float32)
    weight.factors = x[mine], delta[mine]
    weight.gradient[...] = delta[mine].T @ x[mine]
    with sums.Sums([weight], {"w": scheme}, comm, 0, {}) as summing:
        summing.start(weight, samples)
        summing.wait()
        total = weight.gradient.copy()
        assert comm.allgather(total.tobytes()) == [total.tobytes()] * comm.size
        assert 0 < np.linalg.norm(total - delta.T @ x) < 0.02 * np.linalg.norm(delta.T @ x)
        summing.flush([weight])
    np.testing.assert_allclose(total + weight.gradient, delta.T @ x, atol=1e-5)


def test_a_nan_is_an_error_on_every_rank(comm):
    weight = Weight("w", (10, 7), 16, np.float32)
    weight.gradient[3, 2] = np.nan if comm.rank == comm.size - 1 else 1
    with sums.Sums([weight], {"w": "onebit/ef"}, comm, 0, {}) as summing:
        summing.start(weight)
        with pytest.raises(NonFiniteError):
            summing.wait()


def test_replicas_that_differ_are_found_on_every_rank(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot differ from itself")
    weights = [Weight("same", (3, 2), 16, np.float32), Weight("other", (3, 2), 16, np.float32)]
    evaluation.replicas_digest(comm, weights)
    weights[1].value[2, 1] = comm.rank == 1
    with pytest.raises(ReplicaError, match=r"'other' differs from rank 0's on ranks \[1\]"):
        evaluation.replicas_digest(comm, weights)


def test_replicas_are_compared_in_every_epoch(folder, comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("one rank cannot differ from itself")

    def meddle(self, weights):
        weights[0].value += comm.rank
        return [], 0.0

    monkeypatch.setattr(sums.Sums, "flush", meddle)
    with pytest.raises(ReplicaError, match="differs from rank 0's"):
        train(comm, folder, "--schemes", "dense", "--flush")


def test_dumped_gradients_are_those_before_the_sum(folder, comm):
    words = ["--schemes", "dense", "onebit", "--optimizers", "sgd", "--loss-at", "1", "4", "999"]
    assert train(comm, folder, *words, "--dump-gradients", str(folder / "gradients")) == 0
    if comm.rank > 0:
        return
    found = sorted(path.name for path in (folder / "gradients").glob("*.npz"))
    assert found == sorted(f"{name}.step{step:04d}.npz" for name in NAMES for step in (1, 4))
    metadata = json.loads((folder / "gradients" / "metadata.json").read_text())
    assert (metadata["scheme"], metadata["steps"], metadata["ranks"]) == ("dense", [1, 4], comm.size)
    gradients = np.load(folder / "gradients" / "fc1.weight.step0001.npz")["gradients"]
    assert (gradients.shape, gradients.dtype) == ((comm.size, 20, 36), np.float32)
    assert len({each.tobytes() for each in gradients}) == comm.size
    assert (folder / "gradients" / "README.txt").exists()


@pytest.mark.slow  # five trainings
def test_feedback_trains_better_than_none(folder, comm, monkeypatch):
    """Real data, a fixed seed: what the benchmark is for."""
    pytest.importorskip("sklearn")
    monkeypatch.delenv("GQALLREDUCE_DATA", raising=False)
    schemes = ["dense", "onebit", "onebit/ef", "adaptive(pi=64)", "adaptive(pi=64)/ef"]
    words = ["--hidden", "64", "--batch", "64", "--epochs", "5", "--optimizers", "sgd", "--rates", "sgd=0.01"]
    assert train(comm, folder, *words, "--schemes", *schemes, images=False) == 0
    last = {row["scheme"]: row["test_loss"] for row in rows(comm, folder, "evaluation")}
    for codec in ("onebit", "adaptive(pi=64)"):
        excess = {scheme: last[scheme] - last["dense"] for scheme in (codec, f"{codec}/ef")}
        assert excess[f"{codec}/ef"] < 0.5 * excess[codec]

"""The allreduce benchmark from end to end, on as many ranks as there are. Nothing here looks at a time."""

import argparse
import operator

import numpy as np
import pytest

from gqallreduce.cli import bench, dense, exact, measure, report

pytestmark = pytest.mark.mpi
SCHEMES = ("raw", "direct/onebit/ef", "ring/qsgd(bits=4)", "auto/adaptive(pi=64)/ef")


def arguments(folder, *words):
    """What `bench` gets from the command line; a few rounds of two small sizes."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    few = ["--min", "48", "--max", "96", "--repetitions", "2", "--output", str(folder / "sums")]
    return parser.parse_args([*few, "--schemes", *SCHEMES, *words])


def test_the_benchmark_checks_writes_and_draws(folder, comm):
    assert bench.run_on(comm, arguments(folder, "--check")) == 0
    if comm.rank > 0:
        return
    machine, rows = report.read(folder / "sums.jsonl")
    assert machine["ranks"] == comm.size
    assert {row["side"] for row in rows} == {48, 96}
    for side in (48, 96):
        assert {row["scheme"] for row in rows if row["side"] == side} >= {dense.DEFAULT, *SCHEMES}
    for row in rows:
        assert 1 <= len(row["seconds"]) <= 2
        assert row["error"] < (1e-6 if row["dense"] or row["scheme"] == "raw" else 2.0)
    assert (folder / "sums.png").stat().st_size > 0
    assert (folder / "sums.svg").stat().st_size > 0


def test_sizes_that_no_longer_fit_in_the_time_are_left_out(folder, comm, capsys):
    assert bench.run_on(comm, arguments(folder, "--seconds", "1e-9")) == 0
    if comm.rank == 0:
        _, rows = report.read(folder / "sums.jsonl")
        assert {(row["side"], len(row["seconds"])) for row in rows} == {(48, 1)}
        assert "left out: sizes over 48" in capsys.readouterr().out


def test_a_ring_is_forced_or_its_absence_is_explained(comm):
    found, how = dense.baselines(comm)
    assert [each.name for each in found] == [dense.DEFAULT, dense.RING][: len(found)]
    assert how.startswith("ring forced by" if len(found) == 2 else "no forced ring")
    for each in found:
        buffer = np.full(1000, comm.rank + 1, np.float32)
        with each.active():
            each(buffer)
        assert (buffer == comm.size * (comm.size + 1) / 2).all()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 257, 3 * exact.BLOCK + 1])
def test_sums_in_slices_are_the_sums(comm, size):
    slices = exact.Slices(comm, size)
    vector = np.random.default_rng([size, comm.rank]).standard_normal(size)
    expected = comm.allreduce(vector, op=operator.add)
    for part, total in slices.sums(lambda part: vector[part]):
        np.testing.assert_allclose(total, expected[part], rtol=1e-12, atol=1e-12)
    assert sum(part.stop - part.start for part in slices.blocks()) == slices.own.stop - slices.own.start
    assert slices.total(slices.own.stop - slices.own.start) == size


class Meddled(measure.Quantized):
    """A scheme whose results are spoiled by `meddle(self, buffer)`."""

    meddle = None

    def __call__(self, buffer):
        super().__call__(buffer)
        type(self).meddle(self, buffer)


def lose(self, buffer):
    buffer.reshape(-1)[5] += 1e-3


def scale(self, buffer):
    buffer *= np.float32(0.9)


def differ(self, buffer):
    if self.rank == 0:
        buffer.reshape(-1)[7] = np.nextafter(buffer.reshape(-1)[7], np.float32(np.inf))


def spoil(self, buffer):
    buffer.reshape(-1)[-3] = np.nan


@pytest.mark.parametrize(
    ("scheme", "meddle", "complaint"),
    [
        ("direct/onebit/ef", spoil, "neither in the result nor in a residual"),
        ("raw", spoil, "off the exact sum"),
        ("direct/onebit", spoil, "not finite"),
        pytest.param("direct/onebit/ef", lose, "neither in the result nor in a residual", marks=pytest.mark.slow),
        pytest.param("raw", lose, "off the exact sum", marks=pytest.mark.slow),
        ("direct/qsgd(bits=8)", scale, "biased"),
        ("direct/qsgd(bits=4)", differ, "another result than rank 0"),
    ],
)
def test_a_wrong_result_is_found(folder, comm, monkeypatch, capsys, scheme, meddle, complaint):
    if meddle is differ and comm.size == 1:
        pytest.skip("one rank cannot differ from itself")
    monkeypatch.setattr(Meddled, "meddle", meddle)
    monkeypatch.setattr(Meddled, "rank", comm.rank, raising=False)
    monkeypatch.setattr(bench, "Quantized", Meddled)
    assert bench.run_on(comm, arguments(folder, "--check", "--schemes", scheme)) == 1
    assert comm.rank > 0 or complaint in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--schemes", "nonsense"], ["--max", "3"], ["--schemes", "raw", "raw"]])
def test_what_cannot_be_measured_is_refused_on_every_rank(folder, capsys, comm, words):
    assert bench.run_on(comm, arguments(folder, *words)) == 2
    assert capsys.readouterr().err.startswith("bench: ") is (comm.rank == 0)

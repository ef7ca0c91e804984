"""The benchmark of latency from end to end. Nothing here looks at a time."""

import argparse

import pytest

from gqallreduce.cli import dense, latency, report

pytestmark = pytest.mark.mpi


def arguments(folder, *words):
    parser = argparse.ArgumentParser()
    latency.add_arguments(parser)
    few = ["--max", "300", "--repetitions", "2", "--output", str(folder / "latency")]
    return parser.parse_args([*few, "--schemes", "raw", "direct/onebit/ef", *words])


def test_the_benchmark_writes_and_draws(folder, comm, capsys):
    assert latency.run_on(comm, arguments(folder)) == 0
    printed = capsys.readouterr().out
    if comm.rank > 0:
        assert printed == ""
        return
    machine, rows = report.read(folder / "latency.jsonl")
    assert machine["ranks"] == comm.size
    assert {row["bytes"] for row in rows} == {4, 64, 300}
    ways = {(row["scheme"], row["how"]) for row in rows}
    assert ways == {(dense.DEFAULT, "alone")} | {
        (scheme, how) for scheme in ("raw", "direct/onebit/ef") for how in ("alone", "10 under way", "group of 40")
    }
    assert all(1 <= len(row["seconds"]) <= 2 for row in rows)
    assert (folder / "latency.png").stat().st_size > 0
    assert "direct/onebit/ef  10 under way" in printed


def test_both_runtimes_in_turn_and_a_model(folder, comm, monkeypatch):
    monkeypatch.setattr(latency, "sizes", lambda most: [100, latency.MODEL << 10])
    assert latency.run_on(comm, arguments(folder, "--runtimes", "native", "python", "--calls", "alone", "group")) == 0
    if comm.rank == 0:
        _, rows = report.read(folder / "latency.jsonl")
        ways = {(row["scheme"], row["how"]) for row in rows}
        assert ("raw, in Python", "alone") in ways
        assert {how for _, how in ways} == {"alone", "group of 40", "model of 1 tensor", "model of 200 tensors"}
        assert {row["bytes"] for row in rows if row["how"].startswith("model")} == {latency.MODEL << 10}


def test_schemes_without_a_half_are_left_out(folder, comm, capsys):
    calls = ["--calls", "reduce_scatter", "allgather", "--schemes"]
    assert latency.run_on(comm, arguments(folder, *calls, "recursive_doubling/raw")) == 2
    told = "recursive_doubling/raw: got schemes without reduce_scatter or allgather"
    assert comm.rank > 0 or told in capsys.readouterr().err
    assert latency.run_on(comm, arguments(folder, *calls, "direct/terngrad", "direct/raw")) == 0
    if comm.rank == 0:
        _, rows = report.read(folder / "latency.jsonl")
        found = {(row["scheme"], row["how"]) for row in rows if not row["dense"]}
        assert found == {
            ("direct/terngrad", "reduce-scatter"), ("direct/raw", "reduce-scatter"), ("direct/raw", "allgather")
        }  # fmt: skip


def test_a_scheme_that_is_none(folder, comm, capsys):
    assert latency.run_on(comm, arguments(folder, "--schemes", "qsdg")) == 2
    assert comm.rank > 0 or "did you mean" in capsys.readouterr().err


def test_sizes_end_with_the_largest():
    assert latency.sizes(4) == [4]
    assert latency.sizes(64) == [4, 64]
    assert latency.sizes(100) == [4, 64, 100]
    assert latency.sizes(256 << 10) == [4, 64, 1024, 4096, 16384, 40960, 204800, 256 << 10]

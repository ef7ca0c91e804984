"""The benchmark of overlap from end to end. Nothing here looks at a time."""

import argparse

import pytest

from gqallreduce.cli import overlap, report

pytestmark = pytest.mark.mpi


def arguments(folder, *words):
    parser = argparse.ArgumentParser()
    overlap.add_arguments(parser)
    few = ["--sizes", "1", "--rounds", "1", "--output", str(folder / "overlap")]
    return parser.parse_args([*few, "--schemes", "raw", *words])


def test_the_benchmark_writes_and_draws(folder, comm, capsys):
    assert overlap.run_on(comm, arguments(folder)) == 0
    printed = capsys.readouterr().out
    if comm.rank > 0:
        assert printed == ""
        return
    machine, rows = report.read(folder / "overlap.jsonl")
    assert machine["ranks"] == comm.size
    assert {(row["computes"], row["how"]) for row in rows} == {
        (computes, how) for computes in overlap.computations() for how in overlap.WAYS
    }
    assert all(row["both"] > 0 for row in rows)
    assert all(row["hidden_waiting"] is None or 0 <= row["hidden_waiting"] <= 1 for row in rows)
    assert (folder / "overlap.png").stat().st_size > 0
    assert "backward pass" in printed


def test_a_scheme_that_is_none(folder, comm, capsys):
    assert overlap.run_on(comm, arguments(folder, "--schemes", "qsdg")) == 2
    assert comm.rank > 0 or "did you mean" in capsys.readouterr().err

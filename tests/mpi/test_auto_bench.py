"""The benchmark of `auto/` from end to end. Nothing here looks at a time."""

import argparse
from pathlib import Path

import pytest

from gqallreduce.cli import auto, report, tables
from gqallreduce.registry import SCHEDULES


def arguments(folder, *words):
    parser = argparse.ArgumentParser()
    auto.add_arguments(parser)
    few = ["--max", "2000", "--repetitions", "2", "--output", str(folder / "auto")]
    return parser.parse_args([*few, *words])


@pytest.mark.mpi(min_size=2)
def test_every_size_has_a_row_with_all_that_could_have_been_chosen(comm, tmp_path):
    folder = comm.bcast(tmp_path)
    assert auto.run_on(comm, arguments(folder, "--codecs", "onebit/ef", "qsgd(bits=4)")) == 0
    comm.Barrier()
    _, rows = report.read(folder / "auto.jsonl", "auto")
    assert [row["bytes"] for row in rows] == [4, 4, 64, 64, 1024, 1024]
    for row in rows:
        names = set(row["seconds"])
        assert {f"{name}/{row['scheme'].partition('/')[2]}" for name in SCHEDULES} < names
        assert row["scheme"] not in names
        assert row["reason"].startswith("measured: ")
        assert row["best_seconds"] == min(row["seconds"].values())
    assert (folder / "auto.png").stat().st_size > 0
    assert len((folder / "auto.md").read_text().splitlines()) == 2 + len(rows)


@pytest.mark.mpi
def test_wrong_codecs_are_told(comm, tmp_path, capsys):
    assert auto.run_on(comm, arguments(tmp_path, "--codecs", "ring/qsgd")) == 2
    assert ("ring/qsgd" in capsys.readouterr().err) is (comm.rank == 0)


RESULTS = Path(__file__).parents[2] / "bench" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("auto_*.jsonl")), ids=lambda path: path.stem)
def test_the_table_of_results_is_that_of_their_rows(path):
    _, rows = report.read(path, "auto")
    assert tables.markdown(auto.COLUMNS, auto.cells(rows), auto.RIGHT) == path.with_suffix(".md").read_text()


def test_rows_that_are_there_are_drawn_again(tmp_path, capsys):
    earlier = RESULTS / "auto_shared_memory_2.jsonl"
    assert auto.run(arguments(tmp_path, "--draw", str(earlier))) == 0
    assert "within the bounds: 14 of 14 cells" in capsys.readouterr().out
    assert (tmp_path / "auto.md").read_text() == earlier.with_suffix(".md").read_text()
    assert (tmp_path / "auto.png").stat().st_size > 0


def test_what_auto_may_take():
    """Of the better dense sum where that is best, else of the best scheme."""

    def row(dense, direct, mine):
        made = [auto._Contender("MPI", None, None, None), auto._Contender("direct/x", "x", None, None)]
        made.append(auto._Contender("auto/x", "x", None, None))
        for each, seconds in zip(made, (dense, direct, mine), strict=True):
            each.seconds = [seconds]
        return auto._row(made, "x", 4)

    assert row(1.0, 2.0, 1.1 + 40e-6)["of_allowed"] == pytest.approx(1)
    assert row(2.0, 1.0, 1.15)["of_allowed"] == pytest.approx(1)

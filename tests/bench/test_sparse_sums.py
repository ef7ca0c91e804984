"""The bytes of sparse sums: what is counted is what is said, and the command prints, writes and draws it."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest

from gqallreduce.cli import gtopk, sparse_sums
from gqallreduce.cli.report import read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "sparse_sums.jsonl"


def options(*words):
    parser = argparse.ArgumentParser()
    sparse_sums.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.mark.parametrize("places", sparse_sums.PLACES)
def test_places_are_as_they_are_called(places):
    vectors = np.array(list(sparse_sums.contributions(4096, 64, 8, places)))
    assert (np.count_nonzero(vectors, axis=1) == 64).all()
    different = np.count_nonzero(vectors.any(axis=0))
    assert {"shared": different == 64, "apart": different == 8 * 64, "drawn": 64 < different < 8 * 64}[places]


@pytest.mark.parametrize("places", sparse_sums.PLACES)
def test_ours_take_fewer_bytes_than_the_published_methods_and_more_than_half(places):
    for row in sparse_sums.measure(1 << 18, 0.01, 4, places):
        share = sparse_sums.words(row) * row["k"] / row["expected"]
        assert 0.5 < share < 0.8
        assert row["bytes"] <= row["most"] <= 1.1 * row["bytes"]
        assert row["low"] <= row["expected"] <= row["high"]
        if places == "apart" or row["sums"] == "reselect":  # `plan` knows no overlap
            assert row["bytes"] == pytest.approx(row["predicted"], rel=0.05)
        else:
            assert row["bytes"] < 1.05 * row["predicted"]


def test_the_published_numbers_of_words():
    assert sparse_sums.published("allgather", "union", 1000, 5, 8) == (70, 70)
    assert sparse_sums.published("recursive_doubling", "union", 1000, 5, 8) == (30, 70)
    assert sparse_sums.published("direct", "union", 1000, 5, 8) == (17.5, 1010 * 7 / 8)
    assert sparse_sums.published("direct", "reselect", 1000, 5, 8) == (17.5, 17.5)
    assert sparse_sums.expected_words("recursive_doubling", "union", 1000, 5, 8, "shared") == 30
    assert sparse_sums.expected_words("recursive_doubling", "union", 1000, 5, 8, "apart") == 70
    assert sparse_sums.expected_words("direct", "union", 1000, 100, 8, "apart") == 1200 * 7 / 8  # turned dense
    drawn = 1000 * (1 - (1 - 0.005) ** 8)  # different places of 8 ranks
    assert sparse_sums.expected_words("direct", "union", 1000, 5, 8, "drawn") == pytest.approx((10 + 2 * drawn) * 7 / 8)


def test_the_published_tree_loses_half_and_ours_nothing():
    theirs, *ours = gtopk.compare()
    assert theirs["lost"] == pytest.approx(0.52, abs=0.06)
    assert len(ours) == 4
    for row in ours:
        assert row["lost"] < 1e-5


def test_what_a_merge_drops_and_another_branch_keeps_is_lost_by_the_published_code():
    gradients = np.zeros((4, 3))
    gradients[0, 0], gradients[1, 1], gradients[2:, 0] = 1, 5, 4
    assert gtopk.lost_by_tree([gradients], 1) == 1 / 8  # rank 0's 1; the 5 is back in its residual
    gradients[0, 0], gradients[0, 2] = 0, 1
    assert gtopk.lost_by_tree([gradients], 1) == 0


def test_the_command_prints_writes_and_draws(tmp_path, capsys):
    name = tmp_path / "found"
    assert sparse_sums.run(options("--elements", 10000, "--ratios", 0.02, "--ranks", 2, 4, "--output", name)) == 0
    shown = capsys.readouterr().out
    assert "in k words of 4 bytes" in shown
    assert "gTop-k, published code" in shown
    rows = read(f"{name}.jsonl", "sparse_sum")[1]
    assert len(rows) == 2 * 3 * 3 * 2
    assert len(sparse_sums.lines(rows)) == len(rows)
    assert (tmp_path / "found.png").stat().st_size > 10_000
    assert (tmp_path / "found.svg").exists()


@pytest.mark.parametrize("wrong", [("--ranks", 3), ("--ratios", 0), ("--ratios", 0.2, "--ranks", 8)])
def test_wrong_numbers_are_refused(wrong, capsys):
    assert sparse_sums.run(options(*wrong)) == 2
    assert "expected" in capsys.readouterr().err


def test_the_table_of_the_docs_is_that_of_the_results():
    page = (ROOT / "docs" / "codecs.md").read_text()
    shown = re.search(r"^\| schedule \| places \| P = 2 .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:] if line]
    assert found == sparse_sums.summary(read(RESULTS, "sparse_sum")[1], 0.001)

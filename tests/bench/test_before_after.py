"""Two commits in turn: the medians of rounds, the folder of a commit, and the whole command on one tree."""

import argparse
import itertools
import re
import subprocess

import pytest

from gqallreduce.cli import before_after
from gqallreduce.cli.report import read


def options(*words):
    parser = argparse.ArgumentParser()
    before_after.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def row(tree, scheme, *seconds, bed="here"):
    dense = scheme.startswith("MPI")
    return {"bed": bed, "tree": tree, "scheme": scheme, "dense": dense, "seconds": list(seconds), "bytes": 1 << 20}


def test_a_bed_is_so_many_ranks_or_hosts_with_a_rate():
    shared, hosts = before_after.Bed.parse("4"), before_after.Bed.parse("8x250mbit")
    assert (str(shared), str(hosts)) == ("shared memory, 4 ranks", "8 hosts, 250 Mbit/s")
    assert shared.words()[1:] == ["-n", "4"]
    assert hosts.words()[1:5] == ["--hosts", "8", "--rate", "250mbit"]
    for text in ("x1gbit", "4x", "four", "4x1parsec"):
        with pytest.raises(SystemExit):
            options("HEAD", "--beds", text)


def test_a_time_is_the_median_of_rounds_and_a_gain_over_the_better_dense_sum_of_its_commit():
    rows = [row(tree, "MPI_Allreduce", 9.0) for tree in before_after.TREES]
    rows += [row("before", "MPI_Allreduce (ring)", 8.0), row("after", "MPI_Allreduce (ring)", 6.0)]
    rows += [row("before", "raw", *seconds) for seconds in ((3.0, 4.0, 50.0), (1.0,), (90.0,))]
    rows += [row("after", "raw", 2.0), row("before", "raw", 7.0, bed="there"), row("after", "raw", 14.0, bed="there")]
    rows += [row(tree, "MPI_Allreduce", 7.0, bed="there") for tree in before_after.TREES]
    found = {(each["bed"], each["scheme"]): each for each in before_after.summary(rows)}
    here, there = found["here", "raw"], found["there", "raw"]
    assert (here["before"], here["after"], here["ratio"]) == (4.0, 2.0, 0.5)
    assert here["gains"] == {"before": 2.0, "after": 3.0}
    assert (there["ratio"], there["gains"]) == (2.0, {"before": 1.0, "after": 0.5})
    assert before_after.cells(here) == ["here", "raw", "4000", "2000", "0.50", "2x", "3x"]


def repository(folder):
    """A repository of two commits, whose extension says which it is."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", folder]
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "gqallreduce").mkdir()
    (folder / "gqallreduce" / "here").touch()
    for text in ("first", "second"):
        built = f"open('gqallreduce/_kernels.so', 'x').write({text!r})"
        (folder / "setup.py").write_text(f"import sys; assert 'build_ext' in sys.argv; {built}")
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", text], check=True)


def test_an_earlier_commit_is_built_once_in_a_folder_of_its_own(tmp_path, monkeypatch):
    repository(tmp_path)
    monkeypatch.setattr(before_after, "ROOT", tmp_path)
    folders = [before_after.tree_of(name) for name in ("HEAD~1", "HEAD~1", "HEAD")]
    assert folders[0] == folders[1] != folders[2]
    assert [(each / "gqallreduce" / "_kernels.so").read_text() for each in folders[1:]] == ["first", "second"]
    assert not (tmp_path / "gqallreduce" / "_kernels.so").exists()
    with pytest.raises(before_after.Failed, match="git rev-parse"):
        before_after.tree_of("no_such_commit")


def test_the_command_measures_prints_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(before_after, "tree_of", lambda commit: before_after.ROOT)
    name, schemes = tmp_path / "out", ["direct/onebit/ef", "direct/raw"]
    words = ["HEAD", "--beds", 2, "--rounds", 2, "--side", 64, "--seconds", 0.3, "--schemes"]
    assert before_after.run(options(*words, *schemes, "--output", name)) == 0
    machine, rows = read(f"{name}.jsonl", "before_after")
    assert "(before)" in machine["commit"]
    assert "(after)" in machine["commit"]
    assert machine["mpi"]
    assert {(each["tree"], each["round"]) for each in rows} == {
        (tree, n) for tree in before_after.TREES for n in (0, 1)
    }
    assert {each["scheme"] for each in rows if not each["dense"]} == set(schemes)
    printed = capsys.readouterr().out
    assert all(cell in printed for found in before_after.summary(rows) for cell in before_after.cells(found))
    for ending in ("png", "svg"):
        assert name.with_suffix(f".{ending}").stat().st_size > 1000


def test_the_table_of_the_docs_is_that_of_the_results():
    """But for the name of a bed, which it has once."""
    page = (before_after.ROOT / "docs" / "design.md").read_text()
    shown = re.search(r"^\| bed \| scheme \| before ms .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    lines = [[cell.strip(" `") for cell in line.strip().strip("|").split("|")] for line in shown.splitlines() if line]
    _, rows = read(before_after.ROOT / "bench" / "results" / "before_after.jsonl", "before_after")
    found = [before_after.cells(each) for each in before_after.summary(rows)]
    assert lines[0] == list(before_after.COLUMNS)
    for last, line in itertools.pairwise(lines[2:]):
        line[0] = line[0] or last[0]
    assert lines[2:] == found


def test_what_fails_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(before_after, "tree_of", lambda commit: before_after.ROOT)
    words = ["HEAD", "--beds", 1, "--rounds", 1, "--schemes", "direct/nonsense", "--output", tmp_path / "out"]
    assert before_after.run(options(*words)) == 2
    assert "nonsense" in capsys.readouterr().err
    monkeypatch.setattr(before_after, "ROOT", tmp_path)
    assert before_after.run(options(*words)) == 2
    assert "expected a checkout" in capsys.readouterr().err

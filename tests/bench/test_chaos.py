"""The benchmark of faults: what is drawn, what counts as wrong, and one fault of each kind from end to end."""

import argparse
import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gqallreduce.cli import chaos, report


def arguments(folder, *words):
    parser = argparse.ArgumentParser()
    chaos.add_arguments(parser)
    return parser.parse_args(["--output", str(folder / "chaos"), *words])


def test_faults_are_those_of_the_seed_and_no_two_at_one_step(tmp_path):
    given = arguments(tmp_path, "--faults", "40", "--kinds", *chaos.KINDS)
    found = chaos.faults_of(3, given)
    assert found == chaos.faults_of(3, given) != chaos.faults_of(4, given)
    steps = [each["step"] for each in found]
    assert steps == sorted(set(steps))
    assert {each["kind"] for each in found} == set(chaos.KINDS)
    assert all((each["step"] + 1) % chaos.EVERY == 0 for each in found if each["kind"] == "disk")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--trainings", "0"], "0 trainings"),
        (["--faults", "-1"], "-1 faults"),
        (["--ranks", "1"], "--ranks: got 1, expected 2 or more"),
        (["--kinds", "link lost"], "without --netbed"),
        (["--steps", "30", "--faults", "21"], "--steps: got 30"),
        (["--steps", "60", "--faults", "3", "--kinds", "disk"], "of which 3 at one of the 2"),
    ],
)
def test_options_that_cannot_be_are_told(tmp_path, capsys, words, problem):
    """Before a training begins; some of them would look for a step for ever."""
    assert chaos.run(arguments(tmp_path, *words)) == 2
    assert problem in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


NOTED = {"what": "error", "error": "TimeoutError", "seconds": 1.0, "named": [2], "step": 5}


@pytest.mark.parametrize(
    ("kind", "changed", "ranks", "problem"),
    [
        ("stop", {}, 3, ""),
        ("stop", {"seconds": 9.0}, 3, "noticed after 9.0 s"),
        ("stop", {"named": []}, 3, "no rank names it"),
        ("stop", {}, 4, "2 of 3 other ranks noticed"),
        ("stop", {"step": 9}, 3, "0 of 2 other ranks noticed"),
        ("memory", {"named": []}, 3, ""),
        ("link lost", {"named": []}, 3, "no rank names it"),
        ("link slow", {}, 3, "an error, where a rank was stopped or cut off for less than the timeout"),
        ("pause", {}, 3, "an error, where a rank was stopped or cut off for less than the timeout"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, kind, changed, ranks, problem):
    training = chaos.Training(0, arguments(tmp_path), [])
    fault = {"what": "fault", "rank": 2, "step": 5, "kind": kind, "number": 0}
    events = [fault, *({**NOTED, "rank": rank, **changed} for rank in range(2))]
    training._row(fault, events, ranks)
    assert training.wrong == ([f"training 0, step 5, {kind}: {problem}"] if problem else [])


def test_an_error_is_that_of_the_fault_at_its_step(tmp_path):
    training = chaos.Training(0, arguments(tmp_path), [])
    nan, stop = (
        {"what": "fault", "rank": 2, "step": step, "kind": kind, "number": step}
        for step, kind in ((5, "nan"), (6, "stop"))
    )
    skipped = [{**NOTED, "what": "skipped", "error": "NonFiniteError", "rank": rank} for rank in range(2)]
    events = [nan, stop, *skipped, *({**NOTED, "rank": rank, "step": 6} for rank in range(2))]
    assert [training._row(each, events, 3)["errors"] for each in (nan, stop)] == [
        {"NonFiniteError": 2},
        {"TimeoutError": 2},
    ]
    assert not training.wrong


def test_lost_steps_are_those_since_the_last_state_of_a_job_that_ended():
    """A disk that is full leaves the state before; the next job saves at that step again."""
    met = [(0, "pause", 30), (0, "kill", 47), (1, "disk", 60), (1, "memory", 60), (2, "late", 61), (3, "nan", 79)]
    rows = [{"job": job, "fault": kind, "step": step} for job, kind, step in met]
    assert chaos.lost_steps(rows) == {"kill": 7, "memory": 20, "late": 1}


RESULTS = Path(__file__).parents[2] / "bench" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("chaos*.jsonl")), ids=lambda path: path.stem)
def test_the_table_of_results_is_that_of_their_rows(path, tmp_path):
    """And its lost steps are those that the trainings counted."""
    assert chaos.run(arguments(tmp_path, "--draw", str(path))) == 0
    assert (tmp_path / "chaos.md").read_text() == path.with_suffix(".md").read_text()
    _, trainings = report.read(path, "training")
    _, rows = report.read(path, "fault")
    for each in trainings:
        lost = chaos.lost_steps([row for row in rows if row["training"] == each["seed"]])
        assert lost.total() == each["steps_lost"]


@functools.cache
def hosts_can_be_made():
    """Whether bench/netbed finds here what it wants."""
    command = [sys.executable, "bench/netbed", "--hosts", "2", "--no-mpi", "--quiet", "--", "true"]
    return subprocess.run(command).returncode != 77


@pytest.mark.slow
def test_each_kind_of_fault_is_met(tmp_path, capsys, monkeypatch):
    """Where hosts can be made, all kinds are tried on those, and here only a process that ends and one that stops."""
    pytest.importorskip("sklearn", reason="the training is of scikit-learn's digits")
    if shutil.which("mpirun") is None and not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("there is no mpirun")
    kinds = ("kill", "stop") if hosts_can_be_made() else chaos.KINDS
    for name, value in {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    monkeypatch.setattr(chaos, "SPREAD", 0.3)  # after so few steps
    words = "--trainings", "1", "--faults", str(len(kinds)), "--kinds", *kinds, "--steps", "60", "--ranks", "3"
    status = chaos.run(arguments(tmp_path, *words))
    assert status == 0, capsys.readouterr().out
    rows = [row for kind, row in report.rows_of(tmp_path / "chaos.jsonl") if kind == "fault"]
    assert {row["fault"] for row in rows} == set(kinds)


@pytest.mark.slow
def test_each_kind_of_fault_is_met_on_hosts_of_netbed(tmp_path, capsys, monkeypatch):
    pytest.importorskip("sklearn", reason="the training is of scikit-learn's digits")
    if not hosts_can_be_made():
        pytest.skip("bench/netbed cannot make its hosts here")
    for name, value in {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(chaos, "SPREAD", 0.3)  # after so few steps
    words = "--netbed", "--trainings", "1", "--faults", "10", "--steps", "80", "--ranks", "3"
    status = chaos.run(arguments(tmp_path, *words))
    assert status == 0, capsys.readouterr().out
    rows = [row for kind, row in report.rows_of(tmp_path / "chaos.jsonl") if kind == "fault"]
    assert {row["fault"] for row in rows} == set(chaos.KINDS + chaos.LINKS)

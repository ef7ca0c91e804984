"""Which scheme sums which gradient, a whole training of one process, and what is made of its rows."""

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from images import write_images
from mpi4py import MPI

from gqallreduce.cli import report
from gqallreduce.cli.training import command, curves, rules, summary
from gqallreduce.cli.training.experiment import weight_names
from gqallreduce.cli.training.sum_errors import SumErrors

ROOT = Path(__file__).parents[2]
NAMES = weight_names([6, 5, 4])


def test_the_first_rule_that_matches_a_weight_wins_and_what_none_matches_is_exact():
    found = rules.assign([("*.bias", "raw"), ("fc1*", "onebit/ef")], NAMES)
    assert found == {"fc1.weight": "onebit/ef", "fc1.bias": "raw", "fc2.weight": "raw", "fc2.bias": "raw"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("onebit/ef", [("*", "onebit/ef")]),
        ("adaptive( pi=64 )/ef", [("*", "adaptive(pi=64)/ef")]),
        ("dense", [("*", "dense")]),
        ("dense(ring)", [("*", "dense(ring)")]),
        ("fc1*=raw; *=qsgd(bits=2)", [("fc1*", "raw"), ("*", "qsgd(bits=2)")]),
        (
            "fc[12].weight = ring/adaptive(pi=4, scope=column)/ef",
            [("fc[12].weight", "ring/adaptive(pi=4, scope=column)/ef")],
        ),
    ],
)
def test_a_run_is_a_scheme_or_rules(text, expected):
    assert rules.parse(text, rules.scheme_text) == expected


def test_every_run_meets_every_optimizer_but_one_that_names_its_own():
    runs = rules.plan(["dense", "onebit/ef@adagrad"], ["*.bias=dense"], ["adam", "sgd"], {"adam": 0.5}, NAMES)
    ways = [(run.text, run.optimizer, run.rate) for run in runs]
    assert ways == [("dense", "adam", 0.5), ("dense", "sgd", 0.01), ("onebit/ef", "adagrad", 0.01)]
    assert runs[2].assignment["fc1.bias"] == "dense"
    assert runs[2].assignment["fc1.weight"] == "onebit/ef"


@pytest.mark.parametrize(
    ("entries", "first", "complaint"),
    [
        (["onebit(nonsense=3)"], [], "nonsense"),
        (["nonsense"], [], "nonsense"),
        (["fc9*=raw; *=dense"], [], "'fc9\\*=raw' applies to no tensor: the tensors are fc1.weight"),
        (["*=raw; fc1*=dense"], [], "'fc1\\*=dense' applies to no tensor: earlier rules"),
        (["dense"], ["*=raw"], "applies to no tensor"),
        (["dense"], ["raw"], "expected PATTERN=SCHEME"),
        (["dense@nonsense"], [], "no optimizer 'nonsense'"),
        (["dense", "dense@adam"], [], "asked for twice"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(entries, first, complaint):
    with pytest.raises(ValueError, match=complaint):
        rules.plan(entries, first, ["adam"], {}, NAMES)


@pytest.mark.parametrize("text", ["adam", "adam=0", "adam=-1", "adam=x", "adam=inf", "nonsense=1"])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected NAME=RATE"):
        rules.parse_rate(text)


def train(folder, *words):
    """Runs bench/train_mlp.py alone; (status, output, errors)."""
    few = ["--hidden", "20", "--batch", "32", "--epochs", "2", "--output", str(folder / "made")]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "train_mlp.py", *few, *words], capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout, done.stderr


def test_one_process_trains_writes_and_draws_and_draws_again(tmp_path):
    write_images(tmp_path)
    words = ["--data", str(tmp_path), "--seeds", "0", "1", "--rates", "sgd=0.1", "--optimizers", "sgd"]
    status, output, errors = train(
        tmp_path,
        *words,
        "--schemes",
        "dense",
        "onebit/ef",
        "--loss-at",
        "3",
        "5",
        "--log-every",
        "4",
        "--norm-every",
        "8",
        "--error-every",
        "5",
    )
    assert (status, errors) == (0, "")
    _, runs = report.read(tmp_path / "made.jsonl", "run")
    assert [(row["scheme"], row["seed"]) for row in runs] == [
        ("dense", 0),
        ("onebit/ef", 0),
        ("dense", 1),
        ("onebit/ef", 1),
    ]
    assert runs[0]["steps"] == 12
    assert runs[0]["accuracy"] > 0.25  # by guessing 0.1
    assert runs[0]["schemes"]["fc1.bias"] == "dense"
    _, weights = report.read(tmp_path / "made.jsonl", "weight")
    assert {row["step"] for row in weights} == {4, 8, 12}
    assert {row["key"] for row in weights} == set(weight_names([36, 20, 10]))
    for row in weights:
        assert ("residual_norm" in row) is (row["step"] == 8)
        assert row["loss"] > 0
    _, evaluations = report.read(tmp_path / "made.jsonl", "evaluation")
    assert [row["step"] for row in evaluations[:4]] == [3, 5, 6, 12]
    assert "accuracy" in output
    for written in ("made.md", "made.png", "made.svg", "made_error.png", "made_error.svg"):
        assert (tmp_path / written).stat().st_size > 0
    _, compared = report.read(tmp_path / "made.jsonl", "error")
    assert [row["step"] for row in compared[:4]] == [5, 10, 5, 10]
    for row in compared:
        assert row["error"] == 0 if row["scheme"] == "dense" else 0.05 < row["error"] < 3
    again = tmp_path / "again"
    status, output, errors = train(tmp_path, "--draw", *2 * [str(tmp_path / "made.jsonl")], "--output", str(again))
    assert (status, errors) == (0, "")
    assert again.with_suffix(".md").read_text().count("| onebit/ef |") == 1


def test_the_error_of_a_sum_is_that_of_all_weights_together():
    """On one rank the exact sum is the gradient as it was."""
    weights = [SimpleNamespace(gradient=np.arange(1.0, 7).reshape(2, 3)), SimpleNamespace(gradient=np.full(2, 3.0))]
    compared = SumErrors(MPI.COMM_SELF, every=3)
    assert [step for step in range(1, 10) if compared.is_due(step)] == [3, 6, 9]
    after = compared.before(weights)
    weights[0].gradient[1, 2] += 2
    weights[1].gradient[:] = 0
    assert after() == pytest.approx((4 + 18) / (91 + 18))
    assert not SumErrors(MPI.COMM_SELF, every=0).is_due(0)


@pytest.mark.slow  # two trainings
def test_the_same_seed_trains_the_same_weights(tmp_path):
    write_images(tmp_path)
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        words = ["--data", str(tmp_path), "--seeds", "3", "--schemes", "qsgd(bits=2)/ef", "raw"]
        assert train(tmp_path / name, *words)[0] == 0
        found.append([row["weights"] for row in report.read(tmp_path / name / "made.jsonl", "run")[1]])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--schemes", "nonsense"], "nonsense"),
        (["--rule", "fc7.*=raw"], "applies to no tensor"),
        (["--data", "absent"], "absent"),
        (["--batch", "1000"], "more than the 170 images"),
        (["--rates", "adam=fast"], "expected NAME=RATE"),
        (["--target", "95"], "--target 95"),
        (["--seeds", "1", "1"], "--seeds: expected each once"),
        (["--log-every", "-1"], "expected numbers of steps"),
        (["--error-every", "-1"], "expected numbers of steps"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, capsys, words, complaint):
    write_images(tmp_path)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    few = ["--hidden", "20", "--batch", "32", "--output", str(tmp_path / "made"), "--data", str(tmp_path)]
    assert command.run_on(MPI.COMM_SELF, parser.parse_args([*few, *words])) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("train_mlp: ")
    assert complaint in errors


def recorded(scheme, seed, **more):
    row = {"scheme": scheme, "optimizer": "adam", "seed": seed, "diverged": None, "accuracy": 0.9 + 0.01 * seed}
    row |= {"loss_at": {"25": 1.0}, "sent": 1 << 20, "sent_with_flush": 1.5 * (1 << 20), "ratio": 8.0, "target": 0.91}
    row |= {"compute": 1e-3, "communication": 2e-3, "wait": 1e-3, "target_step": 50, "target_seconds": 1.0}
    return row | more


def test_the_table_has_means_with_their_spread():
    rows = [recorded("dense", 0), recorded("dense", 2), recorded("onebit", 0, target_step=None)]
    names, (dense, onebit) = summary.cells(rows, [25, 50])
    found = dict(zip(names, dense, strict=True))
    assert found["accuracy %"] == "91.00 +- 1.41"
    assert (found["loss at 25"], found["loss at 50"]) == ("1.000 +- 0.000", "-")
    assert (found["sent/step"], found["with flush"], found["ratio"]) == ("1 MiB", "1.5 MiB", "8.00")
    assert found["to 91 %"] == "50 steps, 1.0 +- 0.0 s"
    assert onebit[-1] == "not reached"
    assert summary.markdown(rows, [25]).count("\n") == 4


def test_a_run_that_diverged_says_so_beside_those_that_did_not():
    rows = [recorded("onebit", 0), recorded("onebit", 1, diverged=12, accuracy=None, loss_at={}, target_step=None)]
    names, (cells,) = summary.cells(rows, [25])
    found = dict(zip(names, cells, strict=True))
    assert found["accuracy %"] == "1 of 2 diverged after 12 steps; 90.00"
    assert found["to 91 %"].endswith("(1 of 2)")


def test_every_scheme_of_a_plot_looks_different():
    schemes = ["dense", "dense(ring)", "a", "a/ef", *(f"{letter}/ef" for letter in "bcdefghijk")]
    looks = [tuple(sorted(map(str, style.items()))) for style in curves.styles(schemes).values()]
    assert len(looks) == len(schemes)
    assert len(set(looks)) == len(looks)


def test_ways_with_one_optimizer_share_panels():
    ways = [(scheme, optimizer) for scheme in ("dense", "onebit/ef") for optimizer in ("adam", "sgd")]
    groups = {name: {(scheme, name): scheme for scheme in ("dense", "onebit/ef")} for name in ("adam", "sgd")}
    assert curves.grouped(ways) == groups


@pytest.mark.parametrize("more", [[], [("terngrad", "adam")]])
def test_so_do_codecs_with_the_same_options_where_there_are_many(more):
    """Each with the exact ways; but not if one of them has no options."""
    letters, options = "abcde", ("bits=3, bucket=64", "bits=3, bucket=512", "bits=4")
    coded = [(f"{letter}({words})/ef", "adam") for words in options for letter in letters]
    found = curves.grouped([("raw", "adam"), *coded, *more])
    if more:
        assert list(found) == ["adam"]
        return
    assert list(found) == [f"adam, {words}" for words in options]
    for number, labels in enumerate(found.values()):
        mine = coded[len(letters) * number : len(letters) * (number + 1)]
        assert labels == {("raw", "adam"): "raw"} | dict(zip(mine, [f"{each}/ef" for each in letters], strict=True))


@pytest.mark.parametrize("optimizers", [["adam"], ["adam", "sgd"]])
def test_every_way_is_a_line_of_each_panel_of_its_own(optimizers, tmp_path, monkeypatch):
    rows = [
        {"scheme": scheme, "optimizer": optimizer, "seed": 1, "step": step, "sent": step * 10}
        | {"accuracy": 0.5, "test_loss": 1.0, "error": 0.1}
        for scheme in ("raw", "onebit/ef")
        for optimizer in optimizers
        for step in (1, 2)
    ]
    drawn = []
    monkeypatch.setattr(curves, "save", lambda drawing, *_: drawn.append(drawing) or [])
    curves.draw({}, rows, str(tmp_path / "x"))
    curves.draw_errors({}, rows, str(tmp_path / "x"))
    several = len(optimizers) > 1
    assert [len(drawing.axes) for drawing in drawn] == [6 if several else 4, 2 if several else 1]
    for drawing in drawn:
        assert all([line.get_label() for line in panel.lines] == ["raw", "onebit/ef"] for panel in drawing.axes)
        assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["raw", "onebit/ef"]


def test_the_defaults_are_runs_that_make_sense():
    assert len(rules.plan(command.SCHEMES, command.RULES, ["adam"], {}, NAMES)) == len(command.SCHEMES)

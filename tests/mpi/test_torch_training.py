"""bench/train_torch.py: its options, what a run does, and what is made of its rows."""

import argparse
import json

import numpy as np
import pytest
from ranks import alike
from torch_training import torch

import gqallreduce as gq
from gqallreduce.cli import places
from gqallreduce.cli.torch_training import command, summary
from gqallreduce.cli.torch_training.experiment import Experiment, Run, Setting
from gqallreduce.cli.torch_training.recipes import RECIPES
from gqallreduce.cli.torch_training.text import ALPHABET, Text
from gqallreduce.cli.torch_training.transformer import Transformer, loss_of

pytestmark = pytest.mark.mpi
SMALL = "--layers 1 --width 32 --length 16 --batch 24 --steps 4 --warmup 2 --evaluate-every 2 --validation 64"

DIVERGES = "--schemes raw --optimizers sgd --rates sgd=1e30 --steps 3 --evaluate-every 3 --clip 0"


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([*SMALL.split(), *map(str, words)])


@pytest.fixture(scope="module")
def text():
    return Text()


class Rows:
    """A report that keeps what is written."""

    def __init__(self):
        self.rows = []

    def write(self, kind, row):
        self.rows.append((kind, row))

    def show(self, text):
        pass


def test_the_text_is_that_of_the_standard_library(comm, text):
    assert len(text.training) > 1_000_000
    assert len(text.validation) > 100_000
    assert int(text.training.max()) < ALPHABET
    characters, following = text.batch(torch.Generator().manual_seed(comm.rank), 5, 30)
    assert characters.shape == following.shape == (5, 30)
    assert torch.equal(characters[:, 1:], following[:, :-1])
    words = bytes(text.training[:200_000].tolist()).decode("ascii")
    assert "def " in words
    assert "import " in words


def test_the_transformer_sees_no_later_character():
    torch.manual_seed(0)
    model = Transformer(ALPHABET, 2, 64, 12)
    one = torch.randint(ALPHABET, (2, 12))
    two = one.clone()
    two[:, 7:] = torch.randint(ALPHABET, (2, 5))
    with torch.no_grad():
        torch.testing.assert_close(model(one)[:, :7], model(two)[:, :7])
        assert not torch.equal(model(one)[:, 7:], model(two)[:, 7:])
        assert loss_of(model, one, two).item() == pytest.approx(np.log(ALPHABET), rel=0.05)


@pytest.mark.parametrize("optimizer", RECIPES)
@pytest.mark.parametrize("scheme", ["dense", "onebit/ef", "embed*=raw; *=qsgd(bits=4)"])
def test_a_run_trains_alike_on_all_ranks(comm, text, optimizer, scheme):
    arguments, rows = parsed("--overlap", "alternate", "--flush", 3), Rows()
    experiment = Experiment(comm, text, command._setting(arguments), rows)
    row = experiment.train(Run(scheme, optimizer, command.RATES[optimizer], 0), rows)
    assert alike(comm, repr([row["loss"], row["ratio"]]))
    assert row["steps"] == 4
    assert 1 < row["loss"] < np.log(ALPHABET) + 0.1
    assert [each["step"] for kind, each in rows.rows if kind == "evaluation"] == [2, 4]
    if comm.size > 1 and scheme != "dense" and optimizer in ("adamw", "sgd", "sgd_summed", "sgd_corrected", "adagrad"):
        assert row["ratio"] > 1.5
    if comm.size > 1 and scheme == "dense":
        assert row["ratio"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("optimizer", ["adamw_warmup", "sgd_summed_warmup"])
def test_a_warm_up_has_rules_of_its_own(comm, text, optimizer):
    """Two of four steps: what is sent lies between what the rules of the warm-up send and those of the rest."""
    sent = {}
    for first in ("onebit/ef", "qsgd(bits=8)", "dense"):
        arguments = parsed("--schemes", "onebit/ef", "--optimizers", optimizer, "--warmup-rules", first)
        (run,) = command._runs(arguments)
        sent[first] = Experiment(comm, text, command._setting(arguments), Rows()).train(run, Rows())["sent"]
        assert run.scheme == ("onebit/ef" if first == "dense" else f"{first}, then onebit/ef")
    if comm.size > 1:
        assert sent["onebit/ef"] < sent["qsgd(bits=8)"] < sent["dense"]


def test_rules_of_a_warm_up_that_no_optimizer_has_are_an_error():
    with pytest.raises(ValueError, match=r"--warmup-rules: expected an optimizer .*, got adamw onebit_adam"):
        command._runs(parsed("--optimizers", "adamw", "onebit_adam", "--warmup-rules", "raw"))


def test_exact_sums_train_as_one_rank_would(comm, text):
    """Momentum in the optimizer, in the sums, or of each rank: the same losses but for rounding."""
    found = {}
    for optimizer in ("sgd", "sgd_summed", "sgd_corrected"):
        experiment = Experiment(comm, text, command._setting(parsed("--clip", 0)), Rows())
        found[optimizer] = experiment.train(Run("raw", optimizer, 0.1, 1), Rows())["loss"]
    assert max(found.values()) - min(found.values()) < 1e-3


def test_a_run_that_leaves_the_finite_numbers_is_told(comm, text, tmp_path):
    experiment = Experiment(comm, text, command._setting(parsed("--clip", 0)), Rows())
    row = experiment.train(Run("raw", "sgd", 1e30, 0), Rows())
    assert row["loss"] is None
    assert command.run(parsed("--output", tmp_path / "x", *DIVERGES.split())) == 0
    _, (line,) = summary.table([row])
    assert line[3] == "1 of 1 diverged; -"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--optimizers", "nonsense"], "no optimizer 'nonsense'"),
        (["--rates", "adamw=fast"], "expected NAME=RATE"),
        (["--rates", "adamw=nan"], "expected NAME=RATE"),
        (["--rules", "nonsense"], "--rules 'nonsense'"),
        (["--rates", "nonsense=1"], "no optimizer 'nonsense'"),
        (["--schemes", "nonsense"], "nonsense"),
        (["--schemes", "dense", "dense"], "asked for twice"),
        (["--every", 2, 2], "asked for twice"),
        (["--every", 3], "a divisor of --steps 4"),
        (["--fragments", 2], "expected --every"),
        (["--delay", 1], "expected --every"),
        (["--every", 2, "--delay", 2], "fewer than --every 2"),
        (["--every", 2, "--delay", -1], "0 or more steps"),
        (["--every", 2, "--flush", 2], "expected no --ddp and no --every"),
        (["--ddp", "fp32", "--flush", 2], "expected no --ddp and no --every"),
        (["--diloco-only"], "nothing to train"),
        (["--optimizers", "onebit_adam", "--diloco-only", "--every", 2], "nothing to train"),
        (["--width", 40], "a multiple of 32"),
        (["--clip", -1], "expected 0 or more"),
        (["--batch", 7919], "a multiple of the"),
    ],
)
def test_wrong_options_are_told_by_rank_0(comm, tmp_path, capsys, words, complaint):
    if comm.size == 1 and "--batch" in words:
        pytest.skip("every batch is a multiple of 1")
    assert command.run(parsed("--output", tmp_path / "x", *words)) == 2
    said = capsys.readouterr().err
    assert (complaint in said) is (comm.rank == 0)


def test_a_gpu_that_cannot_be_had_is_told_by_rank_0(comm, tmp_path, capsys, monkeypatch):
    def count():
        raise gq.Error("no GPU can be used: the NVIDIA driver (libcuda) is missing")

    monkeypatch.setattr(places.runtime, "count", count)
    assert command.run(parsed("--device", "cuda", "--output", tmp_path / "x")) == 2
    assert ("train_torch: rank 0: no GPU can be used" in capsys.readouterr().err) is (comm.rank == 0)


@pytest.mark.parametrize(("device", "name"), [("host", "train_torch"), ("cuda", "train_torch_cuda")])
def test_the_results_of_a_gpu_have_a_name_of_their_own(folder, comm, monkeypatch, device, name):
    """A host in place of the GPU, which has no part in the name."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(command, "place_of", lambda comm, device: places.OnHost())
    assert command.run(parsed("--device", device, "--schemes", "raw", "--optimizers", "sgd")) == 0
    if comm.rank == 0:
        made = sorted(path.name for path in (folder / "bench" / "results").iterdir())
        assert made == [f"{name}.{kind}" for kind in ("jsonl", "md", "png", "svg")]


def test_sums_after_the_backward_pass_have_a_name_of_their_own():
    words = "--schemes", "raw", "--optimizers", "adamw", "--every", 2
    assert [run.scheme for run in command._runs(parsed(*words))] == ["raw", "DiLoCo 2: raw"]
    later = command._runs(parsed(*words, "--overlap", "never"))
    assert [run.scheme for run in later] == ["raw, after the backward pass", "DiLoCo 2: raw"]


@pytest.mark.parametrize("overlap", ["never", "alternate"])
def test_only_sums_of_gradients_begin_early_or_late(comm, text, overlap):
    experiment = Experiment(comm, text, command._setting(parsed("--overlap", overlap)), Rows())
    row = experiment.train(Run("raw", "sgd", 0.1, 0, every=2), Rows())
    assert "overlapping" in row
    assert not {"after", "hidden"} & row.keys()


def test_a_run_that_diverges_in_its_first_step_has_a_line(comm, text):
    experiment = Experiment(comm, text, command._setting(parsed("--clip", 0)), Rows())
    row = experiment.train(Run("*=float16", "adamw", 1e30, 0, every=1), Rows())
    assert not {"overlapping", "after"} & row.keys()
    _, (line,) = summary.table([row])
    assert line[3] == "1 of 1 diverged; -"


def test_a_nan_that_distributed_data_parallel_goes_on_with_is_told(comm, text):
    kept = Rows()
    row = Experiment(comm, text, command._setting(parsed("--clip", 0)), kept).train(
        Run("", "sgd", 1e30, 0, hook="fp32"), Rows()
    )
    assert row["loss"] is None
    assert [kind for kind, _ in kept.rows] == ["run"]


def test_a_file_without_a_finished_run(comm, tmp_path, capsys):
    file = tmp_path / "cut.jsonl"
    file.write_text('{"kind": "machine"}\n' + json.dumps({"kind": "evaluation", "scheme": "raw", "step": 1}) + "\n")
    status = command.run(parsed("--draw", file, "--output", tmp_path / "x"))
    assert status == (2 if comm.rank == 0 else 0)
    assert ("no run came to its end" in capsys.readouterr().err) is (comm.rank == 0)


def test_two_runs_of_one_name_are_not_drawn_as_one(comm, tmp_path, capsys):
    """They may be of other numbers of steps: their mean would be of neither."""
    run = {"kind": "run", "scheme": "raw", "optimizer": "sgd", "plain": "sgd", "seed": 0, "loss": 1.0}
    for name in ("short", "long"):
        (tmp_path / f"{name}.jsonl").write_text('{"kind": "machine"}\n' + json.dumps(run) + "\n")
    files = [tmp_path / "short.jsonl", tmp_path / "long.jsonl"]
    assert command.run(parsed("--draw", *files, "--output", tmp_path / "x")) == (2 if comm.rank == 0 else 0)
    assert ("two runs of raw, sgd, seed 0" in capsys.readouterr().err) is (comm.rank == 0)


def test_results_are_a_table_and_plots(comm, tmp_path, capsys):
    words = ["--schemes", "dense", "onebit/ef", "--optimizers", "adamw", "onebit_adam", "--seeds", "0", "1"]
    assert command.run(parsed("--output", tmp_path / "found", *words)) == 0
    said = capsys.readouterr().out
    if comm.rank == 0:
        assert "over dense" in said
        lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
        assert [line["kind"] for line in lines].count("run") == 8
        assert lines[0]["steps"] == 4
        assert {path.suffix for path in tmp_path.iterdir()} == {".jsonl", ".md", ".png", ".svg"}
    again = [str(tmp_path / "found.jsonl")]
    status = command.run(parsed("--draw", *again, "--output", tmp_path / "again"))
    assert status == 0
    if comm.rank == 0:
        assert (tmp_path / "again.md").read_text() == (tmp_path / "found.md").read_text()
        assert command.run(parsed("--draw", tmp_path / "none", "--output", tmp_path / "again")) == 2


def test_the_excess_over_dense_is_of_the_same_seed():
    def row(scheme, optimizer, seed, loss):
        times = dict.fromkeys(("compute", "wait", "update"), 0.1)
        more = {"plain": "adamw", "rate": 1, "sent": 1.0, "ratio": 2.0, "overlapping": times}
        return {"scheme": scheme, "optimizer": optimizer, "seed": seed, "loss": loss, **more}

    rows = [row("dense", "adamw", 0, 1.0), row("dense", "adamw", 1, 2.0)]
    rows += [row("onebit/ef", "onebit_adam", 0, 1.5), row("onebit/ef", "onebit_adam", 1, 2.1)]
    lines = {tuple(line[:2]): line for line in summary.table(rows)[1]}
    assert lines["onebit/ef", "onebit_adam"][4] == "0.300 +- 0.283"


@pytest.mark.parametrize(
    "run",
    [
        *({"hook": name} for name in ("fp32", "fp16", "bf16", "powersgd")),
        {"every": 2},
        {"every": 2, "outer": "mean"},
        {"every": 2, "fragments": 2, "delay": 1},
    ],
    ids=str,
)
def test_other_ways_of_training_are_measured_alike(comm, text, run):
    if run.get("hook") == "bf16" and torch.version.cuda is None:
        pytest.skip("PyTorch built without CUDA refuses its bf16 hook")
    rows = Rows()
    rules = "" if "hook" in run else "onebit/ef"
    row = Experiment(comm, text, command._setting(parsed()), rows).train(Run(rules, "adamw", 1e-3, 0, **run), rows)
    assert alike(comm, repr(row["loss"]))
    assert 1 < row["loss"] < np.log(ALPHABET) + 0.1
    evaluations = [each for kind, each in rows.rows if kind == "evaluation"]
    assert 0 < evaluations[0]["seconds"] < evaluations[1]["seconds"]
    assert (row["sent"] is None) == ("hook" in run)


def test_the_bytes_of_each_part_of_a_model_count_once(comm, text):
    rows = [
        Experiment(comm, text, command._setting(parsed()), Rows()).train(
            Run("raw", "sgd", 0.1, 0, every=2, fragments=fragments), Rows()
        )
        for fragments in (1, 3)
    ]
    assert rows[0]["sent"] <= rows[1]["sent"] <= 2 * rows[0]["sent"]  # headers, which are much of so small a model


def test_parts_and_delay_are_in_the_name_of_a_run():
    words = "--schemes", "raw", "--optimizers", "adamw", "--every", 4, "--diloco-only", "--fragments", 2, "--delay", 1
    assert [run.scheme for run in command._runs(parsed(*words))] == ["DiLoCo 4, 2 parts, delay 1: raw"]


def test_ddp_and_exact_sums_train_alike(comm, text):
    found = []
    for run in (Run("", "sgd", 0.1, 0, hook="fp32"), Run("raw", "sgd", 0.1, 0)):
        setting = command._setting(parsed("--clip-after"))
        found.append(Experiment(comm, text, setting, Rows()).train(run, Rows())["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_the_time_to_a_loss_lies_between_two_validations():
    found = [{"loss": 3.0, "seconds": 10.0}, {"loss": 2.0, "seconds": 20.0}, {"loss": 1.0, "seconds": 40.0}]
    assert summary._seconds_to(2.5, found) == 15.0
    assert summary._seconds_to(2.0, found) == 20.0
    assert summary._seconds_to(3.5, found) == 10.0
    assert summary._seconds_to(0.5, found) is None


def test_settings_are_the_options():
    assert set(Setting.__dataclass_fields__) <= vars(parsed()).keys()


def test_a_run_that_has_sent_nothing_yet_is_drawn_from_its_first_sum_on():
    losses = {"scheme": "a", "optimizer": "adamw", "network": None}
    rows = [
        {**losses, "step": step, "loss": 1.0 / step, "sent": sent}
        for step, sent in ((1, 0), (2, 1 << 20), (3, 2 << 20))
    ]
    drawn = []

    class Panel:
        def plot(self, x, y, **_):
            drawn.append((list(x), list(y)))

    summary._curves([Panel(), Panel()], ["step", "sent"], rows, {}, "a")
    assert drawn == [([1, 2, 3], [1, 1 / 2, 1 / 3]), ([1, 2], [1 / 2, 1 / 3])]

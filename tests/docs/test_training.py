"""Tables of docs/training.md on schemes and optimizers: what the rows in bench/results say."""

import re
from pathlib import Path

import numpy as np
import pytest

from gqallreduce.cli.report import Report, read
from gqallreduce.cli.torch_training import summary

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PAGE = (ROOT / "docs" / "training.md").read_text()
LARGE = "train_char", "train_char_seeds"
SECOND = "train_char_second"  # another machine than that of LARGE: AdamW, and OneBitAdam with 100 and 200 exact steps
# Results of bench/train_torch.py, and the files that each table was drawn from, if not from that of its own name.
DRAWN = {path.stem: (path.stem,) for path in RESULTS.glob("train_char_*.md")} | {"train_char_all": LARGE}
DRAWN |= {f"{SECOND}_{exact}": (SECOND, f"{SECOND}_{exact}") for exact in (100, 200)}


def section(heading):
    return PAGE.split(f"\n#### {heading}\n")[1].split("\n#### ")[0]


def table(text, first):
    """Cells of the rows of the table whose first column has a name, without the quotes of code."""
    body = text.split(f"\n| {first} | ")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in body]


def rows(names, kind):
    return [row for name in names for row in read(RESULTS / f"{name}.jsonl", kind)[1]]


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_table_is_drawn_from_its_rows(name, tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "_draw", lambda *_: [])
    summary.show(Report(), {}, rows(DRAWN[name], "run"), rows(DRAWN[name], "evaluation"), tmp_path / "again")
    assert (tmp_path / "again.md").read_text() == (RESULTS / f"{name}.md").read_text()


def test_goals_that_are_said_to_be_met_are_met():
    found = rows(LARGE, "run")
    dense = {(row["optimizer"], row["seed"]): row["loss"] for row in found if row["scheme"] == "dense"}
    cells = table(section("Goals"), "scheme")
    for scheme, optimizer, *said, verdict in cells:
        runs = {row["seed"]: row for row in found if (row["scheme"], row["optimizer"]) == (scheme, optimizer)}
        above = [runs[seed]["loss"] - dense[runs[seed]["plain"], seed] for seed in range(3)]
        mean = f"{np.mean(above):+.3f} +- {np.std(above, ddof=1):.3f}"
        assert said == [*(f"{each:+.3f}" for each in above), mean]
        goal = float(verdict.split(":")[0])
        over = sum(each > goal for each in above)
        assert (np.mean(above) <= goal) == ("met" in verdict)
        assert ("missed by one seed" in verdict) == (over == 1 and np.mean(above) <= goal)
    assert len(cells) == 6


def test_losses_on_the_second_machine_are_those_of_the_rows():
    dense = {row["seed"]: row["loss"] for row in rows([SECOND], "run") if row["scheme"] == "dense"}
    cells = table(section("AdamW, and how many steps are exact"), "optimizer")
    for optimizer, exact, scheme, *said in cells:
        name = SECOND if exact == "0" else f"{SECOND}_{exact}"
        runs = {row["seed"]: row for row in rows([name], "run") if row["scheme"] == scheme}
        assert {row["optimizer"] for row in runs.values()} == {optimizer}
        above = [runs[seed]["loss"] - dense[seed] for seed in range(3)]
        sent, ratio = runs[0]["sent"], runs[0]["ratio"]
        mean = f"{np.mean(above):+.3f} +- {np.std(above, ddof=1):.3f}"
        size = f"{sent / 2**20:.2f} MiB" if sent >= 2**20 else f"{sent / 1024:.0f} KiB"
        assert said == [*(f"{each:+.3f}" for each in above), mean, size, f"{ratio:.1f}"]
    assert len(cells) == 7


def test_bytes_with_exact_steps_are_those_of_the_rows():
    (four_bits,) = {row["sent"] for row in rows([SECOND], "run") if row["scheme"] == "qsgd(bits=4)"}
    cells = table(section("Bytes with exact steps"), "optimizer")
    for way, scheme, *said in cells:
        optimizer, exact = re.match(r"(\w+)`, (\d+) exact", way).groups()
        compressed, whole = step_bytes(scheme)
        (mean,) = {
            row["sent"] for row in rows(LARGE, "run") if (row["scheme"], row["optimizer"]) == (scheme, optimizer)
        }
        assert mean == pytest.approx((int(exact) * whole + (500 - int(exact)) * compressed) / 500)
        texts = f"{compressed / 1024:.0f} KiB", f"{whole / 2**20:.1f} MiB", f"{mean / 2**20:.2f} MiB"
        steps = first_with_fewer(four_bits, compressed, whole, exact_steps(optimizer, int(exact)))
        assert said == [*texts, f"from {steps} steps on"]
    assert len(cells) == 4


def step_bytes(scheme):
    """(of a compressed step, of an exact one), of OneBitAdam, whose first 100 steps are exact."""
    who = scheme, "onebit_adam", 0
    sent = {
        row["step"]: row["sent"]
        for row in rows(LARGE, "evaluation")
        if (row["scheme"], row["optimizer"], row["seed"]) == who
    }
    return (sent[500] - sent[100]) / 400, sent[100] / 100


def exact_steps(optimizer, count, most=5000):
    """Numbers of the steps that are exact: at first, or by the policy of 0/1 Adam."""
    if optimizer == "onebit_adam":
        return set(range(1, count + 1))
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + 2 ** ((len(found) - 1) // 16))
    assert sum(each <= 500 for each in found) == count
    return set(found)


def first_with_fewer(others, compressed, whole, exact, most=5000):
    """The number of steps from which on all steps together send less than as many of the others."""
    steps = np.arange(1, most + 1)
    sent = np.cumsum([whole if step in exact else compressed for step in steps])
    return int(steps[sent >= steps * others].max()) + 1

"""The tables and plots of a training, from its rows alone."""

from pathlib import Path

import numpy as np

from gqallreduce.cli.plots import figure, place, save, ticks
from gqallreduce.cli.report import size_text
from gqallreduce.cli.tables import markdown, results
from gqallreduce.cli.training.curves import styles
from gqallreduce.cli.training.summary import by_way, spread
from gqallreduce.quantities import seconds_text

COLUMNS = ("scheme", "optimizer", "rate", "loss", "over dense", "sent/step", "ratio", "compute", "wait", "hidden %")
TIMED = ("network/step", "seconds", "to target", "times")
EXACT = "dense", "DDP with gloo, fp32"
MIB = 1 << 20


def show(report, machine, rows, evaluations, name, target=None):
    """Prints the table, and writes name.md, name.png and name.svg; the paths.

    target: the loss to which times are told; None for 1 % above the mean of the first way's last losses.
    """
    columns, lines = table(rows, evaluations, target)
    report.table(results("Loss after the last step, and a step's bytes and times", columns, lines, left=COLUMNS[:2]))
    text = markdown(columns, lines, right=columns[2:])
    if "to target" in columns:
        text += f"\nTarget: a validation loss of {target or usual_target(rows):.3f}.\n"
    Path(f"{name}.md").write_text(text)
    return [f"{name}.md", *(_draw(machine, evaluations, name) if evaluations else [])]


def table(rows, evaluations=(), target=None):
    """(names of columns, rows of text), by scheme and optimizer: mean and standard deviation over seeds.

    `over dense`: how much the loss is above that of exact sums with the plain optimizer, over the seeds of both.
    `to target`: seconds of training until the validation loss is the target; `times`: the first way's by these.
    """
    plain = [row for row in rows if row["scheme"] in EXACT and row["optimizer"] == row["plain"]]
    dense = {(row["plain"], row["seed"]): row["loss"] for row in plain}
    ways = by_way(rows)
    lines = [_line(way, found, dense) for way, found in ways.items()]
    timed = evaluations if all("seconds" in row for row in evaluations) else []
    if not timed or any(row["loss"] is None for row in next(iter(ways.values()))):
        return list(COLUMNS), lines
    target, first = target or usual_target(rows), None
    for line, (way, found) in zip(lines, ways.items(), strict=True):
        seconds = [_seconds_to(target, _of(timed, *way, row["seed"])) for row in found]
        first = seconds if first is None else first
        line += _times(found, seconds, first)
    return [*COLUMNS, *TIMED], lines


def usual_target(rows):
    """1 % above the mean of the first way's last losses."""
    return 1.01 * float(np.mean([row["loss"] for row in next(iter(by_way(rows).values()))]))


def _of(evaluations, scheme, optimizer, seed):
    who = {"scheme": scheme, "optimizer": optimizer, "seed": seed}
    return [row for row in evaluations if {name: row[name] for name in who} == who]


def _seconds_to(target, evaluations):
    """When the validation loss first was the target, on the line between two validations; None if it was not."""
    before = None
    for row in evaluations:
        if row["loss"] <= target:
            if before is None or before["loss"] == row["loss"]:
                return row["seconds"]
            share = (before["loss"] - target) / (before["loss"] - row["loss"])
            return before["seconds"] + share * (row["seconds"] - before["seconds"])
        before = row
    return None


def _times(found, seconds, first):
    network = [row["network"] for row in found if row.get("network") is not None]
    well = [each for each in seconds if each is not None]
    text = spread(well, 1) if well else "not reached"
    if 0 < len(well) < len(seconds):
        text += f" ({len(well)} of {len(seconds)})"
    known = well and all(each is not None for each in first)
    return [
        size_text(float(np.mean(network))) if network else "-",
        f"{np.mean([row['seconds'] for row in found]):.0f}",
        text,
        f"{np.mean(first) / np.mean(well):.1f}" if known else "-",
    ]


def _line(way, found, dense):
    scheme, optimizer = way
    well = [row for row in found if row["loss"] is not None]
    loss = spread([row["loss"] for row in well], 3)
    if len(well) < len(found):
        loss = f"{len(found) - len(well)} of {len(found)} diverged; {loss}"
    pairs = [(row["loss"], dense.get((row["plain"], row["seed"]))) for row in well]
    more = [mine - exact for mine, exact in pairs if exact is not None]
    times = [each for row in found if (each := row.get("overlapping") or row.get("after"))]  # of one step at least
    medians = ["-", "-"]
    if times:
        medians = [seconds_text(float(np.mean([each[what] for each in times]))) for what in ("compute", "wait")]
    hidden = [row["hidden"] for row in found if "hidden" in row]
    sent = [row["sent"] for row in found if row["sent"] is not None]
    return [
        scheme,
        optimizer,
        f"{found[0]['rate']:g}",
        loss,
        spread(more, 3),
        size_text(float(np.mean(sent))) if sent else "-",
        f"{np.mean([row['ratio'] for row in found]):.1f}" if sent else "-",
        *medians,
        spread(hidden, 0, 100),
    ]


def _draw(machine, evaluations, name):
    """Loss against steps, seconds where they are known, and bytes, a line of panels for each optimizer."""
    ways = by_way(evaluations)
    optimizers = list(dict.fromkeys(optimizer for _, optimizer in ways))
    across = ["step", *["seconds"] * all("seconds" in row for row in evaluations), "sent"]
    drawing, axes = figure(len(across), lines=len(optimizers))
    looks = styles([scheme for scheme, _ in ways])
    for line, optimizer in enumerate(optimizers):
        panels = axes[len(across) * line : len(across) * (line + 1)]
        for (scheme, used), found in ways.items():
            if used == optimizer:
                _curves(panels, across, found, looks[scheme], scheme)
        for panel, what in zip(panels, across, strict=True):
            label = "MiB sent by a rank" if what == "sent" else what
            panel.set(title=optimizer, xlabel=label, ylabel="validation loss, nats per character")
            if what != "step" and panel.lines:
                panel.set_xscale("log")
                ticks(panel.xaxis)
    lines = {line.get_label(): line for panel in axes for line in panel.lines}
    drawing.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3, frameon=False)
    return save(drawing, f"A transformer on {machine['data']} over {place(machine)}", machine, name)


def _curves(panels, across, found, look, scheme):
    """Means over seeds at the steps of evaluations."""
    by_step = {}
    for row in found:
        by_step.setdefault(row["step"], []).append(row)
    losses = [np.mean([row["loss"] for row in each]) for each in by_step.values()]
    for panel, what in zip(panels, across, strict=True):
        points = [(_mean(each, what), loss) for each, loss in zip(by_step.values(), losses, strict=True)]
        points = [each for each in points if each[0] is not None]  # before its first sum a run has sent nothing
        if points:
            panel.plot(*zip(*points, strict=True), label=scheme, **look)


def _mean(rows, what):
    """Over seeds. Bytes are those of the network where the way does not know its own; None without any."""
    if what != "sent":
        return np.mean([row[what] for row in rows])
    found = [row["network"] if row["sent"] is None else row["sent"] for row in rows]
    return None if None in found or not any(found) else np.mean(found) / MIB

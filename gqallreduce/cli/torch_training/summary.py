"""The tables and plots of a training, from its rows alone."""

from pathlib import Path

import numpy as np

from gqallreduce.cli.plots import figure, place, save, ticks
from gqallreduce.cli.report import size_text
from gqallreduce.cli.tables import results
from gqallreduce.cli.training.curves import styles
from gqallreduce.cli.training.summary import by_way, spread
from gqallreduce.quantities import seconds_text

COLUMNS = ("scheme", "optimizer", "rate", "loss", "over dense", "sent/step", "ratio", "compute", "wait", "hidden %")
MIB = 1 << 20


def show(report, machine, rows, evaluations, name):
    """Prints the table, and writes name.md, name.png and name.svg; the paths."""
    lines = table(rows)
    report.table(results("Loss after the last step, and a step's bytes and times", COLUMNS, lines, left=COLUMNS[:2]))
    rule = ["---", "---", *["---:"] * (len(COLUMNS) - 2)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in [COLUMNS, rule, *lines]) + "\n"
    Path(f"{name}.md").write_text(text)
    return [f"{name}.md", *(_draw(machine, evaluations, name) if evaluations else [])]


def table(rows):
    """Rows of text, by scheme and optimizer: mean and standard deviation over seeds.

    `over dense`: how much the loss is above that of dense sums with the plain optimizer, over the seeds of both.
    """
    plain = [row for row in rows if row["scheme"] == "dense" and row["optimizer"] == row["plain"]]
    dense = {(row["plain"], row["seed"]): row["loss"] for row in plain}
    return [_line(way, found, dense) for way, found in by_way(rows).items()]


def _line(way, found, dense):
    scheme, optimizer = way
    well = [row for row in found if row["loss"] is not None]
    loss = spread([row["loss"] for row in well], 3)
    if len(well) < len(found):
        loss = f"{len(found) - len(well)} of {len(found)} diverged; {loss}"
    pairs = [(row["loss"], dense.get((row["plain"], row["seed"]))) for row in well]
    more = [mine - exact for mine, exact in pairs if exact is not None]
    times = [row.get("overlapping") or row["after"] for row in found]
    hidden = [row["hidden"] for row in found if "hidden" in row]
    return [
        scheme,
        optimizer,
        f"{found[0]['rate']:g}",
        loss,
        spread(more, 3),
        size_text(float(np.mean([row["sent"] for row in found]))),
        f"{np.mean([row['ratio'] for row in found]):.1f}",
        *(seconds_text(float(np.mean([each[what] for each in times]))) for what in ("compute", "wait")),
        spread(hidden, 0, 100),
    ]


def _draw(machine, evaluations, name):
    """Loss against steps and against bytes, a line of panels for each optimizer."""
    ways = by_way(evaluations)
    optimizers = list(dict.fromkeys(optimizer for _, optimizer in ways))
    drawing, axes = figure(2, lines=len(optimizers))
    looks = styles([(scheme, optimizers[0]) for scheme in dict.fromkeys(scheme for scheme, _ in ways)])
    for line, optimizer in enumerate(optimizers):
        panels = axes[2 * line : 2 * line + 2]
        for (scheme, used), found in ways.items():
            if used == optimizer:
                _curves(panels, found, looks[scheme, optimizers[0]], scheme)
        for panel, across in zip(panels, ("step", "MiB sent by a rank"), strict=True):
            panel.set(title=optimizer, xlabel=across, ylabel="validation loss, nats per character")
        panels[1].set_xscale("log")
        ticks(panels[1].xaxis)
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return save(drawing, f"A transformer on {machine['data']} over {place(machine)}", machine, name)


def _curves(panels, found, look, scheme):
    """Means over seeds at the steps of evaluations."""
    by_step = {}
    for row in found:
        by_step.setdefault(row["step"], []).append(row)
    losses = [np.mean([row["loss"] for row in each]) for each in by_step.values()]
    panels[0].plot(list(by_step), losses, label=scheme, **look)
    sent = [np.mean([row["sent"] for row in each]) / MIB for each in by_step.values()]
    panels[1].plot(sent, losses, **look)

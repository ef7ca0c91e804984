"""The plots of a training: accuracy and loss against steps and against bytes, drawn from its rows alone.

Ways to train with one optimizer share a line of panels, named by it, and so do, where these are still many, codecs with
the same options.
"""

import re

import numpy as np

from gqallreduce.cli.plots import COLOURS, MARKERS, figure, place, save, ticks
from gqallreduce.cli.training.rules import DENSE, RING
from gqallreduce.cli.training.summary import by_way

MIB = 1 << 20
EXACT = DENSE, RING, "raw"
# More lines than that in one panel cannot be told apart.
MOST = 12
ACROSS = {"step": "step", "sent": "MiB sent per rank"}
SHOWN = ("accuracy", "step"), ("accuracy", "sent"), ("test_loss", "step"), ("test_loss", "sent")
UNIT = {"accuracy": 100, "test_loss": 1}


def draw(machine, evaluations, name):
    """Draws "evaluation" rows into name.png and name.svg; returns their paths. Bands go from least to largest seed."""
    ways = by_way(evaluations)
    groups = grouped(list(ways))
    shown = SHOWN if len(groups) == 1 else SHOWN[:3]
    drawing, axes = figure(2, 2) if len(groups) == 1 else figure(3, len(groups))
    looks = styles([label for labels in groups.values() for label in labels.values()])
    for line, (title, labels) in enumerate(groups.items()):
        panels = axes[len(shown) * line : len(shown) * (line + 1)]
        for way, label in labels.items():
            for panel, (quantity, across) in zip(panels, shown, strict=True):
                _curve(panel, ways[way], across, quantity, UNIT[quantity], looks[label], label)
        panels[0].set_title(title, loc="left")
    _frame(axes, shown * len(groups), evaluations)
    return _saved(drawing, axes, "Training", machine, name)


def draw_errors(machine, errors, name):
    """Draws "error" rows into name.png and name.svg, but for exact sums; returns their paths."""
    ways = by_way([row for row in errors if row["scheme"] not in (DENSE, RING)])
    groups = grouped(list(ways))
    drawing, axes = figure(len(groups))
    if len(groups) == 1:
        drawing.set_size_inches(10.4, 5.6)  # room for the legend
    looks = styles([label for labels in groups.values() for label in labels.values()])
    for panel, (title, labels) in zip(axes, groups.items(), strict=True):
        for way, label in labels.items():
            _curve(panel, ways[way], "step", "error", 1, looks[label], label)
        panel.set(xlabel="step", ylabel="|sum - exact sum|² / |exact sum|²", yscale="log")
        panel.set_title(title, loc="left")
        ticks(panel.yaxis)
    return _saved(drawing, axes, "Error of the sums in training", machine, name)


def grouped(ways):
    """title -> {way: name of its line}, for ways (scheme, optimizer): what shares panels.

    Exact ways are in all groups of their optimizer, so that the others can be compared with them.
    """
    found = {}
    for optimizer in dict.fromkeys(optimizer for _, optimizer in ways):
        mine = {way: way[0] for way in ways if way[1] == optimizer}
        parts = _by_options(mine) if len(mine) > MOST else {}
        if not parts:
            found[optimizer] = mine
        for options, labels in parts.items():
            found[f"{optimizer}, {options}"] = {way: way[0] for way in mine if way[0] in EXACT} | labels
    return found


def _by_options(ways):
    """options -> {way: its codec}; none if some have no options, or few have the same."""
    found, exact = {}, sum(scheme in EXACT for scheme, _ in ways)
    for way in ways:
        scheme = re.fullmatch(r"(\w+)\((.*)\)(/ef)?", way[0])
        if scheme and way[0] not in EXACT:
            found.setdefault(scheme[2], {})[way] = scheme[1] + (scheme[3] or "")
    return found if max(3 * len(found), 1) <= sum(map(len, found.values())) == len(ways) - exact else {}


def _saved(drawing, axes, what, machine, name):
    """One legend serves all panels; the paths of the files."""
    lines = {line.get_label(): line for panel in axes for line in panel.lines}
    columns = max(2, round(drawing.get_figwidth() / 5))
    drawing.legend(lines.values(), lines, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    return save(drawing, f"{what} on {machine.get('data', 'images')} over {place(machine)}", machine, name)


def styles(schemes):
    """scheme -> line: one colour for each, dotted without feedback. Beyond the colours: the same with other markers."""
    coded = dict.fromkeys(scheme.removesuffix("/ef") for scheme in schemes if scheme not in (DENSE, RING))
    numbers = {scheme: divmod(number, len(COLOURS)) for number, scheme in enumerate(coded)}
    found = {}
    for scheme in schemes:
        exact = scheme in (DENSE, RING)
        again, colour = numbers.get(scheme.removesuffix("/ef"), (0, 0))
        look = {"color": "#000000" if exact else COLOURS[colour], "marker": MARKERS[again % len(MARKERS)]}
        look["linestyle"] = "--" if scheme == RING else "-" if exact or scheme.endswith("/ef") else ":"
        found[scheme] = look | {"markersize": 3.5, "linewidth": 1.4}
    return found


def _curve(panel, rows, horizontal, quantity, unit, style, label):
    """Mean over seeds at every step that all of them have, with a band."""
    by_step = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row)
    seeds = len({row["seed"] for row in rows})
    points = [found for _, found in sorted(by_step.items()) if len(found) == seeds]
    if not points:
        return
    unit_across = 1 / MIB if horizontal == "sent" else 1
    across = [unit_across * np.mean([row[horizontal] for row in found]) for found in points]
    values = [[unit * row[quantity] for row in found] for found in points]
    panel.plot(across, [np.mean(each) for each in values], label=label, **style)
    least, largest = [min(each) for each in values], [max(each) for each in values]
    panel.fill_between(across, least, largest, color=style["color"], alpha=0.08, linewidth=0)


def _frame(axes, shown, rows):
    """Titles and scales; that of accuracies is one for all, and begins above the worst fifth of evaluations."""
    accuracies = [100 * row["accuracy"] for row in rows]
    bottom, best = min(float(np.quantile(accuracies, 0.2)), 99), max(accuracies)
    limits = bottom, best + max(0.05 * (best - bottom), 0.1)
    for panel, (quantity, across) in zip(axes, shown, strict=True):
        panel.set_xlabel(ACROSS[across])
        if across != "step" and max(row["sent"] for row in rows) > 0:
            panel.set_xscale("log")
            ticks(panel.xaxis)
        if quantity == "accuracy":
            panel.set(ylabel="test accuracy, %", ylim=limits)
        else:
            panel.set(ylabel="test loss", yscale="log")
            ticks(panel.yaxis)

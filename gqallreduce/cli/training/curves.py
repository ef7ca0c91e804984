"""The plots of a training: accuracy and loss against steps and against bytes, drawn from its rows alone."""

import numpy as np

from gqallreduce.cli.plots import COLOURS, MARKERS, figure, place, save, ticks
from gqallreduce.cli.training.rules import DENSE, RING
from gqallreduce.cli.training.summary import by_way

MIB = 1 << 20


def draw(machine, evaluations, name):
    """Draws "evaluation" rows into name.png and name.svg; returns their paths. Bands go from least to largest seed."""
    drawing, axes = figure(2, 2)
    ways = by_way(evaluations)
    for (way, rows), style in zip(ways.items(), styles(list(ways)).values(), strict=True):
        for panels, quantity, unit in ((axes[:2], "accuracy", 100), (axes[2:], "test_loss", 1)):
            for panel, horizontal in zip(panels, ("step", "sent"), strict=True):
                _curve(panel, rows, horizontal, quantity, unit, style, ", ".join(way))
    _frame(axes, evaluations)
    return _saved(drawing, axes[0], "Training", machine, name)


def draw_errors(machine, errors, name):
    """Draws "error" rows into name.png and name.svg, but for exact sums; returns their paths."""
    drawing, (panel,) = figure(1)
    drawing.set_size_inches(10.4, 5.6)  # room for the legend
    ways = by_way([row for row in errors if row["scheme"] not in (DENSE, RING)])
    for (way, rows), style in zip(ways.items(), styles(list(ways)).values(), strict=True):
        _curve(panel, rows, "step", "error", 1, style, ", ".join(way))
    panel.set(xlabel="step", ylabel="|sum - exact sum|² / |exact sum|²", yscale="log")
    ticks(panel.yaxis)
    return _saved(drawing, panel, "Error of the sums in training", machine, name)


def _saved(drawing, panel, what, machine, name):
    """The legend of one panel serves all; the paths of the files."""
    handles, labels = panel.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return save(drawing, f"{what} on {machine.get('data', 'images')} over {place(machine)}", machine, name)


def styles(ways):
    """(scheme, optimizer) -> line: one colour per scheme, dotted without feedback; one marker per optimizer.

    Schemes beyond the colours have these again, with other markers.
    """
    schemes = dict.fromkeys(scheme.removesuffix("/ef") for scheme, _ in ways if scheme not in (DENSE, RING))
    numbers = {scheme: divmod(number, len(COLOURS)) for number, scheme in enumerate(schemes)}
    optimizers = list(dict.fromkeys(optimizer for _, optimizer in ways))
    found = {}
    for scheme, optimizer in ways:
        exact = scheme in (DENSE, RING)
        again, colour = numbers.get(scheme.removesuffix("/ef"), (0, 0))
        look = {"color": "#000000" if exact else COLOURS[colour]}
        look["linestyle"] = "--" if scheme == RING else "-" if exact or scheme.endswith("/ef") else ":"
        look["marker"] = MARKERS[(optimizers.index(optimizer) + again * len(optimizers)) % len(MARKERS)]
        found[scheme, optimizer] = look | {"markersize": 3.5, "linewidth": 1.4}
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


def _frame(axes, rows):
    """Titles and scales; the accuracy's axis begins above the worst fifth of all evaluations."""
    worst = 100 * float(np.quantile([row["accuracy"] for row in rows], 0.2))
    for panel, across in zip(axes, ("step", "MiB sent per rank") * 2, strict=True):
        panel.set_xlabel(across)
        if across != "step" and max(row["sent"] for row in rows) > 0:
            panel.set_xscale("log")
            ticks(panel.xaxis)
    for panel in axes[:2]:
        panel.set(ylabel="test accuracy, %")
        panel.set_ylim(bottom=min(worst, 99), top=min(100.5, panel.get_ylim()[1]))
    for panel in axes[2:]:
        panel.set(ylabel="test loss", yscale="log")
        ticks(panel.yaxis)

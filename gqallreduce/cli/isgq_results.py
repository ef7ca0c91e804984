"""Tables and plots of the experiments of ISGQ, from their rows alone: kind -> rows."""

import numpy as np

from gqallreduce.cli.plots import figure, look_of, place, save, ticks
from gqallreduce.cli.report import size_text
from gqallreduce.cli.tables import results

TRAINING = "scheme", "workers", "accuracy %", "bytes: gradient / message"
LAYER = "layer", "gradient", "samples", "scheme", "message", "gradient / message", "error", "what travels alone"
TIMES = "layer", "samples", "scheme", "ms", "x dense", "sent", "error"


def tables(rows):
    """The tables of the parts that were measured."""
    found = []
    if "error" in rows:
        title = "Error |decoded - gradient|^2 / |gradient|^2 of one worker, by step and layer"
        columns, lines = error_table(rows["error"])
        found.append(results(title, columns, lines, left=columns[:2]))
    if "workers" in rows:
        columns, lines = workers_table(rows["workers"])
        found.append(results("Error of the mean of all workers, first layer", columns, lines, left=columns[:2]))
    if "training" in rows:
        found.append(results("Training", TRAINING, training_lines(rows["training"]), left=TRAINING[:1]))
    if "layer" in rows:
        lines = layer_lines(rows["layer"])
        found.append(results("Layers of a convolutional network", LAYER, lines, left=(LAYER[0], LAYER[3])))
    if "time" in rows:
        found.append(results("Times of calls", TIMES, time_lines(rows["time"]), left=("layer", "scheme")))
    return found


def error_table(rows):
    """(columns, lines): a line for each method and number of bits."""
    places = sorted({(row["step"], row["layer"]) for row in rows})
    columns = ["method", "bits of x, delta", *(f"{step}: layer {layer + 1}" for step, layer in places)]
    lines = []
    for method, bits in dict.fromkeys((row["method"], row["bits"]) for row in rows):
        mine = {(row["step"], row["layer"]): row for row in rows if (row["method"], row["bits"]) == (method, bits)}
        lines.append([method, bits, *(f"{mine[each]['error']:.3g}" for each in places)])
    return columns, lines


def workers_table(rows):
    """(columns, lines): a line for each step and scheme."""
    counts = sorted({row["workers"] for row in rows})
    columns, lines = ["step", "scheme", *(f"{count} workers" for count in counts)], []
    for step, scheme in dict.fromkeys((row["step"], row["scheme"]) for row in rows):
        mine = {row["workers"]: row for row in rows if (row["step"], row["scheme"]) == (step, scheme)}
        lines.append([f"{step}", scheme, *(f"{mine[count]['error']:.3f}" for count in counts)])
    return columns, lines


def training_lines(rows):
    """A line for each scheme and number of workers: means over seeds, and the accuracy's standard deviation."""
    found = []
    for scheme, workers in dict.fromkeys((row["scheme"], row["workers"]) for row in rows):
        mine = [row for row in rows if (row["scheme"], row["workers"]) == (scheme, workers)]
        accuracies = [100 * row["accuracy"] for row in mine]
        spread = f"{np.mean(accuracies):.2f} +- {np.std(accuracies):.2f}"
        found.append([scheme, f"{workers}", spread, f"{np.mean([row['ratio'] for row in mine]):.0f}"])
    return found


def layer_lines(rows):
    """A line for each layer, number of samples and scheme."""
    return [
        [
            row["layer"], size_text(row["bytes"]), f"{row['samples']}", row["scheme"], size_text(row["sent"]),
            f"{row['bytes'] / row['sent']:.2f}", f"{row['error']:.3f}", row["travels"],
        ]
        for row in rows
    ]  # fmt: skip


def time_lines(rows):
    """A line for each layer, number of samples and scheme."""
    return [
        [
            " x ".join(map(str, row["layer"])), f"{row['samples']}", row["scheme"], f"{1e3 * row['seconds']:.3g}",
            f"{row['speedup']:.2f}", size_text(row["sent"]), f"{row['error']:.2g}",
        ]
        for row in rows
    ]  # fmt: skip


def draw(description, rows, name):
    """Draws what was measured into name.png and name.svg; returns their paths."""
    kinds = ("workers", _workers), ("training", _training), ("time", _times)
    panels = [(rows[kind], each) for kind, each in kinds if kind in rows]
    if not panels:
        return []
    drawing, axes = figure(len(panels))
    for panel, (mine, each) in zip(axes, panels, strict=True):
        each(panel, mine)
        panel.legend(fontsize="small", framealpha=1, edgecolor="white")
    return save(drawing, f"ISGQ over {place(description)}", description, name)


def _workers(panel, rows):
    last = max(row["step"] for row in rows)
    for number, scheme in enumerate(dict.fromkeys(row["scheme"] for row in rows)):
        mine = [row for row in rows if (row["scheme"], row["step"]) == (scheme, last)]
        panel.plot([row["workers"] for row in mine], [row["error"] for row in mine], label=scheme, **look_of(number))
    panel.set(title=f"Error of the mean gradient, step {last}", xscale="log", yscale="log", xlabel="workers")
    counts = sorted({row["workers"] for row in rows})
    panel.set_xticks(counts, [f"{count}" for count in counts])
    panel.minorticks_off()
    ticks(panel.yaxis)
    panel.set_ylabel("|sum - exact|^2 / |exact|^2")


def _training(panel, rows):
    for number, scheme in enumerate(dict.fromkeys(row["scheme"] for row in rows)):
        of_scheme = [row for row in rows if row["scheme"] == scheme]
        counts = sorted({row["workers"] for row in of_scheme})
        means = [
            [np.mean([row[what] for row in of_scheme if row["workers"] == count]) for count in counts]
            for what in ("ratio", "accuracy")
        ]
        panel.plot(means[0], [100 * each for each in means[1]], label=scheme, **look_of(number))
    counts = " and ".join(f"{count}" for count in sorted({row["workers"] for row in rows}))
    panel.set(title=f"Training of {counts} workers", xscale="log", ylabel="accuracy, %")
    panel.set_xlabel("bytes of a gradient / bytes of a worker's message")
    ticks(panel.xaxis)


def _times(panel, rows):
    number = 0
    for scheme in dict.fromkeys(row["scheme"] for row in rows if row["scheme"].startswith("isgq")):
        for samples in sorted({row["samples"] for row in rows}):
            mine = [row for row in rows if (row["scheme"], row["samples"]) == (scheme, samples)]
            label = f"{scheme.replace(', send=factors', '')}, {samples} samples a rank"
            panel.plot([row["bytes"] for row in mine], [row["speedup"] for row in mine], label=label, **look_of(number))
            number += 1
    panel.axhline(1, color="#777777", linewidth=0.8, zorder=0)
    sizes = sorted({row["bytes"] for row in rows})
    panel.set(title="Product and dense sum against factors", xscale="log", yscale="log", xlabel="size of the gradient")
    panel.set_xticks(sizes, [size_text(size) for size in sizes], rotation=30, ha="right")
    panel.minorticks_off()
    ticks(panel.yaxis, "x")
    panel.set_ylabel("times as fast")

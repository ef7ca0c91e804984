"""Tables and plots of the experiments of GradiVeQ, from their rows alone: kind -> rows."""

import numpy as np

from gqallreduce.cli.plots import figure, look_of, place, save, ticks
from gqallreduce.cli.projection import WINDOW
from gqallreduce.cli.report import size_text
from gqallreduce.cli.tables import results

TRAINING = "scheme", "accuracy %", "K / d", "trainings", "sent/step, KiB"
LOSS = "K", "multiple of", "hwdf, first", "hwdf, pooled", "filter, first", "filter, pooled"
ENERGY = "order", "reuse", "K", "d", "K / d", "promised", "loss"
AGEING = "train", "K", "d"
TIMES = "ranks", "layer", "size", "dense, ms", "raw, ms", "gradiveq, ms", "dense / gradiveq", "raw / gradiveq"
NAMES = {"dense": "MPI_Allreduce", "raw": "raw"}
TIMES = *TIMES, "sent exactly, KiB", "sent, KiB"


def tables(rows):
    """The tables of the parts that were measured."""
    found = []
    if "loss" in rows:
        title = "Loss of the projection on d = K / 8 values, by order and reuse"
        found.append(results(title, LOSS, loss_lines(rows["loss"])))
        found.append(results("Loss with the d of lam", ENERGY, energy_lines(rows["energy"]), left=ENERGY[:2]))
        ageing = rows["ageing"]
        title, heads = "Energy lost, by iterations after training", (*AGEING, *ageing_columns(ageing))
        found.append(results(title, heads, ageing_lines(ageing)))
    if len(rows.get("training", ())) > 1:
        found.append(results("Training", TRAINING, training_lines(rows["training"]), left=TRAINING[:1]))
    if "time" in rows:
        found.append(results("Times of calls", TIMES, time_lines(rows["time"]), left=("layer",)))
    return found


def training_lines(rows):
    """A line for each scheme: means over seeds, and the standard deviation of the accuracy."""
    found = []
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        mine = [row for row in rows if row["scheme"] == scheme]
        accuracies = [100 * row["accuracy"] for row in mine]
        learned = [len(each) for row in mine for each in row["bases"].values()]
        found.append([
            scheme,
            f"{np.mean(accuracies):.2f} +- {np.std(accuracies):.2f}",
            f"{np.mean([row['ratio'] for row in mine]):.1f}" if mine[0]["ratio"] else "1",
            f"{np.mean(learned):.1f}" if learned else "0",
            f"{np.mean([row['sent'] for row in mine]) / 1024:.1f}",
        ])  # fmt: skip
    return found


def loss_lines(rows):
    """A line for each K: what it is a multiple of, and the loss by order and reuse."""
    ways = [tuple(column.split(", ")) for column in LOSS[2:]]
    found = []
    for length in dict.fromkeys(row["K"] for row in rows):
        mine = {(row["order"], row["reuse"]): row for row in rows if row["K"] == length}
        aligned = [name for name, order in (("F D", "hwdf"), ("D H W", "filter")) if mine[order, "first"]["aligned"]]
        found.append([f"{length}", ", ".join(aligned), *(f"{mine[way]['loss']:.3f}" for way in ways)])
    return found


def energy_lines(rows):
    """A line for each basis whose d follows from lam."""
    return [
        [
            row["order"], row["reuse"], f"{row['K']}", f"{row['d']}", f"{row['K'] / row['d']:.1f}",
            f"{row['promised']:.3f}", f"{row['loss']:.3f}",
        ]
        for row in rows
    ]  # fmt: skip


def ageing_columns(rows):
    """The windows that are shown: the first, one in the middle, the last."""
    return [f"to {WINDOW * (number + 1)}" for number in _shown(rows)]


def ageing_lines(rows):
    """A line for each number of iterations that a basis was learned from: the share of energy that it loses."""
    return [
        [f"{row['train']}", f"{row['K']}", f"{row['d']}", *(f"{row['energy'][number]:.3f}" for number in _shown(rows))]
        for row in rows
    ]


def _shown(rows):
    last = len(rows[0]["energy"]) - 1
    return sorted({0, last // 2, last})


def time_lines(rows):
    """A line for each number of ranks and layer."""
    return [
        [
            f"{row['ranks']}", " x ".join(map(str, row["shape"])), size_text(row["bytes"]),
            *(f"{1e3 * row[kind]:.3g}" for kind in ("dense", "raw", "gradiveq")),
            *(f"{row[kind] / row['gradiveq']:.2f}" for kind in ("dense", "raw")),
            *(f"{row[kind] / 1024:.0f}" for kind in ("sent_exact", "sent")),
        ]
        for row in rows
    ]  # fmt: skip


def draw(description, rows, name):
    """Draws what was measured into name.png and name.svg; returns their paths."""
    kinds = ("loss", _by_place), ("loss", _by_filter), ("ageing", _ageing), ("time", _times)
    panels = [(rows[kind], each) for kind, each in kinds if kind in rows]
    if not panels:
        return []
    drawing, axes = figure(2, 2) if len(panels) == 4 else figure(len(panels))
    for panel, (mine, each) in zip(axes, panels, strict=True):
        each(panel, mine)
        panel.legend(fontsize="small", framealpha=1, edgecolor="white")
    return save(drawing, f"GradiVeQ over {place(description)}", description, name)


def _by_place(panel, rows):
    _losses(panel, rows, "hwdf", "Published order, dotted: multiples of F D")


def _by_filter(panel, rows):
    _losses(panel, rows, "filter", "Filter by filter, dotted: multiples of D H W")


def _losses(panel, rows, order, title):
    rows = [row for row in rows if row["order"] == order]
    for number, reuse in enumerate(dict.fromkeys(row["reuse"] for row in rows)):
        mine = [row for row in rows if row["reuse"] == reuse]
        label = "basis of the first slice" if reuse == "first" else "basis of all slices"
        panel.plot([row["K"] for row in mine], [row["loss"] for row in mine], label=label, **look_of(number))
    for length in dict.fromkeys(row["K"] for row in rows if row["aligned"]):
        panel.axvline(length, color="#777777", linestyle=":", linewidth=1, zorder=0)
    panel.set(title=title, xlabel="K (16 x 16 x 3 x 3, d = K / 8)", ylabel="loss |sum - g| / |g|", ylim=(0, 1))


def _ageing(panel, rows):
    for number, row in enumerate(rows):
        places = WINDOW * (np.arange(len(row["energy"])) + 0.5)
        panel.plot(places, row["energy"], label=f"learned from {row['train']} iterations", **look_of(number))
    panel.set(title=f"A basis over time, filter by filter, K = {rows[0]['K']}", ylim=(0, None))
    panel.set(xlabel="iterations after training", ylabel="share of energy lost")


def _times(panel, rows):
    number = 0
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        mine = [row for row in rows if row["ranks"] == ranks]
        for kind in ("dense", "raw"):
            ratios = [row[kind] / row["gradiveq"] for row in mine]
            panel.plot([row["bytes"] for row in mine], ratios, label=f"{NAMES[kind]}, {ranks} ranks", **look_of(number))
            number += 1
    panel.axhline(1, color="#777777", linewidth=0.8, zorder=0)
    sizes = sorted({row["bytes"] for row in rows})
    panel.set(title="Exact sums against coefficients", xscale="log", yscale="log", xlabel="size of the layer")
    panel.set_xticks(sizes, [size_text(size) for size in sizes])
    panel.minorticks_off()
    ticks(panel.yaxis)
    panel.set_ylabel("time / time of gradiveq, d = K / 8")

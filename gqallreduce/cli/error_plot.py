"""The plot of bench/quantization_error.py, drawn from its rows alone."""

import re

from gqallreduce.cli.plots import figure, look_of, plain_number, save


def draw(machine, rows, name):
    """Draws error against bits, a panel for each distribution, into name.png and name.svg; returns their paths.

    A line joins the sizes of bucket of one codec; codecs that differ in their bits or format alone look alike.
    """
    from matplotlib.lines import Line2D

    data = list(dict.fromkeys(row["data"] for row in rows))
    per_line = -(-len(data) // 2) if len(data) > 3 else len(data)
    drawing, axes = figure(per_line, lines=-(-len(data) // per_line))
    for panel in axes[len(data) :]:
        panel.set_visible(False)
    kinds = list(dict.fromkeys(_kind(row["codec"]) for row in rows))
    for panel, each in zip(axes, data, strict=False):
        for codec in dict.fromkeys(row["codec"] for row in rows):
            points = sorted((row["bits"], row["error"]) for row in rows if (row["codec"], row["data"]) == (codec, each))
            panel.plot(*zip(*points, strict=True), **_look_of_kind(kinds.index(_kind(codec))))
        panel.set(title=each, xscale="log", yscale="log", xlabel="bits per value", ylabel="relative squared error")
        panel.set_xticks([0.25, 0.5, 1, 2, 3, 4, 6, 8, 16])
        panel.xaxis.set_major_formatter(plain_number)
        panel.minorticks_off()
        panel.set_xlim(0.08, 24)
    handles = [Line2D([], [], label=kind, **_look_of_kind(number)) for number, kind in enumerate(kinds)]
    drawing.legend(handles=handles, loc="outside lower center", ncols=4 if per_line > 2 else 3, frameon=False)
    return save(drawing, "What one encoding loses; lines join sizes of buckets", machine, name)


def _kind(codec):
    """A codec's text without its bits and its format."""
    options = [each for each in re.findall(r"\w+=\w+", codec) if not each.startswith(("bits=", "format="))]
    return ", ".join([codec.partition("(")[0], *options])


def _look_of_kind(number):
    return {**look_of(number), "linestyle": ("-", "--", ":")[number // 8 % 3], "markersize": 4.5, "linewidth": 0.9}

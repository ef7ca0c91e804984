"""The plots of the benchmarks, drawn from their rows alone, so that a file of results can be drawn again."""

import math
from collections import defaultdict

import numpy as np

from gqallreduce.cli.report import size_text
from gqallreduce.quantities import link_rate_text

# Okabe and Ito's colours, told apart with every common colour blindness; markers tell them apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00", "#5B4B8A")
MARKERS = "osD^vP*X"
DENSE = (("#000000", "-"), ("#777777", "--"))


def styles(rows):
    """scheme -> keyword arguments of its line, the same in every panel."""
    found = {}
    for row in rows:
        if row["scheme"] in found:
            continue
        if row["dense"]:
            colour, line = DENSE[sum(style["dense"] for style in found.values()) % len(DENSE)]
            style = {"color": colour, "linestyle": line, "marker": ".", "linewidth": 2.0}
        else:
            number = sum(not style["dense"] for style in found.values())
            style = {**look_of(number), "markersize": 5.5}
        found[row["scheme"]] = {"dense": row["dense"], "style": style}
    return {scheme: entry["style"] for scheme, entry in found.items()}


def look_of(number):
    """Colour and marker of the number-th line: no two of the first 64 look alike."""
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
    return {"color": COLOURS[number % len(COLOURS)], "marker": marker}


def draw_sums(machine, rows, name):
    """Draws time and speed-up against size and error against bits into name.png and name.svg; returns their paths."""
    drawing, axes = figure(3)
    style = styles(rows)
    by_scheme = defaultdict(list)
    for row in rows:
        by_scheme[row["scheme"]].append(row)
    _times(axes[0], by_scheme, style)
    _speedups(axes[1], by_scheme, style)
    _errors(axes[2], rows, style)
    legend(drawing, axes[0], 3)
    return save(drawing, f"Sum of float32 matrices over {place(machine)}", machine, name)


def _times(axes, by_scheme, style):
    for scheme, rows in by_scheme.items():
        size = [row["bytes"] for row in rows]
        times = np.array([[np.median(row["seconds"]), min(row["seconds"]), max(row["seconds"])] for row in rows]) * 1e3
        axes.plot(size, times[:, 0], label=scheme, **style[scheme])
        axes.fill_between(size, times[:, 1], times[:, 2], color=style[scheme]["color"], alpha=0.07, linewidth=0)
    axes.set(title="Time (median; band: least to largest)", ylabel="milliseconds", yscale="log")
    axes.yaxis.set_major_formatter(plain_number)
    _size_axis(axes, sorted({row["bytes"] for rows in by_scheme.values() for row in rows}))


def _speedups(axes, by_scheme, style):
    for scheme, rows in by_scheme.items():
        axes.plot([row["bytes"] for row in rows], [row["speedup"] for row in rows], **style[scheme])
    axes.axhline(1.0, color="#777777", linewidth=0.8, zorder=0)
    axes.set(title="Speed-up over the better dense", ylabel="times as fast", yscale="log")
    ticks(axes.yaxis, "x")
    _size_axis(axes, sorted({row["bytes"] for rows in by_scheme.values() for row in rows}))


def _errors(axes, rows, style):
    """Error of one call at the largest size. Exact schemes err by rounding only and would stretch the axis: a note."""
    largest = max(row["bytes"] for row in rows)
    shown = [row for row in rows if row["bytes"] == largest and row.get("ratio")]
    lossy = [row for row in shown if row["error"] > 1e-5]
    for row in lossy:
        axes.plot(32 / row["ratio"], row["error"], linestyle="none", **_without_line(style[row["scheme"]]))
    exact = [row["scheme"] for row in shown if row not in lossy]
    if exact:
        axes.annotate(
            f"exact to float32 rounding: {', '.join(exact)}", (0.03, 0.03), xycoords="axes fraction", fontsize="small"
        )
    axes.set(title=f"Error of one call, {size_text(largest)}", yscale="log")
    axes.set(xlabel="bits sent per value, relative to a dense ring's 32", ylabel="relative L2 error of the sum")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(plain_number)
    ticks(axes.yaxis)
    if lossy:
        _widen(axes, [32 / row["ratio"] for row in lossy], [row["error"] for row in lossy])


def draw_latencies(machine, rows, name):
    """Draws the time of a call against its size, a panel for each way of calling, into name.png and name.svg."""
    sizes_of = defaultdict(set)
    for row in rows:
        if not row["dense"]:
            sizes_of[row["how"]].add(row["bytes"])
    ways = [how for how, sizes in sizes_of.items() if len(sizes) == max(map(len, sizes_of.values()))]
    drawing, axes = figure(len(ways))
    style = styles(rows)
    for panel, how in zip(axes, ways, strict=True):
        for scheme, look in style.items():
            shown = [row for row in rows if row["scheme"] == scheme and (row["dense"] or row["how"] == how)]
            times = [float(np.median(row["seconds"])) * 1e6 for row in shown]
            panel.plot([row["bytes"] for row in shown], times, label=scheme, **look)
        panel.set(title=f"A call, {how}", ylabel="microseconds (median)", yscale="log")
        ticks(panel.yaxis)
        _size_axis(panel, sorted({row["bytes"] for row in rows}))
    limits = [panel.get_ylim() for panel in axes]
    for panel in axes:  # can be compared by eye
        panel.set_ylim(min(limits)[0], max(high for _, high in limits))
    legend(drawing, axes[0], 3)
    return save(drawing, f"Time of a call over {place(machine)}", machine, name)


def draw_auto(machine, rows, name):
    """Draws times of `auto/`, of the best dense sum and of the best of all, by size, a panel for each codec."""
    schemes = list(dict.fromkeys(row["scheme"] for row in rows))
    drawing, axes = figure(len(schemes))
    lines = ("exact", "the better dense"), ("best_seconds", "the best of all"), ("auto", "auto/")
    for panel, scheme in zip(axes, schemes, strict=True):
        shown = [row for row in rows if row["scheme"] == scheme]
        for number, (what, label) in enumerate(lines):
            times = [1e3 * row[what] for row in shown]
            panel.plot([row["bytes"] for row in shown], times, label=label, **look_of(number))
        panel.set(title=scheme, ylabel="milliseconds (median)", yscale="log")
        ticks(panel.yaxis)
        _size_axis(panel, sorted({row["bytes"] for row in rows}))
    legend(drawing, axes[0], 3)
    return save(drawing, f"What auto/ takes, over {place(machine)}", machine, name)


def draw_overlap(machine, rows, name):
    """Draws which share of a call is hidden, a panel for each computation, into name.png and name.svg."""
    panels = list(dict.fromkeys(row["computes"] for row in rows))
    lines = list(dict.fromkeys((row["scheme"], row["how"]) for row in rows))
    schemes = list(dict.fromkeys(scheme for scheme, _ in lines))
    ways = {"thread": "-", "calls": "--", "python": ":"}
    drawing, axes = figure(len(panels))
    for panel, computes in zip(axes, panels, strict=True):
        for scheme, how in lines:
            shown = [row for row in rows if (row["computes"], row["scheme"], row["how"]) == (computes, scheme, how)]
            look = look_of(schemes.index(scheme)) | {"linestyle": ways[how]}
            shares = [100 * row["hidden"] for row in shown]
            panel.plot([row["bytes"] for row in shown], shares, label=f"{scheme}, {how}", **look)
        panel.axhline(0.0, color="#777777", linewidth=0.8, zorder=0)
        panel.set(title=f"Behind: {computes}", ylabel="hidden, percent of the call alone", ylim=(-100, 105))
        _size_axis(panel, sorted({row["bytes"] for row in rows}))
    legend(drawing, axes[0], 3)
    return save(drawing, f"What a call hides behind its caller's computation, over {place(machine)}", machine, name)


def draw_many_ranks(machine, rows, name):
    """Draws calls beside their messages alone, or what a message costs in one process, into name.png and name.svg."""
    over_mpi, has_memory = "alone" in rows[0], "memory" in rows[0]
    drawing, panels = figure(1 + has_memory)
    axes = panels[0]
    if over_mpi:
        labels = [f"{row['scheme']}\n{size_text(row['bytes'])}" for row in rows]
        lines = ("seconds", "the call", 0), ("alone", "its messages alone", 2), ("dense", "MPI_Allreduce", 7)
        for place_of_bar, (what, label, number) in enumerate(lines):
            heights, at = [1e3 * row[what] for row in rows], np.arange(len(rows)) + 0.27 * (place_of_bar - 1)
            axes.bar(at, heights, 0.25, label=label, color=COLOURS[number])
        drawing.set_figwidth(max(drawing.get_figwidth(), 1.8 * len(rows)))
        axes.set_xticks(range(len(rows)), labels, fontsize="small")
        axes.set(ylabel="milliseconds (slowest rank)")
    else:
        for number, (scheme, nbytes) in enumerate(dict.fromkeys((row["scheme"], row["bytes"]) for row in rows)):
            shown = [row for row in rows if (row["scheme"], row["bytes"]) == (scheme, nbytes)]
            costs = [1e6 * (row["seconds"] - row["kernels"]) / max(row["messages"], 1) for row in shown]
            label = f"{scheme}, {size_text(nbytes)}"
            ranks = [row["ranks"] for row in shown]
            axes.plot(ranks, costs, label=label, **look_of(number))
            if has_memory:
                panels[1].plot(ranks, [row["memory"] / 2**20 for row in shown], **look_of(number))
        for each in panels:
            each.set_xscale("log", base=2)
            each.set(xlabel="ranks")
            each.xaxis.set_major_formatter(plain_number)
        axes.set(ylabel="microseconds a message, kernels excluded", ylim=(0, None))
        if has_memory:
            panels[1].set_yscale("log")
            panels[1].set(ylabel="MiB of messages and running values, of a rank")
    drawing.legend(loc="outside lower center", ncols=1, frameon=False)
    where = place(machine) if over_mpi else machine.get("link", "")
    return save(drawing, f"Messages of many ranks, over {where}", machine, name)


def draw_scale(machine, rows, name):
    """Draws predicted speed-ups against the number of ranks, a panel for each rate, into name.png and name.svg."""
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    nodes = dict(zip(dict.fromkeys(row["node"] for row in rows), ("--", "-", ":"), strict=False))
    schemes = list(dict.fromkeys(row["scheme"] for row in rows))
    drawing, axes = figure(len(rates))
    for panel, rate in zip(axes, rates, strict=True):
        for node, line in nodes.items():
            for number, scheme in enumerate(schemes):
                shown = [row for row in rows if (row["node"], row["rate"], row["scheme"]) == (node, rate, scheme)]
                speedups = [row["dense"] / row["seconds"] for row in shown]
                look = look_of(number) | {"linestyle": line, "markersize": 4}
                panel.plot([row["ranks"] for row in shown], speedups, label=f"{scheme}, {node}", **look)
        panel.axhline(1.0, color="#777777", linewidth=0.8, zorder=0)
        panel.set(title=link_rate_text(8 * rate), ylabel="times as fast as dense", xlabel="ranks", yscale="log")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(plain_number)
        ticks(panel.yaxis, "x")
    legend(drawing, axes[0], 4)
    return save(drawing, f"Predicted, {size_text(rows[0]['bytes'])} of float32, one rank on a node", machine, name)


def draw_codecs(machine, rows, name):
    """Draws times over memcpy's against size, a line of panels for each SIMD level, into name.png and name.svg.

    Returns their paths.
    """
    levels = list(dict.fromkeys(row["simd"] for row in rows))
    drawing, axes = figure(2, lines=len(levels))
    looks = styles([{"scheme": row["codec"], "dense": False} for row in rows])
    panels = [(level, operation) for level in levels for operation in ("encode", "decode_add")]
    for panel, (level, operation) in zip(axes, panels, strict=True):
        for codec, look in looks.items():
            found = [row for row in rows if row["codec"] == codec and row["simd"] == level]
            ratios = [row.get(f"{operation}_ratio", np.nan) for row in found]
            panel.plot([row["bytes"] for row in found], ratios, label=codec, **look)
        panel.axhline(1.0, color="#777777", linewidth=0.8, zorder=0)
        panel.set(title=f"{operation}, {level}", ylabel="time / time of memcpy", yscale="log")
        ticks(panel.yaxis)
        _size_axis(panel, sorted({row["bytes"] for row in rows}))
    legend(drawing, axes[0], 3)
    return save(drawing, "Codecs against memcpy of the same float32 data (lower is faster)", machine, name)


def draw_shares(machine, rows, name):
    """Draws the codecs' shares of a GPU's copy speed against size into name.png and name.svg; returns their paths."""
    operations = ("encode", "decode", "decode_add")
    drawing, axes = figure(len(operations))
    looks = styles([{"scheme": row["codec"], "dense": False} for row in rows])
    for panel, operation in zip(axes, operations, strict=True):
        for codec, look in looks.items():
            found = [row for row in rows if row["codec"] == codec]
            shares = [100 * row[f"{operation}_share"] for row in found]
            line = "-" if codec.endswith("/ef") else "--"
            panel.plot([row["bytes"] for row in found], shares, label=codec, linestyle=line, **look)
        for target in sorted({row["target"] for row in rows if row["target"]}):
            panel.axhline(100 * target, color="#777777", linewidth=0.8, zorder=0)
        panel.set(title=operation, ylabel="% of the speed of a copy", ylim=(0, None))
        _size_axis(panel, sorted({row["bytes"] for row in rows}))
    legend(drawing, axes[0], 4)
    return save(drawing, "Codecs against a copy of the same float32 data in GPU memory", machine, name)


def draw_crossover(machine, rows, name):
    """Draws speed-up against the rate of the links, a panel per size, into name.png and name.svg; returns the paths."""
    sizes = sorted({row["bytes"] for row in rows})
    drawing, axes = figure(len(sizes))
    quantized = [row for row in rows if not row["dense"]]
    looks = styles(quantized)
    places = _places({row["rate"] for row in rows})
    for panel, nbytes in zip(axes, sizes, strict=True):
        for scheme, look in looks.items():
            found = [row for row in quantized if row["scheme"] == scheme and row["bytes"] == nbytes]
            points = sorted((places[row["rate"]], row["speedup"]) for row in found)
            panel.plot(*zip(*points, strict=True), label=scheme, **look)
        panel.axhline(1.0, color="#000000", linewidth=1.2, zorder=1)
        panel.set(title=size_text(nbytes), ylabel="times as fast", xscale="log", yscale="log")
        panel.set_xlabel("rate of every link")
        panel.set_xticks(list(places.values()), [link_rate_text(rate) for rate in places], rotation=45, ha="right")
        panel.minorticks_off()
        ticks(panel.yaxis, "x")
        _mark_processor_bound(panel, rows, places)
    legend(drawing, axes[0], 3)
    return save(drawing, f"Speed-up over the better dense allreduce, {machine['link']}", machine, name)


def _places(rates):
    """rate -> where it stands on the axis, ascending; unlimited stands behind the fastest."""
    limited = sorted(rate for rate in rates if rate is not None)
    places = {rate: rate for rate in limited}
    return places | {None: 2.5 * max(limited, default=1e9)} if None in rates else places


def _mark_processor_bound(axes, rows, places):
    """Shades the rates at which the processors are the bound, from half-way to the last that is bound by the links."""
    bound = sorted({places[row["rate"]] for row in rows if not row["link_bound"]})
    if not bound:
        return
    before = max((place for place in places.values() if place < bound[0]), default=bound[0] / 2)
    left, right = (before * bound[0]) ** 0.5, bound[-1] * 1.5
    axes.axvspan(left, right, color="#EEEEEE", zorder=0)
    axes.text(left, 0.98, " bound by the processors", transform=axes.get_xaxis_transform(), va="top", fontsize="small")
    axes.set_xlim(min(places.values()) / 1.5, right)


def figure(panels, lines=1):
    """(figure, list of its axes, line by line) of `panels` beside each other in `lines` lines."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "gqallreduce"
    from matplotlib import pyplot

    size = 5.2 * panels, 1.4 + 4.2 * lines
    made, axes = pyplot.subplots(lines, panels, figsize=size, layout="constrained", squeeze=False)
    for panel in axes.flat:
        panel.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return made, list(axes.flat)


def legend(drawing, panel, most):
    """The lines of a panel, named below all panels in at most so many columns, so many as fit."""
    handles, labels = panel.get_legend_handles_labels()
    width = 0.6 + 0.066 * max(map(len, labels), default=0)  # inches of a column
    columns = max(1, min(most, int(drawing.get_figwidth() / width)))
    drawing.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def save(drawing, title, machine, name):
    """Writes name.png and name.svg with the title and the machine's description; returns their paths."""
    from matplotlib import pyplot

    drawing.suptitle(f"{title}\n{_line(machine)}", fontsize="medium")
    paths = [f"{name}.png", f"{name}.svg"]
    for path in paths:
        # Without a date, and with names that are not drawn at random, the same rows give the same file.
        drawing.savefig(path, dpi=150, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(drawing)
    return paths


def _size_axis(axes, sizes):
    axes.set_xscale("log", base=2)
    far = [3 * size <= 2 * after for size, after in zip(sizes, [*sizes[1:], math.inf], strict=True)]
    # No label where it would overlap the next one.
    labels = [size_text(size) if wide else "" for size, wide in zip(sizes, far, strict=True)]
    axes.set_xticks(sizes, labels, rotation=45, ha="right")
    axes.minorticks_off()
    axes.set_xlabel("size of the buffer")


def _widen(axes, horizontal, vertical):
    """Room around few points, and at least a tick or two on each axis."""
    axes.set_xlim(min(horizontal) / 2, max(horizontal) * 2)
    axes.set_ylim(min(vertical) / 2.5, max(vertical) * 2)


def ticks(axis, unit=""):
    """Ticks at 1, 2, 5 of each decade, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}{unit}")


def plain_number(value, _):
    return f"{value:g}"


def _without_line(style):
    return {key: value for key, value in style.items() if key != "linestyle"} | {"markersize": 9}


def place(machine):
    """The ranks and what joins them."""
    ranks, link = machine.get("ranks", "?"), machine.get("link", "")
    return f"{ranks} ranks, {link}" if link else f"{ranks} ranks"


def _line(machine):
    words = [machine.get("device"), machine.get("processor"), f"{machine.get('cores')} cores", machine.get("mpi")]
    words.append(machine.get("simd"))
    words.append(f"commit {machine['commit']}" if machine.get("commit") else None)
    return ", ".join(str(word) for word in words if word)

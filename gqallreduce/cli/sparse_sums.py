"""The bytes of sparse sums beside those of the published methods, and what gTop-k loses of a sum.

All ranks run in one process, without MPI. Each rank has k values that are not zero, at places that all ranks share,
that each draws for itself, or that no two ranks share. What a rank receives is counted in k words of 4 bytes, as in the
literature, where an entry is two words, its place and its value.
"""

import sys

import numpy as np

from gqallreduce.cli import gtopk, machine
from gqallreduce.cli.plots import figure, look_of, plain_number, save, ticks
from gqallreduce.cli.report import Report
from gqallreduce.quantities import count
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling import model

ENTRY = 2  # words
RATIOS = (0.001, 0.01)
RANKS = (2, 4, 8, 16)
PLACES = ("shared", "drawn", "apart")
SCHEDULES = ("allgather", "recursive_doubling", "direct")
SUMS = ("union", "reselect")


def add_arguments(parser):
    """The options of bench/sparse_sums.py."""
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/sparse_sums)"
    parser.add_argument("--elements", type=count, default=1 << 20, metavar="N", help="of a vector (2^20)")
    parser.add_argument("--ratios", nargs="+", type=float, default=RATIOS, metavar="K/N", help="(0.001 0.01)")
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, metavar="P", help="powers of two (2 4 8 16)")
    parser.add_argument("--output", default="bench/results/sparse_sums", metavar="NAME", help=files)


def run(arguments):
    """Counts, prints and writes; 0 if all went well, 2 for wrong arguments."""
    sizes, ratios = arguments.ranks, arguments.ratios
    if any(size < 2 or size & (size - 1) for size in sizes) or not all(0 < each <= 1 for each in ratios):
        print("sparse_sums: expected powers of two from 2 on as ranks, and ratios above 0, up to 1", file=sys.stderr)
        return 2
    if max(ratios) * max(sizes) > 1:
        print("sparse_sums: expected ratios below 1 / ranks, since places are to be apart", file=sys.stderr)
        return 2
    report, rows = Report(f"{arguments.output}.jsonl"), []
    description = machine.describe()
    report.write("machine", description)
    cases = [(ratio, size, places) for ratio in ratios for size in sizes for places in PLACES]
    with report.progress(len(cases)) as progress:
        for ratio, size, places in cases:
            progress.show(f"k / n = {ratio:g}, {size} ranks, places {places}")
            rows += measure(arguments.elements, ratio, size, places)
            progress.step()
    for row in rows:
        report.write("sparse_sum", row)
    report.table(table(rows))
    lost = gtopk.compare()
    for row in lost:
        report.write("lost", row)
        report.say(f"{row['method']}: {row['lost']:.2g} of the results is lost, in no residual")
    report.say("written: " + ", ".join([f"{arguments.output}.jsonl", *draw(description, rows, arguments.output)]))
    return 0


def measure(elements, ratio, size, places):
    """A row for each schedule and way to keep a sum."""
    k = max(1, int(ratio * elements))
    vectors = list(contributions(elements, k, size, places))
    for schedule in SCHEDULES:
        for sums in SUMS:
            local = LocalAllreduce(f"{schedule}/topk(k={k}, sums={sums})", size)
            local([each.copy() for each in vectors], key="w")
            received = [spent.bytes_received for spent in local.spent]
            predicted = model.bytes_sent(schedule, local.scheme.codec, size, elements)
            found = {"bytes": float(np.mean(received)), "most": max(received), "predicted": predicted}
            low, high = published(schedule, sums, elements, k, size)
            expected = expected_words(schedule, sums, elements, k, size, places)
            case = {"elements": elements, "k": k, "ratio": ratio, "ranks": size, "places": places}
            yield {**case, "schedule": schedule, "sums": sums, **found, "low": low, "high": high, "expected": expected}


def contributions(elements, k, size, places):
    """A float32 vector for each rank, with k values of one magnitude: sums that reselect drop ties, never cancel."""
    random = np.random.default_rng([elements, k, size, PLACES.index(places)])
    drawn = random.permutation(elements)
    for rank in range(size):
        vector = np.zeros(elements, np.float32)
        if places == "drawn":
            mine = random.choice(elements, k, replace=False)
        else:
            mine = drawn[:k] if places == "shared" else drawn[rank * k : (rank + 1) * k]
        vector[mine] = 1 + rank
        yield vector


# --- words that a rank receives ---


def published(schedule, sums, elements, k, size):
    """(least, most) words of the method in the literature: TopkA, SparCML's recursive doubling and split-allgather.

    Of partial sums that are cut to k values again the least are the most; no published method of one phase for each
    schedule does so, gTop-k's tree apart.
    """
    rounds = size.bit_length() - 1
    least = {
        "allgather": ENTRY * k * (size - 1),
        "recursive_doubling": ENTRY * k * rounds,
        "direct": 2 * ENTRY * k * (size - 1) / size,
    }[schedule]
    most = {
        "allgather": least,
        "recursive_doubling": ENTRY * k * (size - 1),
        "direct": (ENTRY * k + elements) * (size - 1) / size,
    }[schedule]
    return (least, most) if sums == "union" else (least, least)


def expected_words(schedule, sums, elements, k, size, places):
    """Words of the same method for these places: each sum has as many entries as places differ, and turns dense."""

    def sum_of(contributions):
        if sums == "reselect" or places == "shared":
            return ENTRY * k
        apart = contributions * k
        drawn = elements * -np.expm1(contributions * np.log1p(-k / elements))
        return min(elements, ENTRY * (apart if places == "apart" else drawn))

    if schedule == "allgather":
        return float(ENTRY * k * (size - 1))
    if schedule == "recursive_doubling":
        return float(sum(sum_of(1 << turn) for turn in range(size.bit_length() - 1)))
    return float((ENTRY * k + sum_of(size)) * (size - 1) / size)


# --- what is shown ---


def table(rows):
    """A row for each case."""
    from rich import box
    from rich.table import Table

    title = "Received by a rank, in k words of 4 bytes; published: an entry is two words"
    made = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    for name in ("k / n", "P", "places", "schedule", "sums", "published", "for these", "ours", "ratio", "plan"):
        made.add_column(name, justify="left" if name in ("places", "schedule", "sums") else "right", no_wrap=True)
    for line in lines(rows):
        made.add_row(*line)
    return made


def lines(rows):
    """The cells of the table, as text."""
    return [
        [
            f"{row['ratio']:g}",
            f"{row['ranks']}",
            *(row[name] for name in ("places", "schedule", "sums")),
            _range(row),
            f"{row['expected'] / row['k']:.3g}",
            f"{words(row):.3g}",
            f"{words(row) * row['k'] / row['expected']:.2f}",
            f"{row['predicted'] / 4 / row['k']:.3g}",
        ]
        for row in rows
    ]


def summary(rows, ratio):
    """Cells of the table of the docs: what a rank received, and in brackets the published method for these places."""
    found = {}
    for row in rows:
        if row["ratio"] == ratio and (row["sums"] == "union" or row["places"] == "drawn"):
            name = f"`{row['schedule']}`" + ", `sums=reselect`" * (row["sums"] == "reselect")
            cells = found.setdefault((name, row["places"]), [])
            cells.append(f"{words(row):.3g} ({row['expected'] / row['k']:.3g})")
    return [[name, places, *cells] for (name, places), cells in sorted(found.items())]


def words(row):
    """What a rank received, in k words."""
    return row["bytes"] / 4 / row["k"]


def _range(row):
    low, high = (f"{row[name] / row['k']:.3g}" for name in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def draw(description, rows, name):
    """Draws what a rank receives against P into name.png and name.svg; returns their paths."""
    ratio = min(row["ratio"] for row in rows)
    drawing, axes = figure(len(PLACES))
    for panel, places in zip(axes, PLACES, strict=True):
        number = 0
        for schedule in SCHEDULES:
            for sums in SUMS:
                mine = [row for row in rows if (row["ratio"], row["places"]) == (ratio, places)]
                mine = [row for row in mine if (row["schedule"], row["sums"]) == (schedule, sums)]
                look, size = look_of(number), [row["ranks"] for row in mine]
                panel.plot(size, [words(row) for row in mine], label=f"{schedule}, {sums}", **look)
                expected = [row["expected"] / row["k"] for row in mine]
                panel.plot(size, expected, linestyle=":", color=look["color"], linewidth=1)
                number += 1
        panel.set(title=f"places {places}", xscale="log", yscale="log", xlabel="ranks")
        panel.set_ylabel("received by a rank, k words")
        panel.set_xticks(sorted({row["ranks"] for row in rows}))
        panel.xaxis.set_major_formatter(plain_number)
        panel.xaxis.minorticks_off()
        ticks(panel.yaxis)
    axes[0].plot([], [], linestyle=":", color="gray", label="published, two words an entry")
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return save(drawing, f"Bytes of sparse sums, k / n = {ratio:g}", description, name)

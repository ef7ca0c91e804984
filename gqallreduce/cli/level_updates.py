"""What learning levels takes of the time of calls: those that gather values, and those that update.

One rank, so that nothing travels: a call is two encodings fewer than on many, and the share of updates is the largest
that there is. Each kind of call is measured in turn, several rounds; the least time counts.
"""

import sys
from dataclasses import replace
from time import perf_counter

import numpy as np
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.plots import figure, look_of, plain_number, save
from gqallreduce.cli.report import Report, size_text
from gqallreduce.cli.tables import results
from gqallreduce.coding.learned import LearnedCodec
from gqallreduce.quantities import nbytes

CODECS = ("alq(bits=3)", "alq(bits=4)", "alq(bits=8)", "alq_n(bits=3)", "amq(bits=3)")
SIZES = (1 << 20, 8 << 20, 64 << 20)
SAMPLES = 10
CALLS = 10_000  # over which the share is counted: updates at calls 0, 100 and 2000
UPDATES = 3
# kind of call -> updates, every, samples
KINDS = {"plain": ((), 0, 1), "gathers": ((2**31 - 1,), 0, 2**31 - 1), "updates": ((), 1, 1)}


def add_arguments(parser):
    """The options of bench/level_updates.py."""
    texts = f"codecs that learn levels ({' '.join(CODECS)})"
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/level_updates)"
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC", help=texts)
    parser.add_argument("--sizes", nargs="+", type=nbytes, default=SIZES, metavar="SIZE", help="of float32")
    parser.add_argument("--rounds", type=int, default=5, metavar="ROUNDS", help="of which the least time counts (5)")
    parser.add_argument("--output", default="bench/results/level_updates", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes; 0 if all went well, 2 for wrong arguments."""
    try:
        for text in arguments.codecs:
            if not isinstance(gq.Scheme.parse(text).codec, LearnedCodec):
                raise ValueError(f"{text!r} learns no levels")
    except ValueError as problem:
        print(f"level_updates: {problem}", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl")
    description = machine.describe()
    report.write("machine", description)
    rows = []
    with report.progress(len(arguments.codecs) * len(arguments.sizes)) as progress:
        for text in arguments.codecs:
            for size in arguments.sizes:
                progress.show(f"{text}, {size_text(size)}")
                rows.append(measure(text, size, arguments.rounds))
                report.write("updates", rows[-1])
                progress.step()
    report.table(table(rows))
    written = [f"{arguments.output}.jsonl", *draw(description, rows, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def measure(text, size, rounds):
    """Seconds of a call that learns nothing, of one that gathers, of one that updates; the share of learning."""
    draws = np.random.default_rng(0)
    scheme, calls = gq.Scheme.parse(text), {}
    for kind, (updates, every, samples) in KINDS.items():
        codec = replace(scheme.codec, updates=updates, every=every, samples=samples)
        calls[kind] = gq.Allreduce(replace(scheme, codec=codec).resolved("direct"), comm=MPI.COMM_SELF)
    found = {kind: [] for kind in KINDS}
    for number in range(rounds + 2):
        values = draws.standard_normal(size // 4, np.float32)  # others each time, for the same are not solved again
        for kind, allreduce in calls.items():
            buffer = values.copy()
            began = perf_counter()
            allreduce(buffer, key="w")
            if number >= 2:
                found[kind].append(perf_counter() - began)
    least = {kind: min(times) for kind, times in found.items()}
    extra = least["updates"] - least["plain"] + (SAMPLES - 1) * (least["gathers"] - least["plain"])
    return {"codec": text, "bytes": size, **least, "share": UPDATES * extra / (CALLS * least["plain"])}


def table(rows):
    """A row for each codec and size."""
    title = f"Calls of one rank; share: {UPDATES} updates of {SAMPLES} samples in {CALLS} calls"
    columns = "codec", "size", "call, ms", "that gathers", "that updates", "share %"
    return results(title, columns, lines(rows), left=("codec",))


def lines(rows):
    """[codec, size, milliseconds of each kind of call, share in percent], as text."""
    return [
        [
            row["codec"],
            size_text(row["bytes"]),
            *(f"{1e3 * row[kind]:.3g}" for kind in KINDS),
            f"{100 * row['share']:.2g}",
        ]
        for row in rows
    ]


def draw(machine, rows, name):
    """Draws the share against the size into name.png and name.svg; returns their paths."""
    drawing, axes = figure(1)
    for number, codec in enumerate(dict.fromkeys(row["codec"] for row in rows)):
        mine = [row for row in rows if row["codec"] == codec]
        places = [row["bytes"] / 2**20 for row in mine]
        axes[0].plot(places, [100 * row["share"] for row in mine], label=codec, **look_of(number))
    axes[0].set(xscale="log", yscale="log", xlabel="MiB of a tensor", ylabel="% of the time of its calls")
    axes[0].xaxis.set_major_formatter(plain_number)
    axes[0].yaxis.set_major_formatter(plain_number)
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return save(drawing, "Time of level updates", machine, name)

"""Error against bits of the codecs that work by columns, on recorded gradients, by the least length of a column.

The gradients are those of small matrices, column-major as in LBANN: a column is as long as the layer is wide. No MPI.
"""

import sys

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.plots import figure, look_of, plain_number, save
from gqallreduce.cli.quantization_error import read_matrices, with_option
from gqallreduce.cli.report import Report
from gqallreduce.coding.layout import MERGED_MOST, Form, Region, columns
from gqallreduce.errors import Error
from gqallreduce.runtime.local import LocalAllreduce

CODECS = ("onebit", "adaptive(pi=64)", "adaptive(pi=16)")
LEAST = (1, 256, 512, 1024, 2048, 4096, MERGED_MOST)


def add_arguments(parser):
    """The options of bench/short_columns.py."""
    folder = "gradients of matrices, of a folder that bench/train_mlp.py --dump-gradients wrote"
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/short_columns)"
    parser.add_argument("--gradients", metavar="FOLDER", required=True, help=folder)
    parser.add_argument("--output", default="bench/results/short_columns", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes; 0 if all went well, 2 for wrong arguments."""
    try:
        matrices, about = read_matrices(arguments.gradients)
    except (ValueError, Error, OSError) as problem:
        print(f"short_columns: {problem}", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl")
    description = machine.describe(gradients=about)
    report.write("machine", description)
    rows = [measure(text, least, matrices) for text in CODECS for least in LEAST]
    for row in rows:
        report.write("columns", row)
    report.table(table(rows))
    written = [f"{arguments.output}.jsonl", *draw(description, rows, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def measure(text, least, matrices):
    """What all matrices take together, each encoded once, with columns of at least so many elements."""
    scheme = gq.Scheme.parse(with_option(text, f"column={least}"))
    lost = total = nbytes = 0
    for matrix in matrices:
        v = np.asfortranarray(matrix)
        (sent,) = LocalAllreduce(f"direct/{scheme}", 1)([v.copy(order="F")])
        lost += np.square(sent.astype(np.float64) - v).sum()
        total += np.square(v, dtype=np.float64).sum()
        nbytes += _nbytes(scheme.codec, v)
    values = sum(matrix.size for matrix in matrices)
    return {"codec": text, "column": least, "bits": 8 * nbytes / values, "error": float(lost / total)}


def _nbytes(codec, v):
    """Of one message of the whole matrix; `adaptive` sends as many values as it may, since none is zero."""
    form = Form(v.shape, "F", "float32")
    bound = codec.bind(form)
    return bound.nbytes_bound([Region(0, v.size, bound.grid(columns(form.shape, form.order)), v.size)])


def table(rows):
    """Bits and error, a row for each length and two columns for each codec."""
    from rich import box
    from rich.table import Table

    title = "Bits per value and relative squared error, by the least elements of a column"
    made = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    made.add_column("least", justify="right")
    for codec in dict.fromkeys(row["codec"] for row in rows):
        made.add_column(codec, justify="right", no_wrap=True)
        made.add_column("error", justify="right")
    for line in lines(rows):
        made.add_row(*line)
    return made


def lines(rows):
    """[least, bits and error of each codec], as text."""
    found = {}
    for row in rows:
        found.setdefault(row["column"], [str(row["column"])]).extend((f"{row['bits']:.3f}", f"{row['error']:.3f}"))
    return list(found.values())


def draw(machine, rows, name):
    """Draws error and bits against the least length into name.png and name.svg; returns their paths."""
    drawing, axes = figure(2)
    for number, codec in enumerate(dict.fromkeys(row["codec"] for row in rows)):
        mine = [row for row in rows if row["codec"] == codec]
        for panel, what in zip(axes, ("bits", "error"), strict=True):
            panel.plot([row["column"] for row in mine], [row[what] for row in mine], label=codec, **look_of(number))
    for panel, what in zip(axes, ("bits per value", "relative squared error"), strict=True):
        panel.set(xscale="log", ylim=(0, None), xlabel="least elements of a column", ylabel=what, title=what)
        panel.xaxis.set_major_formatter(plain_number)
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return save(drawing, "Short columns of small matrices, joined", machine, name)

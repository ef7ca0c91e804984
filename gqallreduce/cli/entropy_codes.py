"""Bits per value of the level codecs by entropy code, against the entropy of their codes, by distribution. No MPI."""

import sys

import numpy as np

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.cli import machine
from gqallreduce.cli.plots import figure, look_of, save
from gqallreduce.cli.quantization_error import RECORDED, read_gradients, values, with_option
from gqallreduce.cli.report import Report
from gqallreduce.coding.distributions import Histogram
from gqallreduce.coding.layout import Region
from gqallreduce.coding.levels import LevelCodec
from gqallreduce.errors import Error

CODECS = (
    "qsgd(bits=2)",
    "qsgd(bits=3)",
    "qsgd(bits=4)",
    "qsgd(bits=8)",
    "qsgd(bits=3, bucket=8192)",
    "qsgd(bits=4, bucket=8192)",
    "qsgd(bits=2, norm=l2, bucket=8192)",
    "qsgd(bits=4, norm=l2, bucket=8192)",
    "nuqsgd(bits=4, bucket=8192)",
    "natural_dithering(bits=4)",
    "natural",
    "alq(bits=3, zero_level=False)",
    "alq(bits=3, zero_level=False, norm=l2, bucket=8192)",
    "alq(bits=4, zero_level=False)",
    "mx(format=fp4)",
    "fp8(format=e4m3)",
)
DISTRIBUTIONS = ("Gaussian", "Laplace", "heavy-tailed")
CODINGS = ("huffman", "rans", "elias")
COLUMNS = ("fixed", "entropy", *CODINGS)


def add_arguments(parser):
    """The options of bench/entropy_codes.py."""
    folder = "measure gradients too, of a folder that bench/train_mlp.py --dump-gradients wrote"
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/entropy_codes)"
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC", help=f"level codecs ({len(CODECS)})")
    parser.add_argument("--gradients", metavar="FOLDER", help=folder)
    parser.add_argument("--output", default="bench/results/entropy_codes", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes; 0 if all went well, 2 for wrong arguments."""
    try:
        data = {name: values(name, 8192) for name in DISTRIBUTIONS}
        recorded, about = read_gradients(arguments.gradients) if arguments.gradients else (None, {})
        codecs = [_checked(text) for text in arguments.codecs]
    except (ValueError, Error, OSError) as problem:
        print(f"entropy_codes: {problem}", file=sys.stderr)
        return 2
    if recorded is not None:
        data[RECORDED] = recorded
    report = Report(f"{arguments.output}.jsonl")
    description = machine.describe(gradients=about)
    report.write("machine", description)
    rows = []
    with report.progress(len(codecs) * len(data)) as progress:
        for text in codecs:
            for name, v in data.items():
                progress.show(f"{text}, {name}")
                rows.append({"codec": text, "data": name, **measure(text, v)})
                progress.step()
    for row in rows:
        report.write("bits", row)
    for name in data:
        report.table(table(rows, name))
    written = [f"{arguments.output}.jsonl", *draw(description, rows, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def _checked(text):
    if not isinstance(gq.Scheme.parse(text).codec, LevelCodec):
        raise ValueError(f"{text!r}: expected a level codec, without schedule and feedback")
    return text


def measure(text, v):
    """Bits per value: without an entropy code, by each, and the least that a code of single values may take."""
    codec = _knowing(gq.Scheme.parse(text).codec, v)
    found = _region(codec, v)
    found_bits = {"fixed": 8 * len(_message(codec, v, found)) / v.size, "entropy": _entropy(codec, v, found)}
    for coding in CODINGS:
        coded = _knowing(gq.Scheme.parse(with_option(text, f"coding={coding}")).codec, v)
        found_bits[coding] = 8 * len(_message(coded, v, found)) / v.size
    return found_bits


def _region(codec, v):
    return Region(0, v.size, codec.grid(None), v.size)


def _knowing(codec, v):
    """With levels learned from these values, if it learns."""
    if not codec.learns:
        return codec
    weight = np.zeros(_kernels.SPREAD_BINS)
    codec.arithmetic.levels_spread(v, None, weight, codec.norm == "l2", codec.weight, _region(codec, v))
    return codec.with_levels(codec.solve(Histogram(weight)).astype(np.float32))


def _message(codec, v, found):
    wire = np.zeros(codec.nbytes_bound([found]), np.uint8)
    return wire[: codec.encode(v, None, None, wire, found, _kernels.Stream(1, 0, 0, 0))]


def _entropy(codec, v, found):
    """Of the codes, each by itself, and the bits of the scales; per value."""
    bits, bucket = codec.levels.bits, codec.bucket
    whole = v.size // bucket * bucket
    wire = _message(codec, v[:whole], _region(codec, v[:whole])).reshape(whole // bucket, -1)
    scale = wire.shape[1] - -(-bucket * bits // 8)
    streams = np.unpackbits(wire[:, scale:], axis=1, bitorder="little")[:, : bucket * bits]
    codes = streams.reshape(-1, bits) @ (1 << np.arange(bits))
    share = np.bincount(codes) / whole
    share = share[share > 0]
    return float(-(share * np.log2(share)).sum()) + 8 * scale / bucket


def table(rows, data):
    """Of one distribution: a row for each codec, a column for each code."""
    from rich import box
    from rich.table import Table

    title = f"{data} values: bits per value with codes of equal length, their entropy, bits by entropy codes"
    made = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    made.add_column("codec", no_wrap=True)
    for column in COLUMNS:
        made.add_column(column, justify="right")
    for line in lines(rows, data):
        made.add_row(*line)
    return made


def lines(rows, data):
    """[codec, bits in each column] of one distribution, as text."""
    return [[row["codec"], *(f"{row[column]:.3f}" for column in COLUMNS)] for row in rows if row["data"] == data]


def draw(machine, rows, name):
    """Draws the bits of every codec, a panel for each distribution, into name.png and name.svg; returns their paths."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    drawing, axes = figure(2, lines=-(-len(names) // 2))
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    for panel, data in zip(axes, names, strict=False):
        mine = [row for row in rows if row["data"] == data]
        for number, column in enumerate(COLUMNS):
            look = {**look_of(number), "linestyle": "none", "markersize": 5}
            panel.plot(
                [row[column] for row in mine], [codecs.index(row["codec"]) for row in mine], label=column, **look
            )
        panel.set(title=data, xlabel="bits per value", xlim=(0, None), yticks=range(len(codecs)))
        panel.set_yticklabels(codecs, fontsize=6)
        panel.invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return save(drawing, "Bits per value by entropy code", machine, name)

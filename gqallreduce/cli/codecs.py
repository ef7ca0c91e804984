"""How fast codecs encode, decode, and decode and add, on the host (codecs_on_host.py) or a GPU (codecs_on_gpu.py).

Codecs and a copy of the same data are measured in turn, in the same rounds, and what was timed is checked. No MPI.
"""

import sys

import gqallreduce as gq
from gqallreduce.cli.report import Report, size_text
from gqallreduce.coding.codec import RegionCodec
from gqallreduce.errors import Error

CODECS = (
    "raw",
    "onebit/ef",
    "adaptive(pi=64)/ef",
    "adaptive(pi=64, coding=golomb)/ef",
    "qsgd(bits=2)",
    "qsgd(bits=2)/ef",
    "qsgd(bits=4)",
    "qsgd(bits=8)",
    "qsgd(bits=4, norm=l2)",
    "eden(bits=1, bucket=1024)/ef",
    "eden(bits=4, bucket=1024)",
    "qsgd(bits=4, coding=huffman)",
    "qsgd(bits=4, coding=rans)",
    "qsgd(bits=4, norm=l2, bucket=8192, coding=elias)",
)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
REPETITIONS = 9


def add_arguments(parser):
    """The options of bench/codecs.py."""
    texts = "codecs, with /ef for error feedback (the usual ones and all others that are registered)"
    sizes = "of float32 (256KiB 4MiB 64MiB; cuda: 1MiB 16MiB 256MiB 1GiB)"
    runs = f"so many rounds, of which the best counts, or on a GPU the median ({REPETITIONS})"
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/codecs; cuda: bench/results/codecs_cuda)"
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="where the values lie (host)")
    parser.add_argument("--codecs", nargs="+", metavar="CODEC", help=texts)
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help=sizes)
    parser.add_argument("--simd", nargs="+", metavar="LEVEL", help="SIMD levels, on the host (all that run here)")
    parser.add_argument("--threads", type=int, default=1, help="threads of one call, on the host (1)")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=runs)
    parser.add_argument("--output", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes; 0 if all went well, 1 if a message was wrong, 2 if there is no GPU.

    ValueError for an unknown name.
    """
    try:
        place = _place(arguments)
    except Error as problem:
        print(f"codecs: {problem}", file=sys.stderr)
        return 2
    texts = arguments.codecs or place.texts(default_codecs())
    sizes = [parse_size(text) for text in arguments.sizes or place.sizes]
    output = arguments.output or place.output
    report = Report(f"{output}.jsonl")
    with place.active():
        description = place.describe()
        report.write("machine", description)
        found = _all_sizes(place, texts, sizes, arguments.repetitions, report)
    written = [f"{output}.jsonl", *(place.draw(description, found, output) if found else ())]
    report.say("written: " + ", ".join(written))
    return 1 if any(row["wrong"] for row in found) else 0


def _place(arguments):
    """Where to measure. Error if there is no such GPU."""
    if arguments.device == "cuda":
        from gqallreduce.cli.codecs_on_gpu import OnGpu

        return OnGpu()
    from gqallreduce.cli.codecs_on_host import OnHost

    return OnHost(arguments)


def _all_sizes(place, texts, sizes, repetitions, report):
    """Rows of all sizes that fit, shown size by size and written."""
    found, fitting = [], []
    for nbytes in sizes:
        reason = place.too_large(nbytes)
        if reason:
            report.say(f"left out: {size_text(nbytes)}, {reason}")
        else:
            fitting.append(nbytes)
    with report.progress(len(fitting) * len(place.variants)) as progress:
        for nbytes in fitting:
            rows = []
            for variant in place.variants:
                progress.show(f"{size_text(nbytes)}, {variant}")
                measured = place.measure(texts, nbytes, variant, repetitions)
                for row in measured:
                    report.write("codec", row)
                    if row["wrong"]:
                        report.say(f"WRONG: {row['codec']}, {variant}: {row['wrong']}")
                rows += measured
                progress.step()
            report.table(place.table(rows))
            found += rows
    return found


def default_codecs():
    """The usual codecs, and the example of every registered one that is not among them, without its schedule.

    Not those that leave the bytes to another codec: what else they do belongs to a whole call (bench.py). Where
    they are named, as in `--codecs randk/ef`, a call on one rank is timed on the host.
    """
    texts = list(CODECS)
    known = {gq.Scheme.parse(text).codec.name for text in texts}
    for entry in gq.schemes():
        if entry.kind == "codec" and entry.name not in known:
            scheme = gq.Scheme.parse(entry.example)
            if isinstance(scheme.codec, RegionCodec):
                texts.append(entry.example.removeprefix(f"{scheme.schedule}/"))
    return texts


def parse_size(text):
    """Bytes of 64MiB, 256KiB or 4096, a whole number of float32."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    digits = text.removesuffix(unit).strip()
    if not digits.isdecimal() or not int(digits) or int(digits) * UNITS.get(unit, 1) % 4:
        raise ValueError(f"size {text!r}: expected a number of bytes of whole float32, as 4096, 256KiB or 64MiB")
    return int(digits) * UNITS.get(unit, 1)

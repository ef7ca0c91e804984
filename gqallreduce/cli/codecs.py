"""How fast codecs encode, and decode and add: GB/s of float32, and the time as a multiple of memcpy's. No MPI.

Every repetition goes once round a ring of inputs that together are larger than the last-level cache, so nothing is
found there by luck; all pages were touched before. Codecs and memcpy are measured in turn, in the same rounds; a ratio
is the best of a codec's repetitions over the best of memcpy's. What was timed is checked: the first input's message
must decode to what the encoder says it lost.
"""

import time

import numpy as np

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.cli import machine
from gqallreduce.cli.report import Report, size_text
from gqallreduce.layout import Grid, Region, blocks
from gqallreduce.selection import Parts, drained
from gqallreduce.workspace import Workspace

CODECS = (
    "raw",
    "onebit/ef",
    "adaptive(pi=64)/ef",
    "qsgd(bits=2)",
    "qsgd(bits=4)",
    "qsgd(bits=8)",
    "qsgd(bits=4, norm=l2)",
)
SIZES = ("256KiB", "4MiB", "64MiB")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
REPETITIONS = 9
SPREAD = 0.4  # standard deviation of the data
COLUMN = 4096


def add_arguments(parser):
    """The options of bench/codecs.py."""
    texts = "codecs, with /ef for error feedback (the usual ones and all others that are registered)"
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/codecs)"
    parser.add_argument("--codecs", nargs="+", metavar="CODEC", help=texts)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="SIZE", help=f"of float32 ({' '.join(SIZES)})")
    parser.add_argument("--simd", nargs="+", metavar="LEVEL", help="SIMD levels (all that run here)")
    parser.add_argument("--threads", type=int, default=1, help="threads of one call (1)")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"the best of so many ({REPETITIONS})")
    parser.add_argument("--output", default="bench/results/codecs", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes; 0 if all went well, 1 if a message was wrong. ValueError for an unknown name."""
    texts = arguments.codecs or default_codecs()
    sizes = [parse_size(text) for text in arguments.sizes]
    levels = arguments.simd or machine.simd_levels()
    before = _kernels.simd_level(), _kernels.threads()
    report = Report(f"{arguments.output}.jsonl")
    try:
        _kernels.set_threads(arguments.threads)
        description = machine.describe(threads=arguments.threads, last_level_cache=machine.last_level_cache())
        report.write("machine", description)
        found = _all_sizes(texts, sizes, levels, arguments.repetitions, report)
    finally:
        _kernels.use_simd_level(before[0])
        _kernels.set_threads(before[1])
    from gqallreduce.cli import plots

    written = [f"{arguments.output}.jsonl", *plots.draw_codecs(description, found, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 1 if any(row["wrong"] for row in found) else 0


def _all_sizes(texts, sizes, levels, repetitions, report):
    found = []
    with report.progress(len(sizes) * len(levels)) as progress:
        for nbytes in sizes:
            rows = []
            for level in levels:
                progress.show(f"{size_text(nbytes)}, {level}")
                rows += measure(texts, nbytes, level, repetitions)
                progress.step()
            report.table(codecs_table(rows))
            for row in rows:
                report.write("codec", row)
                if row["wrong"]:
                    report.say(f"WRONG: {row['codec']}, {row['simd']}: {row['wrong']}")
            found += rows
    return found


def default_codecs():
    """The usual codecs, and the example of every registered one that is not among them, without its schedule."""
    texts = list(CODECS)
    known = {gq.Scheme.parse(text).codec.name for text in texts}
    for entry in gq.schemes():
        if entry.kind == "codec" and entry.name not in known:
            scheme = gq.Scheme.parse(entry.example)
            texts.append(entry.example.removeprefix(f"{scheme.schedule}/"))
    return texts


def parse_size(text):
    """Bytes of 64MiB, 256KiB or 4096, a whole number of float32."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    digits = text.removesuffix(unit).strip()
    if not digits.isdecimal() or not int(digits) or int(digits) * UNITS.get(unit, 1) % 4:
        raise ValueError(f"size {text!r}: expected a number of bytes of whole float32, as 4096, 256KiB or 64MiB")
    return int(digits) * UNITS.get(unit, 1)


class Coder:
    """One codec over a whole vector, region by region as in an allreduce, for each input of the ring."""

    def __init__(self, text, inputs):
        scheme = gq.Scheme.parse(text)
        self.text, self.codec, self.inputs = text, scheme.codec, inputs
        size = inputs[0].size
        grid = self.codec.grid(Grid(COLUMN))
        self.regions = [Region(start, stop - start, grid, size) for start, stop in blocks(0, size, grid)]
        self.wires = [np.zeros(self.codec.nbytes_bound(self.regions), np.uint8) for _ in inputs]
        self.lengths = [0] * len(inputs)
        self.sums = [np.zeros(size, np.float32) for _ in inputs]
        self.owed = [np.zeros(size, np.float32) if scheme.feedback else None for _ in inputs]
        self.owing = [np.zeros(size, np.float32) if scheme.feedback else None for _ in inputs]
        self._workspace = Workspace()
        self._step = 0

    def encode(self):
        """Every input to its message, with what the last one lost."""
        for number in range(len(self.inputs)):
            self._encode(number)
        self._step += 1

    def _encode(self, number):
        parts = Parts(self.regions, lambda region: self._arrays(number, region))
        selected = self._selected(parts) if self.codec.selects else [None] * len(self.regions)
        wire, stream, at = self.wires[number], _kernels.Stream(number, 0, 0, self._step), 0
        for region, kept in zip(self.regions, selected, strict=True):
            x, owed, owing = self._arrays(number, region)
            at += self.codec.encode(x, owed, owing, wire[at:], region, stream, kept)
        self.lengths[number] = at
        self.owed[number], self.owing[number] = self.owing[number], self.owed[number]

    def _arrays(self, number, region):
        cut = slice(region.start, region.start + region.size)
        arrays = self.inputs[number], self.owed[number], self.owing[number]
        return tuple(None if array is None else array[cut] for array in arrays)

    def _selected(self, parts):
        return drained(self.codec.select(parts, self._workspace))

    def decode_add(self):
        """Every message, added to a vector."""
        for number, wire in enumerate(self.wires):
            self._decode(self.codec.decode_add, wire[: self.lengths[number]], self.sums[number])

    def _decode(self, decode, wire, y):
        at = 0
        for region in self.regions:
            at += decode(wire[at:], y[region.start : region.start + region.size], region)
        return at

    def wrong(self):
        """What is wrong with the first input's message and what the encoder says it lost; "" if nothing is."""
        before = 0.0 if self.owed[0] is None else self.owed[0].copy()
        self._encode(0)
        decoded, added = np.empty_like(self.sums[0]), np.zeros_like(self.sums[0])
        wire = self.wires[0][: self.lengths[0]]
        read = self._decode(self.codec.decode, wire, decoded), self._decode(self.codec.decode_add, wire, added)
        if set(read) != {len(wire)}:
            return f"decode and decode_add read {read} of {len(wire)} bytes"
        if not np.array_equal(decoded, added):
            return "decode and decode_add differ"
        if self.owed[0] is None:
            return "" if np.isfinite(decoded).all() else "the decoded values are not finite"
        lost = np.abs(self.inputs[0] + before - decoded - self.owed[0]).max()
        return f"{lost:.3g} of a value is neither sent nor owed" if lost > 1e-6 * np.abs(before).max() + 1e-6 else ""


def measure(texts, nbytes, level, repetitions):
    """Rows of plain values, one per codec, at one size and SIMD level."""
    _kernels.use_simd_level(level)
    inputs = _inputs(nbytes)
    copies = [np.zeros_like(x) for x in inputs]
    coders = [Coder(text, inputs) for text in texts]

    def memcpy():
        for x, copy in zip(inputs, copies, strict=True):
            np.copyto(copy, x)

    work = {"memcpy": memcpy}
    for coder in coders:
        work[coder.text, "encode"] = coder.encode
        work[coder.text, "decode_add"] = coder.decode_add
    seconds = _interleaved(work, repetitions)
    seconds = {name: [value / len(inputs) for value in values] for name, values in seconds.items()}
    return [_row(coder, nbytes, level, seconds) for coder in coders]


def _inputs(nbytes):
    """A ring of random inputs, together at least twice the last-level cache."""
    count = max(2, -(-2 * machine.last_level_cache() // nbytes))
    random = np.random.default_rng(0)
    return [random.standard_normal(nbytes // 4, np.float32) * np.float32(SPREAD) for _ in range(count)]


def _interleaved(work, repetitions):
    seconds = {name: [] for name in work}
    for number in range(1 + repetitions):
        for name, function in work.items():
            start = time.perf_counter()
            function()
            taken = time.perf_counter() - start
            if number:  # the first round touches every page
                seconds[name].append(taken)
    return seconds


def _row(coder, nbytes, level, seconds):
    memcpy = min(seconds["memcpy"])
    row = {"codec": coder.text, "bytes": nbytes, "simd": level, "memcpy_gbps": nbytes / memcpy / 1e9}
    for operation in ("encode", "decode_add"):
        times = seconds[coder.text, operation]
        row[f"{operation}_seconds"] = times
        row[f"{operation}_gbps"] = nbytes / min(times) / 1e9
        row[f"{operation}_ratio"] = min(times) / memcpy
    row["compression"] = nbytes / (sum(coder.lengths) / len(coder.lengths))
    row["wrong"] = coder.wrong()
    return row


def codecs_table(rows):
    """The table of one size, all SIMD levels."""
    from rich import box
    from rich.table import Table

    title = f"{size_text(rows[0]['bytes'])} of float32; ratios are to the time of memcpy in the same rounds"
    table = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    for name in ("codec", "SIMD"):
        table.add_column(name, no_wrap=True)
    for name in ("compression", "encode GB/s", "ratio", "decode_add GB/s", "ratio", "memcpy GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        speeds = [f"{row['encode_gbps']:.2f}", f"{row['encode_ratio']:.2f}"]
        speeds += [f"{row['decode_add_gbps']:.2f}", f"{row['decode_add_ratio']:.2f}", f"{row['memcpy_gbps']:.2f}"]
        table.add_row(row["codec"], row["simd"], f"{row['compression']:.2f}", *speeds)
    return table

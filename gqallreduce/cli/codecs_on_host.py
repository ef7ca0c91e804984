"""Codecs on the host, at each SIMD level, against memcpy of the same data in the same rounds.

A ratio is the best of a codec's repetitions over the best of memcpy's. What was timed is checked: the first input's
message must decode to what the encoder says it lost.

Codecs that sum a shorter vector by another codec have no message of their own. Of these a call on one rank is timed, in
the place of encoding: it chooses what is sent, sends nothing, and writes the result.
"""

import contextlib
import time

import numpy as np

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.backends.processor import Host
from gqallreduce.cli import machine, plots
from gqallreduce.cli.coder import Coder, interleaved, random_inputs
from gqallreduce.cli.report import size_text
from gqallreduce.coding import frame
from gqallreduce.runtime.local import LocalAllreduce

OPERATIONS = ("encode", "decode_add")


class OnHost:
    """What bench/codecs.py measures on the host."""

    sizes = ("256KiB", "4MiB", "64MiB")
    output = "bench/results/codecs"
    draw = staticmethod(plots.draw_codecs)

    def __init__(self, arguments):
        self._threads = arguments.threads
        self.variants = arguments.simd or machine.simd_levels()

    @contextlib.contextmanager
    def active(self):
        """As many threads as asked for inside; threads and SIMD level are as before after it."""
        before = _kernels.simd_level(), _kernels.threads()
        try:
            _kernels.set_threads(self._threads)
            yield
        finally:
            _kernels.use_simd_level(before[0])
            _kernels.set_threads(before[1])

    def describe(self):
        return machine.describe(threads=self._threads, last_level_cache=machine.last_level_cache())

    def texts(self, usual):
        return usual

    def too_large(self, nbytes):
        return ""

    def measure(self, texts, nbytes, level, repetitions):
        return measure(texts, nbytes, level, repetitions)

    def table(self, rows):
        return codecs_table(rows)


def measure(texts, nbytes, level, repetitions, ranks=1):
    """Rows of plain values, one per codec, at one size and SIMD level.

    ranks
        so many on this host measure at the same time: their inputs together are larger than the last-level cache.
    """
    _kernels.use_simd_level(level)
    inputs = list(random_inputs(nbytes, machine.last_level_cache() // ranks))
    copies = [np.zeros_like(x) for x in inputs]
    coders = [_of(text)(text, inputs, Host()) for text in texts]

    def memcpy():
        for x, copy in zip(inputs, copies, strict=True):
            np.copyto(copy, x)

    work = {"memcpy": memcpy}
    for coder in coders:
        work[coder.text, "encode"] = coder.encode
        if isinstance(coder, Coder):
            work[coder.text, "decode_add"] = coder.decode_add
    seconds = interleaved(work, repetitions, _seconds_of)
    seconds = {name: [value / len(inputs) for value in values] for name, values in seconds.items()}
    return [_row(coder, nbytes, level, seconds) for coder in coders]


def _of(text):
    """By which of the two a codec is measured."""
    return Call if gq.Scheme.parse(text).codec.indirect else Coder


class Call:
    """Whole calls on one rank, of each input of the ring with a residual of its own."""

    def __init__(self, text, inputs, processor):
        self.text, self.inputs = text, inputs
        self.sums = [np.zeros_like(x) for x in inputs]
        self._local = LocalAllreduce(text, 1, processors=[processor])

    @property
    def compression(self):
        """Bytes of an input by those of its message, without the header."""
        return self.inputs[0].nbytes / (len(gq.Scheme.parse(self.text).encode(self.inputs[0])) - frame.SIZE)

    def encode(self):
        for number in range(len(self.inputs)):
            self._call(number)

    def _call(self, number):
        self._local([self.inputs[number]], key=str(number), out=[self.sums[number]])

    def residual(self):
        """Of the first input."""
        return self._local.memory[0].residual("0")

    def wrong(self):
        """What is neither in the result nor in the residual of one more call; "" if that is nothing."""
        if not self._local.scheme.feedback:
            return "" if np.isfinite(self.sums[0]).all() else "the result is not finite"
        before = self.residual().copy()
        self._call(0)
        return _too_much(np.abs(self.inputs[0] + before - self.sums[0] - self.residual()).max(), before)


def _seconds_of(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _row(coder, nbytes, level, seconds):
    memcpy = min(seconds["memcpy"])
    row = {"codec": coder.text, "bytes": nbytes, "simd": level}
    row |= {"memcpy_seconds": seconds["memcpy"], "memcpy_gbps": nbytes / memcpy / 1e9}
    for operation in OPERATIONS:
        times = seconds.get((coder.text, operation))
        if times is None:
            continue
        row[f"{operation}_seconds"] = times
        row[f"{operation}_gbps"] = nbytes / min(times) / 1e9
        row[f"{operation}_ratio"] = min(times) / memcpy
    row["compression"] = coder.compression
    row["wrong"] = coder.wrong() if isinstance(coder, Call) else wrong(coder)
    return row


def wrong(coder):
    """What is wrong with the first input's message and what the encoder says it lost; "" if nothing is."""
    coder.settle()
    decoded, added, read = coder.decoded()
    if set(read) != {coder.lengths[0]}:
        return f"decode and decode_add read {read} of {coder.lengths[0]} bytes"
    if not np.array_equal(decoded, added):
        return "decode and decode_add differ"
    if coder.residual[0] is None:
        return "" if np.isfinite(decoded).all() else "the decoded values are not finite"
    lost = np.abs(coder.inputs[0] + coder.residual[0] - decoded - coder.new_residual[0]).max()
    return _too_much(lost, coder.residual[0])


def _too_much(lost, residual):
    allowed = 1e-6 * np.abs(residual).max() + 1e-6
    return f"{lost:.3g} of a value is neither sent nor in the residual" if lost > allowed else ""


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
        names = [f"{operation}_{what}" for operation in OPERATIONS for what in ("gbps", "ratio")]
        speeds = [f"{row[name]:.2f}" if name in row else "-" for name in [*names, "memcpy_gbps"]]
        table.add_row(row["codec"], row["simd"], f"{row['compression']:.2f}", *speeds)
    return table

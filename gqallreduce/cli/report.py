"""What a benchmark leaves behind: tables on the terminal, JSON lines, progress. Only rank 0 speaks."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np

from gqallreduce.cli.needs import lacking


class Silent:
    """The report of a rank that keeps quiet."""

    def say(self, text):
        pass

    def table(self, table):
        pass

    def write(self, kind, row):
        pass

    def progress(self, total):
        """A context with a Progress of `total` steps."""
        return contextlib.nullcontext(Progress())


class Progress:
    """How far a benchmark is; this one does not show it."""

    def show(self, text):
        """What is being done now."""

    def step(self):
        """One of the steps is done."""


class Report(Silent):
    """Rank 0's report: prints, and appends JSON lines to `path` as they come, so that a killed run leaves them.

    The first line is the machine's description; every line has a `kind`.
    """

    def __init__(self, path=None):
        if lack := lacking():
            sys.exit(lack)
        from rich.console import Console

        # mpirun makes every log look like a terminal, so there are no colours.
        self._console = Console(highlight=False, color_system=None)
        self._path = path
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("")

    def say(self, text):
        """A line of text."""
        self._console.print(text, markup=False, soft_wrap=True)

    def table(self, table):
        """A rich table."""
        print_whole(self._console, table)

    def write(self, kind, row):
        """One JSON line."""
        if self._path:
            with open(self._path, "a") as file:
                file.write(json.dumps({"kind": kind, **row}, default=_plain) + "\n")

    def progress(self, total):
        """A context with a Progress of `total` steps; on a terminal it is a bar."""
        return _Bar(total) if sys.stderr.isatty() else super().progress(total)


class _Bar(Progress):
    def __init__(self, total):
        from rich import progress
        from rich.console import Console

        columns = progress.BarColumn(), progress.TimeElapsedColumn(), progress.TextColumn("{task.description}")
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *problem):
        self._bar.stop()

    def show(self, text):
        self._bar.update(self._task, description=text)

    def step(self):
        self._bar.advance(self._task)


def print_whole(console, table):
    """Prints a rich table with nothing cut: a terminal of mpirun has 80 columns whatever there is."""
    from rich.measure import Measurement

    wanted = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.width = max(console.width, wanted)
    console.print(table)


def _plain(value):
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"got a {type(value).__name__} in a result, expected what JSON has")


def rows_of(path):
    """(kind, row) of each line of a file of results; ValueError says which line is none."""
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            row = json.loads(line.decode())
            kind = row.pop("kind").strip()
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
            why = f"expected a .jsonl file of results; was it cut short? ({problem})"
            raise ValueError(f"{path}, line {number}: no row of a benchmark, {why}") from None
        yield kind, row


def read(path, wanted=None):
    """(machine, rows) of a file of JSON lines; all rows or those of one kind, without their kind."""
    machine, rows = {}, []
    for kind, row in rows_of(path):
        if kind == "machine":
            machine = row
        elif wanted in (None, kind):
            rows.append(row)
    return machine, rows


def size_text(nbytes):
    """Bytes with a binary unit: 4 KiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024


def sums_table(rows):
    """The table of one size of the allreduce benchmark."""
    from rich import box
    from rich.table import Table

    side, nbytes = rows[0]["side"], rows[0]["bytes"]
    title = f"{side} x {side} float32, {size_text(nbytes)}"
    table = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    for name, justify in [("size", "right"), ("scheme", "left")]:
        table.add_column(name, justify=justify, no_wrap=True)
    for name in ("n", "median ms", "min", "max", "speed-up", "sent/rank", "ratio", "error", "encode", "decode", "wait"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row):
    seconds = row["seconds"]
    times = [f"{1e3 * value:.3f}" if value < 0.1 else f"{1e3 * value:.0f}" for value in _three(seconds)]
    sent = size_text(row["bytes_sent"]) if row.get("bytes_sent") is not None else "-"
    ratio = f"{row['ratio']:.2f}" if "ratio" in row else "-"
    shares = [f"{100 * row[name]:.0f} %" if name in row else "-" for name in ("encode", "decode", "wait")]
    size, error = f"{row['side']}", f"{row['error']:.1e}"
    return [size, scheme_text(row), f"{len(seconds)}", *times, f"{row['speedup']:.2f}x", sent, ratio, error, *shares]


def _three(seconds):
    return float(np.median(seconds)), min(seconds), max(seconds)


def scheme_text(row):
    """The scheme, and for `auto/` what it chose."""
    chosen = row.get("ran")
    if not chosen or not row["scheme"].startswith("auto/"):
        return row["scheme"]
    schedule, _, rest = chosen.partition("/")
    return f"{row['scheme']} -> {schedule}" + "/raw" * rest.startswith("raw")

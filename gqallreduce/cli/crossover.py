"""At which rate of the links does each scheme cease to win? The allreduce benchmark in a bed of paced links per rate.

Every rate is one run of the benchmark, in which schemes and dense sums take turns, so that only ratios of one run are
compared; between two rates the logarithm of the speed-up is taken as linear in the logarithm of the rate.

All hosts share the processors of one machine. Where these and not the links are the bound, a ratio tells nothing of
real hosts with such links; those rates are marked, by a rule that was measured: two cores carry up to 20 Gbit/s over
all hosts with nothing else to do, and links are the bound up to about 4 Gbit/s per core, summed over the hosts.
"""

import itertools
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gqallreduce.cli import machine
from gqallreduce.cli.measure import ENOUGH, median
from gqallreduce.cli.report import Report, read, size_text
from gqallreduce.quantities import link_rate, link_rate_text

RATES = ("100mbit", "250mbit", "500mbit", "1gbit", "2gbit", "5gbit", "10gbit", "unlimited")
SCHEMES = (
    "direct/onebit/ef",
    "direct/adaptive(pi=64)/ef",
    "direct/qsgd(bits=2, bucket=128)",
    "direct/qsgd(bits=4)",
    "ring/qsgd(bits=4)",
)
LINK_BOUND = 4e9  # bit/s per core, summed over the hosts
BENCHMARK = ("-m", "gqallreduce", "bench")


class Failed(Exception):
    """A bed or the benchmark in it ended with a status other than 0; says what it said."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def add_arguments(parser):
    """The options of bench/crossover.py."""
    parser.add_argument("--hosts", type=int, default=4, help="hosts of the bed, with one rank each (4)")
    rates = f"rates of the links ({' '.join(RATES)})"
    parser.add_argument("--rates", nargs="+", type=link_rate, default=list(map(link_rate, RATES)), help=rates)
    parser.add_argument("--min", type=int, default=1024, metavar="N", help="smallest side of a matrix (1024: 4 MiB)")
    parser.add_argument("--max", type=int, default=2048, metavar="N", help="largest side (2048: 16 MiB)")
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="SCHEME", help="schemes to measure")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for one rate and size (8)")
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/crossover)"
    parser.add_argument("--output", default="bench/results/crossover", metavar="NAME", help=files)


def run(arguments, bed):
    """Measures in beds made by the executable `bed`, prints and writes; the exit status of a bed that failed, or 0."""
    report = Report(f"{arguments.output}.jsonl")
    try:
        description, rows = _all_rates(arguments, bed, report)
    except Failed as problem:
        print(f"crossover: {problem}", file=sys.stderr)
        return problem.status
    for nbytes in sorted({row["bytes"] for row in rows}):
        chosen = [row for row in rows if row["bytes"] == nbytes]
        report.table(crossover_table(chosen))
        for scheme, text in wins(chosen).items():
            report.write("crossover", {"bytes": nbytes, "scheme": scheme, "wins": text})
    report.say(f"* bound by the processors: rate x hosts is over {LINK_BOUND / 1e9:g} Gbit/s per core")
    few = sorted({row["rate"] or math.inf for row in rows if len(row["seconds"]) < ENOUGH})
    if few:
        rates = ", ".join(link_rate_text(rate if rate < math.inf else None) for rate in few)
        report.say(f"fewer than {ENOUGH} repetitions at {rates}: give more --seconds before quoting these")
    from gqallreduce.cli import plots

    written = [f"{arguments.output}.jsonl", *plots.draw_crossover(description, rows, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def _all_rates(arguments, bed, report):
    """(machine, rows) of all rates, slowest first, written as they come."""
    description, rows = {}, []
    with report.progress(len(arguments.rates)) as progress:
        for rate in sorted(arguments.rates, key=lambda rate: rate or math.inf):
            progress.show(f"{link_rate_text(rate)}, {arguments.hosts} hosts")
            said, found = measure_rate(bed, rate, arguments)
            if not rows:
                link = f"paced links, {arguments.hosts} hosts"
                description = {**said, "command": machine.command(), "link": link}
                report.write("machine", description)
            for row in found:
                report.write("sum", row)
            rows += found
            progress.step()
    return description, rows


def measure_rate(bed, rate, arguments):
    """(machine, rows) of the benchmark in a bed of this rate; each row with its `rate` and if that is `link_bound`."""
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder) / "rate")
        done = subprocess.run(command(bed, rate, arguments, name), capture_output=True, text=True)
        if done.returncode:
            raise Failed(done.returncode, f"at {link_rate_text(rate)}: {done.stdout}{done.stderr}".strip())
        description, rows = read(f"{name}.jsonl")
    bound = link_bound(rate, arguments.hosts, description["cores"])
    return description, [{"rate": rate, "hosts": arguments.hosts, "link_bound": bound, **row} for row in rows]


def command(bed, rate, arguments, name):
    """The words that run the benchmark in a bed and leave its results in name.jsonl."""
    sizes = ["--min", str(arguments.min), "--max", str(arguments.max), "--seconds", str(arguments.seconds)]
    benchmark = [sys.executable, *BENCHMARK, *sizes, "--output", name, "--schemes", *arguments.schemes]
    return [*words_of(bed, arguments.hosts, rate), *benchmark]


def words_of(bed, hosts, rate):
    """The words of the executable `bed` that come before a program on its hosts."""
    speed = "unlimited" if rate is None else f"{rate / 1e6:.12g}mbit"
    return [os.fspath(bed), "--hosts", str(hosts), "--rate", speed, "--quiet", "--"]


def link_bound(rate, hosts, cores):
    """Is it the links of this rate (bit/s, None if unlimited), not the processors, that bound a sum over the hosts?"""
    return rate is not None and rate * hosts <= LINK_BOUND * cores


def curves(rows):
    """scheme -> [(rate, speed-up)] of rows of one size, slowest link first, without unlimited links."""
    found = {row["scheme"]: [] for row in rows if not row["dense"]}
    for row in rows:
        if not row["dense"] and row["rate"] is not None:
            found[row["scheme"]].append((row["rate"], row["speedup"]))
    return {scheme: sorted(points) for scheme, points in found.items()}


def crossover(points):
    """The rate up to which a scheme wins: where its speed-up first falls to 1; 0 if it never wins, inf if always."""
    if not points or points[0][1] < 1:
        return 0.0
    for (slow, gain), (fast, loss) in itertools.pairwise(points):
        if loss < 1:
            return slow * (fast / slow) ** (math.log(gain) / math.log(gain / loss))
    return math.inf


def wins_text(points, bound):
    """For which rates a scheme wins, in words; with a * if that is over `bound`, where the processors decide."""
    rate = crossover(points)
    if rate == 0:
        return "at no rate measured"
    last = min(rate, points[-1][0])
    return f"{'at all ' if rate > last else ''}up to {link_rate_text(last)}{'*' if last > bound else ''}"


def wins(rows):
    """scheme -> for which rates it wins, in words, of rows of one size."""
    bound = max((row["rate"] for row in rows if row["link_bound"]), default=0.0)
    return {scheme: wins_text(points, bound) for scheme, points in curves(rows).items()}


def link_used(rows):
    """Share of the links that the better dense sum of these rows (one rate, one size) used; None if unlimited."""
    row = rows[0]
    if row["rate"] is None:
        return None
    seconds = min(median(row["seconds"]) for row in rows if row["dense"])
    return 2 * (row["hosts"] - 1) / row["hosts"] * 8 * row["bytes"] / row["rate"] / seconds


def crossover_table(rows):
    """The table of one size: speed-ups by scheme and rate, where each ceases to win, how far dense uses the link."""
    from rich import box
    from rich.table import Table

    by_rate = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["rate"])]
    title = f"{size_text(rows[0]['bytes'])} of float32 over {rows[0]['hosts']} hosts, times as fast as the better dense"
    table = Table(title=title, title_justify="left", title_style="", header_style="", box=box.SIMPLE_HEAD)
    table.add_column("scheme", no_wrap=True)
    for group in by_rate:
        mark = "" if group[0]["link_bound"] else "*"
        table.add_column(link_rate_text(group[0]["rate"]) + mark, justify="right", no_wrap=True)
    table.add_column("wins", no_wrap=True)
    for scheme, text in wins(rows).items():
        speedups = [{row["scheme"]: row["speedup"] for row in group}.get(scheme) for group in by_rate]
        table.add_row(scheme, *("-" if value is None else f"{value:.2f}x" for value in speedups), text)
    shares = map(link_used, by_rate)
    table.add_row("share of the link that dense uses", *("-" if share is None else f"{share:.0%}" for share in shares))
    return table

"""Is a scheme slower than it was? The allreduce benchmark of an earlier commit and of this tree, in turn.

Each commit has its own benchmark, extension and Python files. A round runs both on every bed, one after the other, so
that what else the machine does falls on both; dense sums, which no commit changes, show how far two runs differ.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gqallreduce.cli import machine
from gqallreduce.cli.crossover import Failed, words_of
from gqallreduce.cli.measure import median
from gqallreduce.cli.plots import COLOURS, figure, save
from gqallreduce.cli.report import Report, read, size_text
from gqallreduce.cli.tables import results
from gqallreduce.quantities import link_rate, link_rate_text

TREES = ("before", "after")
ROOT = Path(__file__).resolve().parents[2]
BEDS = ("2", "4", "4x1gbit")
SCHEMES = (
    "direct/onebit",
    "direct/onebit/ef",
    "direct/adaptive(pi=64)/ef",
    "direct/qsgd(bits=2, bucket=128)",
    "direct/qsgd(bits=4)",
    "halving_doubling/qsgd(bits=4)",
    "direct/terngrad",
    "direct/bfloat16",
)
COLUMNS = ("bed", "scheme", "before ms", "after ms", "after / before", "gain before", "gain after")


@dataclasses.dataclass(frozen=True)
class Bed:
    """So many ranks over shared memory, or, with a rate in bit/s, one on each host of a bed of paced links."""

    ranks: int
    rate: float | None = None

    @classmethod
    def parse(cls, text):
        """Of "4" or "4x1gbit"; ValueError if it is neither."""
        ranks, of_hosts, rate = text.partition("x")
        return cls(int(ranks), link_rate(rate) if of_hosts else None)

    def __str__(self):
        if self.rate is None:
            return f"shared memory, {self.ranks} ranks"
        return f"{self.ranks} hosts, {link_rate_text(self.rate)}"

    def words(self):
        """Of the command that runs a program on it."""
        if self.rate is None:
            return [machine.launcher(), "-n", str(self.ranks)]
        return words_of(ROOT / "bench" / "netbed", self.ranks, self.rate)


def add_arguments(parser):
    """The options of bench/before_after.py."""
    parser.add_argument("commit", help="the earlier commit, which is built in build/commits")
    beds = f"ranks over shared memory, or HOSTSxRATE ({' '.join(BEDS)})"
    parser.add_argument("--beds", nargs="+", type=Bed.parse, default=list(map(Bed.parse, BEDS)), help=beds)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each commit on each bed (3)")
    parser.add_argument(
        "--side", type=int, default=4096, metavar="N", help="of the matrix that is summed (4096: 64 MiB)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="time for one run (20)")
    parser.add_argument(
        "--schemes", nargs="+", default=SCHEMES, metavar="SCHEME", help="schemes that both commits know"
    )
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/before_after)"
    parser.add_argument("--output", default="bench/results/before_after", metavar="NAME", help=files)


def run(arguments):
    """Builds, measures, prints and writes; the exit status of what failed, or 0."""
    if not (ROOT / ".git").exists():
        print(f"before_after: got a package in {ROOT}, expected a checkout, which has earlier commits", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl")
    try:
        trees = dict(zip(TREES, (tree_of(arguments.commit), ROOT), strict=True))
        description, rows = measure_all(trees, arguments, report)
    except Failed as problem:
        print(f"before_after: {problem}", file=sys.stderr)
        return problem.status
    found = summary(rows)
    report.table(results(_title(rows), COLUMNS, [cells(each) for each in found], left=COLUMNS[:2]))
    written = [f"{arguments.output}.jsonl", *draw(description, found, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def tree_of(commit):
    """The folder of a commit, with its extension; built once."""
    name = _said_by("git", "rev-parse", "--short=12", f"{commit}^{{commit}}", folder=ROOT).strip()
    folder = ROOT / "build" / "commits" / name
    if not (folder / "setup.py").exists():
        _said_by("git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, folder)
        _said_by("git", "checkout", "--quiet", name, folder=folder)
    if not list(folder.glob("gqallreduce/_kernels*.so")):
        _said_by(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", folder=folder)
    return folder


def measure_all(trees, arguments, report):
    """(machine, rows) of all rounds, written as they come."""
    description, rows = {}, []
    with report.progress(arguments.rounds * len(arguments.beds) * len(trees)) as progress:
        for number, bed, tree in itertools.product(range(arguments.rounds), arguments.beds, trees):
            progress.show(f"round {number + 1}, {bed}, {tree}")
            said, found = measure(trees[tree], bed, arguments)
            if not rows:
                commits = f"{trees['before'].name} (before), {machine.commit()} (after)"
                of_one = "link", "ranks", "nodes", "cores_per_rank"
                description = {name: each for name, each in said.items() if name not in of_one}
                description |= {"command": machine.command(), "commit": commits}
                report.write("machine", description)
            for row in found:
                rows.append({"bed": str(bed), "round": number, "tree": tree, **row})
                report.write("before_after", rows[-1])
            progress.step()
    return description, rows


def measure(tree, bed, arguments):
    """(machine, rows) of the benchmark of a tree on a bed."""
    side, seconds = str(arguments.side), str(arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder) / "run")
        sizes = ["--min", side, "--max", side, "--seconds", seconds, "--output", name]
        program = [sys.executable, tree / "bench" / "allreduce_synthetic.py", *sizes, "--schemes", *arguments.schemes]
        _said_by(*bed.words(), *program, folder=tree, PYTHONPATH=str(tree))
        return read(f"{name}.jsonl", "sum")


def _said_by(*words, folder=None, **variables):
    """What a command prints; Failed if its status is not 0."""
    words, environment = list(map(str, words)), {**os.environ, **variables}
    done = subprocess.run(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.returncode, f"{machine.command(words)}: {done.stdout}{done.stderr}".strip())
    return done.stdout


def summary(rows):
    """[bed, scheme, seconds of each tree, after / before, gain over the better dense sum of each tree]: medians of the
    rounds' medians."""
    seconds = {}
    for row in rows:
        times = seconds.setdefault((row["bed"], row["scheme"], row["dense"]), {name: [] for name in TREES})
        times[row["tree"]].append(median(row["seconds"]))
    taken = {about: {tree: median(each) for tree, each in times.items()} for about, times in seconds.items()}
    found = []
    for (bed, scheme, dense), times in taken.items():
        better = [
            min(of[tree] for (place, _, is_dense), of in taken.items() if is_dense and place == bed) for tree in TREES
        ]
        gains = {tree: best / times[tree] for tree, best in zip(TREES, better, strict=True)}
        ratio = times["after"] / times["before"]
        found.append({"bed": bed, "scheme": scheme, "dense": dense, **times, "ratio": ratio, "gains": gains})
    return found


def _title(rows):
    return f"Sum of {size_text(rows[0]['bytes'])}; times as fast as the better dense sum of the same commit"


def cells(row):
    """A line of the table."""
    times = [f"{1e3 * row[tree]:.0f}" if row[tree] > 0.1 else f"{1e3 * row[tree]:.3g}" for tree in TREES]
    return [row["bed"], row["scheme"], *times, f"{row['ratio']:.2f}", *[f"{row['gains'][tree]:.3g}x" for tree in TREES]]


def draw(description, found, name):
    """Draws after / before of each scheme, a panel for each bed, into name.png and name.svg; returns their paths."""
    beds = list(dict.fromkeys(row["bed"] for row in found))
    drawing, axes = figure(len(beds))
    for panel, bed in zip(axes, beds, strict=True):
        mine = [row for row in found if row["bed"] == bed][::-1]
        panel.barh([row["scheme"] for row in mine], [row["ratio"] for row in mine], color=COLOURS[0], height=0.6)
        panel.axvline(1.0, color="#777777", linewidth=0.8)
        panel.set(title=bed, xlabel="time after / before", xlim=(0, None))
    for panel in axes[1:]:
        panel.tick_params(labelleft=False)
    return save(drawing, "Time of a sum, of the later commit / of the earlier one", description, name)

"""What `auto/` costs beside the best it could have chosen, by size: the goal is that it never loses.

A cell is a size. All contenders of a cell are measured in turn, round after round, so that they meet the same noise:
MPI's own allreduce by default and forced to a ring, the codec on every schedule, and `auto/` after its tries. A time
is that of the slowest rank from a barrier on. Where the better dense allreduce is the fastest, `auto/` may take 1.10
times its time and 40 us; where a scheme is, 1.15 times that.
"""

import contextlib
import random
from pathlib import Path
from time import perf_counter

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import dense, machine
from gqallreduce.cli.measure import TRIES_MOST
from gqallreduce.cli.report import Report, Silent, read, size_text
from gqallreduce.cli.tables import markdown, print_plain
from gqallreduce.cli.world import are_schemes, on_world
from gqallreduce.quantities import count, seconds_text
from gqallreduce.registry import SCHEDULES

OVER_DENSE, MORE, OVER_BEST = 1.10, 40e-6, 1.15
WARM_UPS = 2
LEAST, MOST = 4, 64 << 20


def add_arguments(parser):
    """The options of the benchmark."""
    parser.add_argument(
        "--codecs", nargs="+", default=["onebit/ef"], metavar="CODEC", help="without schedule (onebit/ef)"
    )
    parser.add_argument("--max", type=count, default=MOST, metavar="BYTES", help="largest buffer (64 MiB)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for one size (10)")
    parser.add_argument("--repetitions", type=count, default=200, help="most rounds of one size (200)")
    parser.add_argument(
        "--longest", type=float, default=5.0, help="sizes whose dense sum takes more are left out (5 s)"
    )
    parser.add_argument("--link", help="what to call the link in the results")
    name = "writes NAME.jsonl, NAME.md, NAME.png and NAME.svg (bench/results/auto)"
    parser.add_argument("--output", default="bench/results/auto", metavar="NAME", help=name)
    again = "measure nothing: table and plots of earlier results, FILE.jsonl, as NAME.md, NAME.png and NAME.svg"
    parser.add_argument("--draw", metavar="FILE", help=again)


def run(arguments):
    """Runs the benchmark on COMM_WORLD; its exit status."""
    if arguments.draw:
        _show(Report(), *read(arguments.draw, "auto"), arguments.output)
        return 0
    return on_world("auto", run_on, arguments)


def run_on(comm, arguments):
    """Runs the benchmark on a communicator; the exit status, the same on all ranks."""
    texts = [f"auto/{codec}" for codec in arguments.codecs]
    if not are_schemes("auto", comm, texts):
        return 2
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    baselines, how = dense.baselines(comm)
    about = machine.describe_job(comm, arguments.link, dense=how)
    report.write("machine", about)
    found, todo = [], sizes(arguments.max)
    with report.progress(len(todo)) as progress:
        for nbytes in todo:
            progress.show(size_text(nbytes))
            rows = _size(comm, nbytes, baselines, arguments)
            if rows is None:
                report.say(f"left out from {size_text(nbytes)} on: a dense sum takes over {arguments.longest:g} s")
                break
            found += rows
            progress.step()
    for row in found:
        report.write("auto", row)
    if comm.rank == 0:
        _show(report, about, found, arguments.output)
    return 0


def sizes(most):
    """4 bytes, and sixteen times as much each time, up to `most`."""
    found = [LEAST]
    while found[-1] * 16 <= most:
        found.append(found[-1] * 16)
    return found


class _Contender:
    """One way to sum a buffer: MPI's, or a scheme."""

    def __init__(self, name, codec, call, active):
        self.name, self.codec, self.call, self.active, self.seconds = name, codec, call, active, []


def _size(comm, nbytes, baselines, arguments):
    """The rows of one size, one for each codec; None if it takes too long."""
    data = np.random.default_rng([comm.rank, nbytes]).standard_normal(max(1, nbytes // 4)).astype(np.float32)
    buffer = np.empty_like(data)
    contenders = [_Contender(each.name, None, each, each.active) for each in baselines]
    if min(_once(comm, each, buffer, data) for each in contenders) > arguments.longest:
        return None
    made = []
    for codec in arguments.codecs:
        for schedule in ("auto", *sorted(SCHEDULES)):
            made.append(gq.Allreduce(f"{schedule}/{codec}", comm=comm))
            call = _call_of(made[-1])
            contenders.append(_Contender(f"{schedule}/{codec}", codec, call, contextlib.nullcontext))
            if schedule == "auto":
                for _ in range(TRIES_MOST):
                    _once(comm, contenders[-1], buffer, data)
    order, began = random.Random(nbytes), perf_counter()
    for number in range(-WARM_UPS, arguments.repetitions):
        for each in order.sample(contenders, len(contenders)):
            passed = _once(comm, each, buffer, data)
            if number >= 0:
                each.seconds.append(passed)
        if comm.bcast(perf_counter() - began > arguments.seconds) and number >= 0:
            break
    rows = [_row(contenders, codec, nbytes) for codec in arguments.codecs]
    for row, auto in zip(rows, made[:: 1 + len(SCHEDULES)], strict=True):
        row |= {"ran": auto.stats.last.scheme, "reason": auto.stats.last.reason}
    for each in made:
        each.close()
    return rows


def _call_of(allreduce):
    return lambda buffer: allreduce(buffer, key="w")


def _once(comm, contender, buffer, data):
    """Seconds of the slowest rank."""
    buffer[:] = data
    with contender.active():
        comm.Barrier()
        began = perf_counter()
        contender.call(buffer)
        return max(comm.allgather(perf_counter() - began))


def _row(contenders, codec, nbytes):
    """Of a codec: medians of all, the ratio of `auto/` to what it may take."""
    medians = {each.name: float(np.median(each.seconds)) for each in contenders if each.codec in (None, codec)}
    auto = medians.pop(f"auto/{codec}")
    exact = min(medians[each.name] for each in contenders if each.codec is None)
    best = min(medians, key=medians.get)
    wins = medians[best] < exact
    allowed = OVER_BEST * medians[best] if wins else OVER_DENSE * exact + MORE
    found = {"auto": auto, "exact": exact, "best": best, "best_seconds": medians[best], "seconds": medians}
    found |= {"rounds": len(contenders[0].seconds), "ratio": auto / medians[best], "of_allowed": auto / allowed}
    return {"scheme": f"auto/{codec}", "bytes": nbytes, **found}


COLUMNS = "bytes", "scheme", "ran", "auto", "best dense", "best", "time of it", "ratio", "of what it may take"
RIGHT = "bytes", "auto", "best dense", "time of it", "ratio", "of what it may take"


def _show(report, about, rows, output):
    """The table, printed and as a page, the plots, and how many cells keep the bounds."""
    from gqallreduce.cli import plots

    lines = cells(rows)
    print_plain(COLUMNS, lines, RIGHT)
    Path(f"{output}.md").write_text(markdown(COLUMNS, lines, RIGHT))
    kept = sum(row["of_allowed"] <= 1 for row in rows)
    report.say(f"within the bounds: {kept} of {len(rows)} cells")
    written = plots.draw_auto(about, rows, output)
    report.say("written: " + ", ".join([f"{output}.md", *written]))


def cells(rows):
    """Rows of results as text, under COLUMNS."""
    return [
        [
            size_text(row["bytes"]), row["scheme"], row["ran"].partition("(")[0], seconds_text(row["auto"]),
            seconds_text(row["exact"]), row["best"], seconds_text(row["best_seconds"]), f"{row['ratio']:.2f}",
            f"{100 * row['of_allowed']:.0f} %",
        ]
        for row in rows
    ]  # fmt: skip

"""How much of a call is hidden behind what its caller computes meanwhile: `start`, compute, `wait`.

Three computations: products of matrices by NumPy, a loop in Python, forward and backward of a small network. Each is
repeated until it takes about twice as long as the call alone. Calls are carried out in three ways: by the thread of the
runtime in C++ as well, inside calls only, and by Python. All are measured in turn, round after round: the call alone,
the computation alone, and both, each until the last rank is done. Hidden are the seconds by which both take less than
the two together. `waits` is the mean of all ranks.
"""

from time import perf_counter

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.report import Report, Silent, size_text
from gqallreduce.cli.tables import print_plain
from gqallreduce.cli.training.network import Network
from gqallreduce.cli.world import are_schemes, environment, on_world
from gqallreduce.quantities import seconds_text

SCHEMES = ("direct/onebit/ef", "direct/adaptive(pi=64)/ef", "direct/qsgd(bits=4)")
SIZES = (1, 4, 16, 64)  # MiB
# How calls are carried out: (GQALLREDUCE_RUNTIME, GQALLREDUCE_PROGRESS) as objects are made.
WAYS = {"thread": ("native", "thread"), "calls": ("native", "calls"), "python": ("python", "calls")}
LONGER = 2.0  # the computation, than the call alone
LEAST_WAITING = 0.1  # of the call alone; less cannot be told from noise
WARM_UPS = 2
MATRIX, LOOP, WIDTHS, SAMPLES = 192, 2000, (784, 256, 256, 10), 64


def add_arguments(parser):
    """The options of the benchmark."""
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="SCHEME", help="schemes to measure")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="MIB", help="MiB of the buffer")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, help="how calls are carried out")
    parser.add_argument("--rounds", type=int, default=9, help="of each size, scheme and computation (9)")
    parser.add_argument("--link", help="what to call the link in the results")
    name = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/overlap)"
    parser.add_argument("--output", default="bench/results/overlap", metavar="NAME", help=name)


def run(arguments):
    """Runs the benchmark on COMM_WORLD; its exit status."""
    return on_world("overlap", run_on, arguments)


def run_on(comm, arguments):
    """Runs the benchmark on a communicator; the exit status, the same on all ranks."""
    if not are_schemes("overlap", comm, arguments.schemes):
        return 2
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    about = machine.describe_job(comm, arguments.link)
    report.write("machine", about)
    places = {way: _place(comm, way, arguments.schemes) for way in arguments.ways}
    work, rows = computations(), []
    with report.progress(len(arguments.sizes) * len(arguments.schemes) * len(work)) as progress:
        for mebibytes in arguments.sizes:
            values = np.random.default_rng(comm.rank).normal(size=mebibytes << 18).astype(np.float32)
            for scheme in arguments.schemes:
                for name, unit in work.items():
                    progress.show(f"{mebibytes} MiB, {scheme}, {name}")
                    calls = {way: place[scheme] for way, place in places.items()}
                    for row in measure(comm, calls, values, unit, arguments.rounds):
                        rows.append({"scheme": scheme, "bytes": values.nbytes, "computes": name, **row})
                        report.write("overlap", rows[-1])
                    progress.step()
    if comm.rank == 0:
        _show(about, rows, arguments.output)
    return 0


def _place(comm, way, schemes):
    """scheme -> an object whose calls are carried out in one way."""
    names = "GQALLREDUCE_RUNTIME", "GQALLREDUCE_PROGRESS"
    with environment(dict(zip(names, WAYS[way], strict=True))):
        return {scheme: gq.Allreduce(scheme, comm=own) for own in [comm.Dup()] for scheme in schemes}


def computations():
    """name -> a short piece of work."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, MATRIX, MATRIX)).astype(np.float32)
    out = np.empty_like(a)
    network = Network(WIDTHS, SAMPLES)
    network.draw(0)
    images = np.asfortranarray(random.normal(size=(WIDTHS[0], SAMPLES)).astype(np.float32))
    labels = random.integers(0, WIDTHS[-1], SAMPLES)
    return {
        "matrix products": lambda: np.matmul(a, b, out=out),
        "Python loop": lambda: sum(number * number for number in range(LOOP)),
        "backward pass": lambda: network.loss_and_gradients(images, labels, 1 / SAMPLES),
    }


def measure(comm, calls, values, unit, rounds):
    """A row for each way of carrying calls out: medians, over rounds, of the time of the slowest rank.

    With more ranks than cores some ranks compute while others wait for a core: only the last one's time tells.
    """
    target = np.empty_like(values)

    def call(way):
        calls[way](values, key=f"{values.size}", out=target)

    def seconds(work):
        comm.Barrier()
        began = perf_counter()
        work()
        return max(comm.allgather(perf_counter() - began))

    def both(way):
        request = calls[way].start(values, key=f"{values.size}", out=target)
        compute()
        request.wait()

    for way in calls:
        for _ in range(WARM_UPS):
            call(way)
    alone = min(seconds(lambda way=way: call(way)) for way in calls)
    one = min(seconds(unit) for _ in range(WARM_UPS + 1))
    times = comm.allreduce(max(1, round(LONGER * alone / one))) // comm.size

    def compute():
        for _ in range(times):
            unit()

    taken = {way: {"alone": [], "compute": [], "both": [], "wait": []} for way in calls}
    for number in range(rounds + 1):
        for way, each in taken.items():
            found = seconds(lambda way=way: call(way)), calls[way].stats.last.wait
            found = *found, seconds(compute), seconds(lambda way=way: both(way))
            if number:
                for name, value in zip(("alone", "wait", "compute", "both"), found, strict=True):
                    each[name].append(value)
    return [_row(comm, way, each) for way, each in taken.items()]


def _row(comm, way, taken):
    medians = {name: comm.allreduce(float(np.median(each))) / comm.size for name, each in taken.items()}
    hidden, waiting = medians["alone"] + medians["compute"] - medians["both"], medians["wait"]
    shares = {"hidden": hidden / medians["alone"], "hidden_waiting": None}
    if waiting > LEAST_WAITING * medians["alone"]:
        shares["hidden_waiting"] = max(0.0, min(hidden, waiting)) / waiting
    return {"how": way, **medians, **shares}


def _show(about, rows, output):
    """The table, and the plot."""
    from gqallreduce.cli import plots

    heads = "size", "scheme", "computes", "by", "alone", "waits", "computes alone", "both", "hidden", "of waiting"
    cells = []
    for row in rows:
        times = [seconds_text(row[name]) for name in ("alone", "wait", "compute", "both")]
        shares = ["-" if row[name] is None else f"{row[name]:.0%}" for name in ("hidden", "hidden_waiting")]
        cells.append([size_text(row["bytes"]), row["scheme"], row["computes"], row["how"], *times, *shares])
    print_plain(heads, cells, right=("size", *heads[4:]))
    print("written: " + ", ".join([f"{output}.jsonl", *plots.draw_overlap(about, rows, output)]))

"""The experiments of ISGQ: what methods lose of a gradient, training against bytes, and the time of calls.

A network is trained on images; each worker has its part of a mini-batch. Of all workers' messages the sum is what
Scheme.encode and Scheme.decode make of them, as in a call on the schedule `allgather`. Times are of calls under MPI on
layers of common sizes, in turn with the better dense sum: the median of the slowest rank.

Source: Abdi and Fekri, AAAI 2020, section on experiments; differs: a smaller network on smaller images.
"""

import sys
from time import perf_counter

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import dense, factors, isgq_results, machine
from gqallreduce.cli.report import Report, Silent
from gqallreduce.cli.training.data import VARIABLE, load_everywhere
from gqallreduce.cli.world import on_world

PARTS = "errors", "workers", "training", "layers", "times"
LAYERS = ((784, 1000), (1024, 1024), (4096, 1024), (4096, 4096))
SAMPLES = (8, 32, 128)  # of a rank
SCHEMES = ("isgq(bits=2, send=factors)", "isgq(bits=4, send=factors)", "qsgd(bits=4)")


def add_arguments(parser):
    """The options of bench/isgq.py."""
    data = f"folder of MNIST files (the one that {VARIABLE} names; without either, scikit-learn's digits)"
    parser.add_argument("--data", metavar="FOLDER", help=data)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(all)")
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="of a training (300)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="(0 1 2)")
    parser.add_argument("--rounds", type=int, default=9, metavar="ROUNDS", help="of which the median counts (9)")
    largest = "numbers of the largest gradient whose calls are timed (2^24)"
    parser.add_argument("--most", type=int, default=1 << 24, metavar="N", help=largest)
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/isgq)"
    parser.add_argument("--output", default="bench/results/isgq", metavar="NAME", help=files)


def run(arguments):
    """Measures on COMM_WORLD; 0 if all went well, 2 for wrong arguments, the same on all ranks."""
    return on_world("isgq", run_on, arguments)


def run_on(comm, arguments):
    """Measures, prints and writes on rank 0 of a communicator."""
    try:
        if min(arguments.steps, arguments.rounds, arguments.most, len(arguments.seeds)) < 1:
            raise ValueError("expected steps, rounds, seeds and numbers of 1 or more")
        data = load_everywhere(comm, arguments.data)
    except ValueError as problem:
        if comm.rank == 0:
            print(f"isgq: {problem}", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    description = machine.describe_job(comm, data=data.name)
    report.write("machine", description)
    rows = _measured(arguments, comm, data, report)
    if comm.rank == 0:
        for table in isgq_results.tables(rows):
            report.table(table)
        written = [f"{arguments.output}.jsonl", *isgq_results.draw(description, rows, arguments.output)]
        report.say("written: " + ", ".join(written))
    return 0


def _measured(arguments, comm, data, report):
    """kind -> rows of all parts that are wanted, written as they come; cases without MPI are shared out over ranks."""
    rows = {}

    def add(kind, row):
        rows.setdefault(kind, []).append(row)
        report.write(kind, row)

    cases = [case for part in PARTS[:-1] if part in arguments.parts for case in factors.cases(part, data, arguments)]
    layers = [(layer, samples) for layer in LAYERS for samples in SAMPLES if np.prod(layer) <= arguments.most]
    layers = layers if "times" in arguments.parts else []
    with report.progress(len(cases) + len(layers)) as progress:
        for begin in range(0, len(cases), comm.size):
            mine = cases[begin + comm.rank : begin + comm.rank + 1]
            progress.show(cases[begin][0])
            found = comm.allgather([pair for _, make, given in mine for pair in make(*given)])
            for kind, row in (pair for each in found for pair in each):
                add(kind, row)
            for _ in found:
                progress.step()
        for layer, samples in layers:
            progress.show(f"{layer[0]} x {layer[1]}, {samples} samples a rank")
            for row in measure(comm, layer, samples, arguments.rounds):
                add("time", row)
            progress.step()
    return rows


def measure(comm, layer, samples, rounds):
    """Seconds of calls, and of a product with MPI_Allreduce of the gradient; bytes that a rank sends; the error."""
    random = np.random.default_rng(comm.rank)
    x = np.maximum(random.standard_normal((samples, layer[0]), np.float32), 0)
    delta = random.standard_normal((samples, layer[1]), np.float32)
    y, given = np.empty(layer, np.float32), gq.Outer(x, delta)
    contenders, _ = dense.baselines(comm)
    work, calls = {}, {scheme: gq.Allreduce(scheme, comm=comm) for scheme in SCHEMES}
    for each in contenders:
        work[each.name] = (each.active, lambda each=each: (np.matmul(x.T, delta, out=y), each(y)))
    for scheme, call in calls.items():
        work[scheme] = (contenders[0].active, lambda call=call: call(given, key="w", out=y))
    times, errors = {name: [] for name in work}, {}
    exact = comm.allreduce(x.T @ delta)
    for number in range(rounds + 1):
        for name, (active, each) in work.items():
            with active():
                comm.Barrier()
                began = perf_counter()
                each()
                if number:
                    times[name].append(perf_counter() - began)
            errors[name] = float(np.sum((y - exact) ** 2) / np.sum(exact**2))
    slowest = {name: float(np.median(np.max(comm.allgather(each), axis=0))) for name, each in times.items()}
    best = min(slowest[each.name] for each in contenders)
    return [
        {
            "scheme": name, "layer": layer, "samples": samples, "seconds": slowest[name],
            "speedup": best / slowest[name], "error": errors[name], "bytes": y.nbytes,
            "sent": calls[name].stats.last.bytes_sent if name in calls else 2 * y.nbytes * (comm.size - 1) // comm.size,
        }
        for name in work
    ]  # fmt: skip

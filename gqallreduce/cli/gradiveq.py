"""The experiments of GradiVeQ: accuracy, what its bases lose of later gradients, and the time of its calls.

The convolutional network is trained by several schemes; with exact sums its gradients are recorded. What bases that
are learned from some of them lose of the next ones is found by the codec, on one rank. Times are of calls that sum
coefficients, of random gradients in the shapes of common layers, in turn with dense ones: the median of the slowest
rank.

Source: Yu et al., GradiVeQ, NeurIPS 2018, section 5; differs: a small network on small images, and a basis that is
fixed where the loss of the projection is measured.
"""

import sys
from time import sleep

import numpy as np
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import gradiveq_results, machine, projection
from gqallreduce.cli.measure import in_turn
from gqallreduce.cli.report import Report, Silent
from gqallreduce.cli.training.convnet import ConvNet
from gqallreduce.cli.training.convolutions import EXACT, Setting, shape_of, train
from gqallreduce.cli.training.data import VARIABLE, load_everywhere
from gqallreduce.coding.layout import Form
from gqallreduce.coding.slices import Slices

PARTS = "training", "projection", "times"
PUBLISHED = "order=hwdf, reuse=first, center=True, train_bits=4, "
PHASES = "warmup=100, train=100, compress=400"
SCHEMES = (
    EXACT,
    f"gradiveq({PHASES})",
    f"gradiveq({PUBLISHED}{PHASES})",
    "gradiveq(warmup=100, train=100, compress=0, drift=0.3)",
)
LAYER = "conv2.weight"
LENGTHS = (96, 144, 192, 256, 288, 320, 384, 432, 512, 576, 640, 720, 768, 864, 1024, 1152)
ORDERS = tuple((order, reuse) for order in ("hwdf", "filter") for reuse in ("first", "pooled"))
ENERGIES = (("hwdf", 768), ("filter", 288))  # order and K for which d follows from lam
START, TRAIN, AFTER = 200, 100, 400  # steps that are skipped; that make the basis; of which the loss is measured
TRAININGS = (5, 30, 100)
SHAPES = ((16, 16, 3, 3), (64, 64, 3, 3), (128, 128, 3, 3), (256, 256, 3, 3), (512, 512, 3, 3))


def add_arguments(parser):
    """The options of bench/gradiveq.py."""
    data = f"folder of MNIST files (the one that {VARIABLE} names; without either, scikit-learn's digits)"
    parser.add_argument("--data", metavar="FOLDER", help=data)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="(all)")
    parser.add_argument("--steps", type=int, default=Setting().steps, metavar="N", help="of a training (1300)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="(0 1 2)")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, metavar="K", help="of slices")
    parser.add_argument("--rounds", type=int, default=15, metavar="ROUNDS", help="of which the median counts (15)")
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/gradiveq)"
    parser.add_argument("--output", default="bench/results/gradiveq", metavar="NAME", help=files)


def run(arguments, comm):
    """Measures, prints and writes on rank 0; 0 if all went well, 2 for wrong arguments, the same on all ranks."""
    try:
        least = START + TRAIN + projection.WINDOW if "projection" in arguments.parts else 1
        if arguments.steps < least or arguments.rounds < 1 or min(arguments.lengths) < 8:
            raise ValueError(f"expected {least} steps, a round, slices of 8 values, or more of each")
        data = None if arguments.parts == ["times"] else load_everywhere(comm, arguments.data)
        if data:
            ConvNet(shape_of(data), data.classes, 0)  # an error comes before earlier results are overwritten
        report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
        description = machine.describe_job(comm, data=data.name if data else None)
        report.write("machine", description)
        rows = _measured(arguments, comm, data, report)
    except (ModuleNotFoundError, ValueError) as problem:
        if comm.rank == 0:
            print(f"gradiveq: {problem}", file=sys.stderr)
        return 2
    if comm.rank == 0:
        for table in gradiveq_results.tables(rows):
            report.table(table)
        written = [f"{arguments.output}.jsonl", *gradiveq_results.draw(description, rows, arguments.output)]
        report.say("written: " + ", ".join(written))
    return 0


def _measured(arguments, comm, data, report):
    """kind -> rows of all parts that are wanted, written as they come."""
    rows, setting, recorded = {}, Setting(arguments.steps), {}

    def add(kind, row):
        rows.setdefault(kind, []).append(row)
        report.write(kind, row)

    trainings = [(scheme, seed) for seed in arguments.seeds for scheme in SCHEMES]
    trainings = trainings if "training" in arguments.parts else trainings[: "projection" in arguments.parts]
    cases = _projections(arguments) if "projection" in arguments.parts else []
    sizes = sorted({min(2, comm.size), comm.size})
    times = [(size, shape) for size in sizes for shape in SHAPES] if "times" in arguments.parts else []
    with report.progress(len(trainings) + bool(cases) + len(times)) as progress:
        for scheme, seed in trainings:
            progress.show(f"training, {scheme}, seed {seed}")
            kept = recorded.setdefault(LAYER, []) if (scheme, seed) == trainings[0] else None
            add("training", train(comm, data, scheme, seed, setting, None if kept is None else recorded))
            progress.step()
        if cases:
            progress.show("losses of the projection")
            for kind, row in _in_turn(comm, cases, recorded[LAYER]):
                add(kind, row)
            progress.step()
        for size, shape in times:
            progress.show(f"calls of {size} ranks, {' x '.join(map(str, shape))}")
            add("time", measure(comm, size, shape, arguments.rounds))
            progress.step()
    return rows


def _projections(arguments):
    """(kind, function of projection.py, its arguments after the gradients)."""
    after = min(AFTER, arguments.steps - START - TRAIN)
    found = [
        ("loss", projection.against_length, (length, *way, TRAIN, after))
        for length in arguments.lengths
        for way in ORDERS
    ]
    found += [
        ("energy", projection.with_energy, (length, order, reuse, 0.01, TRAIN, after))
        for order, length in ENERGIES
        for reuse in ("first", "pooled")
    ]
    return found + [("ageing", projection.ageing, (288, trained)) for trained in TRAININGS]


def _in_turn(comm, cases, gradients):
    """[(kind, row)] of all cases, of which each rank does every P-th."""
    gradients, mine = gradients[START:], []
    for kind, function, given in cases[comm.rank :: comm.size]:
        later = gradients[TRAIN - given[-1] :] if kind == "ageing" else gradients  # all trainings end at one iteration
        mine.append((kind, function(later, *given)))
    found = comm.allgather(mine)
    return [found[number % comm.size][number // comm.size] for number in range(len(cases))]


def measure(comm, size, shape, rounds):
    """Seconds of calls on the first `size` ranks: dense, raw, and gradiveq with an eighth of K coefficients."""
    some = comm.Split(0 if comm.rank < size else MPI.UNDEFINED, comm.rank)
    row = None
    if some != MPI.COMM_NULL:
        row = _measure(some, shape, rounds)
        some.Free()
    done = comm.Ibarrier()
    while not done.Test():
        sleep(0.01)  # the ranks that measure may need this core
    return comm.bcast(row)


def _measure(comm, shape, rounds):
    gradient = np.random.default_rng(comm.rank).standard_normal(shape, np.float32)
    y = np.empty_like(gradient)
    codec = gq.Scheme.parse("gradiveq").codec
    length = Slices.of(codec, Form(shape, "C", "float32")).length
    scheme = f"gradiveq(d={length // 8}, warmup=0, train=1, compress=0)"
    with gq.Allreduce("raw", comm=comm) as raw, gq.Allreduce(scheme, comm=comm) as compressed:
        compressed(gradient, key="w", out=y)  # learns
        work = {
            "dense": lambda: comm.Allreduce(gradient, y),
            "raw": lambda: raw(gradient, key="w", out=y),
            "gradiveq": lambda: compressed(gradient, key="w", out=y),
        }
        found = in_turn(comm, work, rounds)
        sent = {kind: each.stats.last.bytes_sent for kind, each in (("raw", raw), ("gradiveq", compressed))}
    return {
        "ranks": comm.size, "shape": shape, "bytes": gradient.nbytes, "K": length, "d": length // 8, **found,
        "sent": sent["gradiveq"], "sent_exact": sent["raw"],
    }  # fmt: skip

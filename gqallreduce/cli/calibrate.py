"""`calibrate`: measures what the cost model must know of this machine, and keeps it as a profile for jobs like this.

Under mpirun or srun, with the ranks and hosts of the jobs that it is for. Measured are messages by size, within and
between hosts; MPI_Allreduce by size; the rates of all codecs against memcpy, with all ranks at work at once; small
calls on all schedules, from which the time of a call, a round and a message follow; and, with several hosts, two large
calls, from which follows the share of the possible overlap of transfer and arithmetic that is reached. At the end some
calls are predicted and measured.
"""

import dataclasses
import functools
import itertools
import sys

import numpy as np

import gqallreduce as gq
from gqallreduce import _kernels
from gqallreduce.cli import codecs_on_host, machine
from gqallreduce.cli.measure import in_turn, median
from gqallreduce.cli.report import Report, Silent, size_text
from gqallreduce.cli.tables import print_plain
from gqallreduce.cli.world import on_world
from gqallreduce.quantities import nbytes, seconds_text
from gqallreduce.scheduling import model, profile

LARGEST, MESSAGE_MOST, LEAST = "64MiB", 16 << 20, 4
CODED, REPETITIONS = 4 << 20, 6  # bytes, and times, by which codecs are measured
SMALL, ROUNDS = 1 << 12, 30  # bytes of small calls
OVERLAP_CALLS, OVERLAP_BYTES = ("direct/qsgd(bits=4)", "direct/onebit/ef"), 16 << 20  # by which overlap is measured
CHECKED = ("direct/onebit/ef", "direct/qsgd(bits=4)", "ring/raw"), (1 << 18, 1 << 22, 1 << 24)
USE = "mpirun -n 4 python -m gqallreduce calibrate"
SECONDS, MOST = 0.25, 40  # for one size of MPI's sums or of messages, and repetitions


def add_arguments(parser):
    """The options of `calibrate`."""
    largest = f"largest sum of MPI's ({LARGEST})"
    parser.add_argument("--max", type=nbytes, default=nbytes(LARGEST), metavar="SIZE", help=largest)
    parser.add_argument("--output", metavar="FILE", help="writes the profile there (where auto/ finds it)")


def run(arguments):
    """Measures, and writes the profile; the exit status."""
    return on_world("calibrate", run_on, arguments)


def run_on(comm, arguments):
    """On a communicator; the exit status, the same on all ranks."""
    if comm.size == 1:
        print(f"calibrate: got 1 rank, expected those of a job: {USE}", file=sys.stderr)
        return 2
    with gq.Allreduce("raw", comm=comm) as probe:
        link = probe.home.link
        topology, jobs = link.topology, link.jobs
    path, problem = arguments.output or jobs.path, None
    if comm.rank == 0:
        try:
            profile.require_writable(path)
        except OSError as found:
            problem = f"calibrate: the profile cannot be written: {found}"
            print(problem, file=sys.stderr)
    if comm.bcast(problem):
        return 2
    report = Report() if comm.rank == 0 else Silent()
    with report.progress(6) as progress:
        progress.show("messages")
        messages = measure_messages(comm, topology)
        progress.step()
        progress.show("MPI_Allreduce")
        dense = measure_dense(comm, arguments.max)
        progress.step()
        progress.show("codecs")
        copy, rates = measure_codecs(comm, topology)
        progress.step()
        progress.show("small calls")
        call, alpha, software = measure_small(comm, topology)
        progress.step()
        far, near = (slope(messages[where]) for where in ("between hosts", "within a host"))
        made = profile.Profile(
            call=call,
            alpha=alpha,
            software=software,
            beta=far / min(map(len, topology.groups)) or near,
            near=near,
            copy=copy,
            rates=rates,
            dense=dense,
            source="this machine, as measured now",
        )
        progress.show("overlap")
        made = dataclasses.replace(made, overlap=measure_overlap(comm, topology, made))
        progress.step()
        progress.show("what it predicts")
        checked = check(comm, topology, made, arguments.max)
        progress.step()
    if comm.rank == 0:
        _show(made, messages, checked, len(topology.groups))
        _write(made, jobs, {"machine": machine.describe(), "messages": messages}, arguments.output)
    return 0


def _write(made, jobs, more, output):
    try:
        print(f"written: {profile.save(made, jobs, more, output)}")
    except OSError as problem:
        raise OSError(f"calibrate: the profile cannot be written: {problem}") from None


# --- messages ---


def measure_messages(comm, topology):
    """where -> [(bytes, seconds)]: each rank sends one message, and receives one, within its host or between hosts."""
    groups = topology.groups
    host = next(number for number, ranks in enumerate(groups) if comm.rank in ranks)
    mine, fewest = groups[host], min(map(len, groups))
    place = mine.index(comm.rank)
    within = (mine[(place + 1) % len(mine)], mine[place - 1]) if len(mine) > 1 else None
    between = None
    if len(groups) > 1 and place < fewest:
        between = groups[(host + 1) % len(groups)][place], groups[host - 1][place]
    wanted = {"between hosts": (between, len(groups) > 1), "within a host": (within, max(map(len, groups)) > 1)}
    found = {}
    for where, (peers, any_at_all) in wanted.items():
        found[where] = [(size, _exchanged(comm, peers, size)) for size in sizes(MESSAGE_MOST)] if any_at_all else []
    return found


def _exchanged(comm, peers, size):
    given, taken = np.zeros(size, np.uint8), np.empty(size, np.uint8)

    def once():
        if peers is not None:
            comm.Sendrecv(given, peers[0], recvbuf=taken, source=peers[1])

    return repeated(comm, once)


def repeated(comm, work):
    """Median seconds of the slowest rank."""
    once = in_turn(comm, {"": work}, 1)[""]
    return in_turn(comm, {"": work}, max(3, min(MOST, int(SECONDS / max(once, 1e-9)))))[""]


def slope(rows):
    """Seconds per byte of large messages; 0 if there are none."""
    if not rows:
        return 0.0
    (small, before), (large, after) = rows[-2:]
    return max(after - before, 0.0) / (large - small)


def sizes(most):
    """4 bytes, and four times as much each time."""
    return [LEAST << shift for shift in range(0, 40, 2) if LEAST << shift <= most]


# --- sums, codecs, calls ---


def measure_dense(comm, most):
    """((bytes, seconds), ...) of MPI_Allreduce."""
    from mpi4py import MPI

    found = []
    for size in sizes(most):
        buffer = np.zeros(size // 4, np.float32)
        found.append((size, repeated(comm, lambda buffer=buffer: comm.Allreduce(MPI.IN_PLACE, buffer))))
        if found[-1][1] > 20 * SECONDS:
            break
    return tuple(found)


def measure_codecs(comm, topology):
    """(seconds per byte of memcpy, codec -> (encode, decode-and-add) as multiples of that).

    All ranks measure at the same time, each with all its threads: they share cores, caches and memory, as in a call.
    """
    found, how = {}, (CODED, _kernels.simd_level(), REPETITIONS, max(map(len, topology.groups)))
    for entry in gq.schemes():
        if entry.kind == "codec":
            comm.Barrier()
            (row,) = codecs_on_host.measure([entry.without_schedule], *how)
            # Means: where ranks share a core, most short repetitions run without interruption, and a median hides the
            # sharing. The first repetition is left out: it touches memory for the first time.
            times = [row.get(f"{each}_seconds", [0.0, 0.0]) for each in ("memcpy", *codecs_on_host.OPERATIONS)]
            found[entry.name] = np.mean(comm.allgather([np.mean(each[1:]) for each in times]), axis=0)
    copy = median([each[0] for each in found.values()])
    rates = {name: (float(encode / copy), float(decode / copy)) for name, (_, encode, decode) in found.items()}
    return copy / CODED, rates


def measure_small(comm, topology):
    """Seconds of a call, a round between hosts and a message, that fit small exact sums on all schedules best."""
    names = model.known(topology)
    objects = {name: gq.Allreduce(f"{name}/raw", comm=comm) for name in names}
    buffer = np.zeros(SMALL // 4, np.float32)
    found = in_turn(comm, {name: lambda each=each: each(buffer, key="w") for name, each in objects.items()}, ROUNDS)
    for each in objects.values():
        each.close()
    done = [model.work(name, topology) for name in names]
    terms = [(1.0, work.far_rounds, work.messages + work.rounds - work.far_rounds) for work in done]
    return comm.bcast(fit(np.array(terms), np.array([found[name] for name in names])))


def fit(terms, seconds):
    """Factors of the columns, none negative, whose sums are nearest to these seconds, relatively."""
    best, least = [0.0] * terms.shape[1], np.inf
    scaled = terms / seconds[:, None]
    for count in range(1, terms.shape[1] + 1):
        for columns in itertools.combinations(range(terms.shape[1]), count):
            some, *_ = np.linalg.lstsq(scaled[:, columns], np.ones(len(seconds)), rcond=None)
            error = np.square(scaled[:, columns] @ some - 1).sum()
            if (some >= 0).all() and error < least:
                least = error
                best = [float(some[columns.index(at)]) if at in columns else 0.0 for at in range(terms.shape[1])]
    return best


def measure_overlap(comm, topology, made):
    """The share of the possible overlap that two large calls reach, on average; 1 on one host, where there is none."""
    if len(topology.groups) == 1:
        return 1.0
    found = []
    for scheme in map(gq.Scheme.parse, OVERLAP_CALLS):
        (vector,) = model.summed(scheme.codec, topology.size, OVERLAP_BYTES // 4)
        costs = model.costs(scheme.schedule, vector, topology, made)
        found.append(costs.overlap(_seconds_of_call(comm, scheme, OVERLAP_BYTES)))
    return sum(found) / len(found)


def _seconds_of_call(comm, scheme, size):
    """Median seconds of the slowest rank, of a call on so many bytes."""
    buffer = np.random.default_rng(comm.rank).normal(size=size // 4).astype(np.float32)
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        return repeated(comm, functools.partial(allreduce, buffer, key="w", out=np.empty_like(buffer)))


def check(comm, topology, made, most):
    """[(scheme, bytes, predicted seconds, measured ones)] of some calls."""
    found = []
    for text, size in itertools.product(*CHECKED):
        if size > most:
            continue
        scheme = gq.Scheme.parse(text)
        measured = _seconds_of_call(comm, scheme, size)
        predicted = model.predict(scheme.schedule, scheme.codec, topology, size // 4, made)
        found.append((text, size, predicted, measured))
    return found


def _show(made, messages, checked, hosts):
    for where, rows in messages.items():
        if rows:
            cells = [(size_text(size), seconds_text(took), f"{1e-9 * size / took:.3g} GB/s") for size, took in rows]
            print_plain((f"message {where}", "time", "rate per rank"), cells, right=("time", "rate per rank"))
            print()
    cells = [(size_text(size), seconds_text(took)) for size, took in made.dense]
    print_plain(("MPI_Allreduce", "time"), cells, right=("time",))
    print()
    cells = [(name, *(f"{rate:.2f}" if rate else "-" for rate in rates)) for name, rates in made.rates.items()]
    print_plain(("codec, time / memcpy's", "encode", "decode and add"), cells, right=("encode", "decode and add"))
    print()
    small = {"a call": made.call, "a round between hosts": made.alpha, "a message": made.software}
    found = ", ".join(f"{seconds_text(value)} {name}" for name, value in small.items() if value)
    overlap = f"{made.overlap:.0%} of what is possible" if hosts > 1 else "none is possible on one host"
    print(
        f"{found}; memcpy at {1e-9 / made.copy:.3g} GB/s with all ranks at work; "
        f"threads of a rank: {_kernels.threads()}; overlap of transfer and arithmetic: {overlap}\n"
    )
    cells = [
        (text, size_text(size), seconds_text(predicted), seconds_text(measured), f"{predicted / measured:.2f}")
        for text, size, predicted, measured in checked
    ]
    print_plain(
        ("scheme", "size", "predicted", "measured", "predicted / measured"),
        cells,
        right=("size", "predicted", "measured", "predicted / measured"),
    )

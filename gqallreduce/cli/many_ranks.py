"""What messages cost with many ranks, beside the kernels.

Over MPI a scheme is measured in turn with the same messages alone: persistent requests of the same sizes from and to
the same ranks, round by round, started and waited for by one call of mpi4py each. In one process (`--in-process`) every
rank runs its own program, messages go through memory, and what is left without the kernels is the runtime's own time.
"""

import gc
import itertools
import sys
from time import perf_counter

import numpy as np

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.dense import DEFAULT, Dense
from gqallreduce.cli.measure import in_turn
from gqallreduce.cli.report import Report, Silent, size_text
from gqallreduce.cli.tables import print_plain
from gqallreduce.cli.world import are_schemes, on_world
from gqallreduce.quantities import seconds_text
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.instructions import Encode, Join, Post, Transmit
from gqallreduce.scheduling.schedule import Wire
from gqallreduce.scheme import AUTO, DENSE, MPI_SUM

SCHEMES = ("direct/onebit/ef", "direct/qsgd(bits=4)")
SIZES = (4 << 10, 1 << 20)


def add_arguments(parser):
    """The options of the benchmark."""
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, metavar="SCHEME", help="schemes to measure")
    parser.add_argument("--bytes", nargs="+", type=int, default=SIZES, metavar="N", help="of the buffer (4 KiB, 1 MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="of each scheme and size (5)")
    parser.add_argument("--in-process", nargs="+", type=int, metavar="P", help="all of so many ranks in one process")
    parser.add_argument("--link", help="what to call the link in the results")
    name = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/many_ranks)"
    parser.add_argument("--output", default="bench/results/many_ranks", metavar="NAME", help=name)


def run(arguments):
    """Runs the benchmark on COMM_WORLD; its exit status."""
    return on_world("many_ranks", run_on, arguments)


def run_on(comm, arguments):
    """Runs the benchmark on a communicator; the exit status, the same on all ranks."""
    if not are_schemes("many_ranks", comm, arguments.schemes):
        return 2
    for text in arguments.schemes:
        scheme = gq.Scheme.parse(text)
        if scheme.schedule in (AUTO, DENSE, MPI_SUM) or scheme.codec.indirect:
            if comm.rank == 0:
                why = "expected a schedule of this package, or none, and a codec that sums the buffer itself"
                print(f"many_ranks: got {text!r}, {why}", file=sys.stderr)
            return 2
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else Silent()
    about = machine.describe_job(comm, "memory of one process" if arguments.in_process else arguments.link)
    report.write("machine", about)
    counts, rows = arguments.in_process or [comm.size], []
    with report.progress(len(counts) * len(arguments.schemes) * len(arguments.bytes)) as progress:
        for ranks in counts:
            for scheme in arguments.schemes:
                for nbytes in arguments.bytes:
                    progress.show(f"{scheme}, {ranks} ranks, {size_text(nbytes)}")
                    if arguments.in_process:
                        row = in_process(scheme, ranks, nbytes, arguments.rounds)
                    else:
                        row = over_mpi(comm, scheme, nbytes, arguments.rounds)
                    rows.append({"scheme": scheme, "ranks": ranks, "bytes": nbytes, **row})
                    report.write("many_ranks", rows[-1])
                    progress.step()
    if comm.rank == 0:
        _show(about, rows, arguments.output)
    return 0


# --- over MPI ---


def over_mpi(comm, scheme, nbytes, rounds):
    """Of rank 0: messages of a call; seconds of the slowest rank for the call, its messages alone, and a dense sum."""
    given = np.random.default_rng(comm.rank).standard_normal(nbytes // 4).astype(np.float32)
    allreduce, target, dense = gq.Allreduce(scheme, comm=comm), np.empty_like(given), Dense(DEFAULT, comm)
    allreduce(given, key="w", out=target)
    alone = Messages(comm, allreduce.plans.last("w").plan)
    work = {
        "seconds": lambda: allreduce(given, key="w", out=target),
        "alone": alone,
        "dense": lambda: dense(np.copyto(target, given) or target),
    }
    found = in_turn(comm, work, rounds)
    alone.free()
    last = allreduce.stats.last
    kernels = max(comm.allgather(last.encode + last.decode))
    allreduce.close()
    return {**found, "kernels": kernels, "messages": last.messages}


class Messages:
    """The messages that a rank sends and receives in a call on a Plan, at their longest, without any codec.

    sent, bytes_sent
        of those that it sends.
    """

    def __init__(self, comm, plan):
        from mpi4py import MPI

        self._comm, self._waitall, self._startall = comm.Dup(), MPI.Prequest.Waitall, MPI.Prequest.Startall
        self._rounds, self.sent, self.bytes_sent = [], 0, 0
        wires = {each.slot: each.wires for each in plan.program if isinstance(each, (Post, Join))}
        wires |= {each.slot: (Wire(each.chunk, 0),) for each in plan.program if isinstance(each, Encode)}
        for found in plan.rounds:
            requests = []
            for lane in range(plan.lanes):
                for each in found:
                    if isinstance(each, Join):
                        continue
                    memory = np.zeros(plan.bound(lane, wires[each.slot]), np.uint8)
                    if isinstance(each, Transmit):
                        requests.append(self._comm.Send_init(memory, each.to, lane))
                        self.sent, self.bytes_sent = self.sent + 1, self.bytes_sent + memory.size
                    else:
                        requests.append(self._comm.Recv_init(memory, each.source, lane))
            self._rounds.append(requests)

    def __call__(self):
        for requests in self._rounds:
            self._startall(requests)
            self._waitall(requests)

    def free(self):
        """Frees requests and communicator; all ranks call it."""
        for request in itertools.chain(*self._rounds):
            request.Free()
        self._comm.Free()


# --- in one process ---


class _Timed(LocalAllreduce):
    """Notes what carrying a call out took, Plans made before and collections of garbage left out."""

    poll_every = 1.0  # a rank goes as far as it can
    carried = 0.0

    def carry_out(self, operations):
        collects = gc.isenabled()
        gc.disable()
        try:
            began = perf_counter()
            super().carry_out(operations)
            self.carried = perf_counter() - began
        finally:
            if collects:
                gc.enable()


def in_process(scheme, ranks, nbytes, rounds):
    """Of all ranks together: messages of a call; median seconds of carrying it out, of which in kernels; first call.

    The first call makes the Plans of all ranks. `memory`: bytes of messages and running values of the rank that needs
    the most; not there where Python carries calls out.
    """
    values = np.random.default_rng(0).standard_normal((ranks, nbytes // 4)).astype(np.float32)
    began, allreduce = perf_counter(), _Timed(scheme, ranks)
    taken = []
    for _ in range(rounds + 1):
        allreduce(list(values.copy()), key="w")
        kernels = sum(spent.encode + spent.decode for spent in allreduce.spent)
        taken.append((allreduce.carried, kernels, perf_counter() - began))
    seconds, kernels, _ = np.median(taken[1:], axis=0)
    messages = sum(spent.messages for spent in allreduce.spent)
    found = {"seconds": seconds, "kernels": kernels, "messages": messages, "first": taken[0][2]}
    if None not in (pools := [each.pool for each in allreduce.processors]):
        found["memory"] = max(each.nbytes for each in pools)
    return found


# --- what is shown ---


def _show(about, rows, output):
    """The table, and the plot."""
    from gqallreduce.cli import plots

    own = [(row["seconds"] - row["kernels"]) / max(row["messages"], 1) for row in rows]
    cells = [[row["scheme"], str(row["ranks"]), size_text(row["bytes"]), str(row["messages"])] for row in rows]
    heads = ["scheme", "ranks", "size", "messages", "a call", "kernels"]
    for cell, row, each in zip(cells, rows, own, strict=True):
        cell += [seconds_text(row["seconds"]), seconds_text(row["kernels"])]
        if "alone" in row:
            cell += [seconds_text(row["alone"]), f"{row['seconds'] / row['alone']:.2f}", seconds_text(row["dense"])]
        else:
            cell += [seconds_text(each), seconds_text(row["first"])]
        if "memory" in row:
            cell += [size_text(row["memory"]), f"{row['memory'] / row['bytes']:.0%}"]
    heads += ["messages alone", "times", "dense"] if "alone" in rows[0] else ["a message", "first call"]
    heads += ["memory of a rank", "of the vector"] * ("memory" in rows[0])
    print_plain(heads, cells, right=heads[1:])
    print("written: " + ", ".join([f"{output}.jsonl", *plots.draw_many_ranks(about, rows, output)]))

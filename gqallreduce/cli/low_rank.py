"""What calls of powersgd take, beside what they cannot do without: three products of matrices and two small sums.

The products are those of NumPy's BLAS, one after the other on arrays of the same shapes; the sums are two calls of
`raw` of as many numbers as P and Q have. All are measured in turn, in several rounds; the median of the slowest rank
counts.
"""

import sys

import numpy as np
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import machine
from gqallreduce.cli.measure import in_turn
from gqallreduce.cli.plots import figure, look_of, save
from gqallreduce.cli.report import Report
from gqallreduce.cli.tables import results

SIDES = (512, 1024, 2048, 4096)
RANKS = (1, 4, 16)
KINDS = {"plain": "", "feedback": "/ef"}
COLUMNS = "matrix", "rank", "call, ms", "/ef, ms", "products, ms", "sums, ms", "ratio", "ratio /ef", "sent, KiB"


def add_arguments(parser):
    """The options of bench/low_rank.py."""
    files = "writes NAME.jsonl, NAME.png and NAME.svg (bench/results/low_rank)"
    parser.add_argument("--sides", nargs="+", type=int, default=SIDES, metavar="N", help="of square matrices")
    parser.add_argument(
        "--ranks", nargs="+", type=int, default=RANKS, metavar="R", help="of the approximation (1 4 16)"
    )
    parser.add_argument("--rounds", type=int, default=9, metavar="ROUNDS", help="of which the median counts (9)")
    parser.add_argument("--output", default="bench/results/low_rank", metavar="NAME", help=files)


def run(arguments):
    """Measures, prints and writes on rank 0; 0 if all went well, 2 for wrong arguments."""
    comm = MPI.COMM_WORLD
    if min([*arguments.sides, *arguments.ranks, arguments.rounds]) < 1:
        print("low_rank: expected sides, ranks and rounds of 1 or more", file=sys.stderr)
        return 2
    report = Report(f"{arguments.output}.jsonl") if comm.rank == 0 else None
    description = machine.describe(P=comm.size, **machine.describe_mpi())
    rows = []
    if report is None:
        for side, rank in _cases(arguments):
            measure(comm, side, rank, arguments.rounds)
        return 0
    report.write("machine", description)
    cases = _cases(arguments)
    with report.progress(len(cases)) as progress:
        for side, rank in cases:
            progress.show(f"{side} x {side}, rank {rank}")
            rows.append(measure(comm, side, rank, arguments.rounds))
            report.write("low_rank", rows[-1])
            progress.step()
    report.table(table(rows, comm.size))
    written = [f"{arguments.output}.jsonl", *draw(description, rows, arguments.output)]
    report.say("written: " + ", ".join(written))
    return 0


def _cases(arguments):
    return [(side, rank) for rank in arguments.ranks for side in arguments.sides]


def measure(comm, side, rank, rounds):
    """Seconds of calls without and with feedback, of the products, of the sums; the bytes that a rank sends."""
    draws = np.random.default_rng(comm.rank)
    gradient = draws.standard_normal((side, side), np.float32)
    q = draws.standard_normal((side, rank), np.float32)
    p, y, thin = np.ascontiguousarray(gradient @ q), np.empty_like(gradient), np.zeros(side * rank, np.float32)
    calls = {kind: gq.Allreduce(f"powersgd(rank={rank}){suffix}", comm=comm) for kind, suffix in KINDS.items()}
    with gq.Allreduce("raw", comm=comm) as raw:
        work = {kind: lambda call=call: call(gradient, key="w", out=y) for kind, call in calls.items()}
        work["products"] = lambda: (gradient @ q, gradient.T @ p, np.matmul(p, q.T, out=y))
        work["sums"] = lambda: (raw(thin), raw(thin))
        found = in_turn(comm, work, rounds)
    sent = calls["plain"].stats.last.bytes_sent
    for call in calls.values():
        call.close()
    return {"side": side, "rank": rank, "bytes": 4 * side**2, "sent": sent, **found}


def ratio(row, kind):
    """A call's time over that of its products and sums."""
    return row[kind] / (row["products"] + row["sums"])


def table(rows, ranks):
    """A row for each size and rank."""
    title = f"powersgd on {ranks} rank{'s' * (ranks > 1)}; ratio: time of a call / time of products and sums"
    return results(title, COLUMNS, lines(rows))


def lines(rows):
    """The cells of the table, as text."""
    return [
        [
            f"{row['side']} x {row['side']}",
            f"{row['rank']}",
            *(f"{1e3 * row[kind]:.3g}" for kind in ("plain", "feedback", "products", "sums")),
            *(f"{ratio(row, kind):.2f}" for kind in KINDS),
            f"{row['sent'] / 1024:.0f}",
        ]
        for row in rows
    ]


def draw(description, rows, name):
    """Draws the ratios against the side of the matrix into name.png and name.svg; returns their paths."""
    drawing, axes = figure(1)
    number = 0
    for rank in dict.fromkeys(row["rank"] for row in rows):
        mine = [row for row in rows if row["rank"] == rank]
        for kind, suffix in KINDS.items():
            label = f"rank {rank}{suffix}"
            axes[0].plot(
                [row["side"] for row in mine], [ratio(row, kind) for row in mine], label=label, **look_of(number)
            )
            number += 1
    axes[0].axhline(1, color="gray", linewidth=0.8)
    axes[0].set(xscale="log", xlabel="rows and columns of the matrix", ylabel="time / that of products and sums")
    sides = sorted({row["side"] for row in rows})
    axes[0].set_xticks(sides, [str(side) for side in sides])
    axes[0].minorticks_off()
    axes[0].set_ylim(bottom=0)
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return save(drawing, "Calls of powersgd beside their products and sums", description, name)

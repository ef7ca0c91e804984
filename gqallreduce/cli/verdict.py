"""What the rows of the allreduce benchmark come to, in three lines of plain words."""

from gqallreduce.cli.measure import median
from gqallreduce.cli.plots import place
from gqallreduce.cli.report import size_text

SMALL = 0.5  # of the sum: the error up to which a scheme is named that does not make it good later


def lines(results):
    """Of (machine, "sum" rows) of each link: who wins there, and on the last one also who wins without feedback."""
    winners = [_winner(rows, "the fastest scheme") for _, rows in results]
    found = [f"{place(machine)}: {winner}" for (machine, _), winner in zip(results, winners, strict=True)]
    unbiased = [row for row in results[-1][1] if row["dense"] or ("qsgd" in row["scheme"] and row["error"] < SMALL)]
    if any(not row["dense"] for row in unbiased):
        winner = _winner(unbiased, "the fastest with a small error")
        found += [f"There, without feedback: {winner}"] if winner != winners[-1] else []
    return found


def _winner(rows, what):
    """The scheme that is fastest at the largest size, by how much, from which size on, and with which error."""
    largest = max((row["bytes"] for row in rows if not row["dense"]), default=0)
    if not largest:
        return "only MPI's own allreduce was measured."
    best = max((row for row in rows if row["bytes"] == largest and not row["dense"]), key=lambda row: row["speedup"])
    size = size_text(largest)
    if best["speedup"] <= 1:
        return f"MPI's own allreduce wins; {what} takes {1 / best['speedup']:.1f} times as long at {size}."
    since = size_text(_wins_from(rows, best["scheme"]))
    later = ", which is added to later sums" if best["scheme"].endswith("/ef") else ""
    return (
        f"{best['scheme']} is {best['speedup']:.1f} times as fast as the better dense allreduce at {size} "
        f"({1e3 * median(best['seconds']):.3g} ms) and faster from {since} on; "
        f"the error of a sum is {100 * best['error']:.2g} %{later}."
    )


def _wins_from(rows, scheme):
    """The smallest size from which on it was faster at all sizes."""
    found = None
    for row in sorted((row for row in rows if row["scheme"] == scheme), key=lambda row: -row["bytes"]):
        if row["speedup"] <= 1:
            break
        found = row["bytes"]
    return found

"""The table of a training: one row per scheme and optimizer, over its seeds."""

import numpy as np

from gqallreduce.cli import tables
from gqallreduce.cli.report import size_text
from gqallreduce.quantities import seconds_text


def by_way(rows):
    """(scheme, optimizer) -> its rows, in the order they came."""
    found = {}
    for row in rows:
        found.setdefault((row["scheme"], row["optimizer"]), []).append(row)
    return found


def spread(values, digits, scale=1.0):
    """Mean +- sample standard deviation; the value alone if there is one, `-` if there is none."""
    values = scale * np.array(values, float)
    if not values.size:
        return "-"
    text = f"{values.mean():.{digits}f}"
    return f"{text} +- {values.std(ddof=1):.{digits}f}" if values.size > 1 else text


def cells(rows, loss_at):
    """(column names, rows of text) of "run" rows."""
    target = f"{100 * rows[0]['target']:g} %"
    names = ["scheme", "optimizer", "accuracy %", *(f"loss at {step}" for step in loss_at)]
    names += ["sent/step", "with flush", "ratio", "compute", "communication", "of that wait", f"to {target}"]
    body = [_cells(way, found, loss_at) for way, found in by_way(rows).items()]
    if any(row.get("hidden") is not None for row in rows):
        names.append("hidden %")
        for cells, found in zip(body, by_way(rows).values(), strict=True):
            cells.append(spread([row["hidden"] for row in found if row["hidden"] is not None], 0, 100))
    return names, body


def _cells(way, rows, loss_at):
    well = [row for row in rows if row["diverged"] is None]
    accuracy = spread([row["accuracy"] for row in well], 2, 100)
    if len(well) < len(rows):
        steps = ", ".join(str(row["diverged"]) for row in rows if row["diverged"] is not None)
        accuracy = f"{len(rows) - len(well)} of {len(rows)} diverged after {steps} steps; {accuracy}"
    losses = [spread([row["loss_at"][str(s)] for row in rows if str(s) in row["loss_at"]], 3) for s in loss_at]
    mean = {name: np.mean([row[name] for row in rows]) for name in ("sent", "sent_with_flush", "ratio")}
    times = [seconds_text(np.mean([row[name] for row in rows])) for name in ("compute", "communication", "wait")]
    sent = [size_text(mean["sent"]), size_text(mean["sent_with_flush"]), f"{mean['ratio']:.2f}"]
    return [*way, accuracy, *losses, *sent, *times, _to_target(rows)]


def _to_target(rows):
    """Steps and seconds until the target was first seen; how many of the seeds saw it, if not all."""
    reached = [row for row in rows if row["target_step"] is not None]
    if not reached:
        return "not reached"
    steps = np.mean([row["target_step"] for row in reached])
    text = f"{steps:.0f} steps, {spread([row['target_seconds'] for row in reached], 1)} s"
    return text if len(reached) == len(rows) else f"{text} ({len(reached)} of {len(rows)})"


def table(rows, loss_at):
    """The rich table of "run" rows."""
    from rich import box
    from rich.table import Table

    names, body = cells(rows, loss_at)
    made = Table(header_style="", box=box.SIMPLE_HEAD)
    for number, name in enumerate(names):
        made.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for row in body:
        made.add_row(*row)
    return made


def markdown(rows, loss_at):
    """The same table as text for a page."""
    names, body = cells(rows, loss_at)
    return tables.markdown(names, body, right=names[2:])

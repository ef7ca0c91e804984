"""Whole allreduces in one process, and the sums that must come out."""

import re
from itertools import product

import ml_dtypes
import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import lanes, layout
from gqallreduce.coding.layout import columns
from gqallreduce.coding.order import to_array, to_vector
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.simulate import simulate
from gqallreduce.scheduling.topology import apart

DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LAYOUTS = ("C", "F", "C with gaps", "F with gaps")


def arrays(seed: int, ranks: int, shape, dtype="float32", order="C", kind="normal") -> list[np.ndarray]:
    """One array per rank."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(ranks):
        values = rng.standard_normal(shape)
        if kind == "wide":  # sixty powers of two, and sums of a few ranks below the end of float16
            values *= np.exp2(rng.integers(-49, 11, shape))
        made.append(placed(values, dtype, order))
    return made


def placed(values, dtype="float32", order="C") -> np.ndarray:
    """The values in an array of this memory layout."""
    values = np.asarray(values)
    if order[0] not in "CF":
        return to_array(to_vector(values, order).astype(DTYPES[dtype]), values.shape, order)
    if "gaps" not in order or values.ndim < 2 or 0 in values.shape:
        return np.array(values, DTYPES[dtype], order=order[0])
    padded = list(values.shape)
    padded[-1 if order[0] == "C" else 0] += 3
    room = np.zeros(padded, DTYPES[dtype], order=order[0])
    view = room[tuple(slice(0, extent) for extent in values.shape)]
    view[...] = values
    return view


def flat(array) -> np.ndarray:
    """float64, in memory order."""
    return to_vector(np.asarray(array).astype(np.float64), Buffer(array).order)


def residuals(local: LocalAllreduce, key="w") -> list[np.ndarray]:
    return [memory.residual(key).copy() if key in memory else np.zeros(0, np.float32) for memory in local.memory]


def copies(values) -> list[np.ndarray]:
    return [value.copy(order="K") for value in values]


def same_everywhere(results) -> None:
    """Promise 1."""
    first = np.ascontiguousarray(results[0]).tobytes()
    assert all(np.ascontiguousarray(each).tobytes() == first for each in results), "replicas differ"


def nothing_lost(local: LocalAllreduce, gradients, before, results, key="w") -> None:
    """Promise 2: result + new residuals == gradients + old residuals, to 1e-6 of the run's largest."""
    after = residuals(local, key)
    size = gradients[0].size
    before = [each if each.size else np.zeros(size, np.float32) for each in before]
    assert all(np.isfinite(each).all() for each in after)
    moved = flat(results[0]) * (local.size if local.average else 1) + sum(each.astype(float) for each in after)
    given = sum(map(flat, gradients)) + sum(each.astype(float) for each in before)
    scale = sum(np.abs(flat(each)) for each in gradients) + sum(np.abs(each.astype(float)) for each in before + after)
    form = Buffer(gradients[0])
    grid = local.scheme.codec.bind(form.form).runs(columns(form.shape, form.order))
    unit = grid.unit(np.arange(size))
    largest = np.zeros(grid.count(0, size))
    np.maximum.at(largest, unit, scale)
    allowed = 1e-6 * max(1, local.size / 8) * largest[unit]
    assert (np.abs(moved - given) <= allowed).all(), f"lost {np.abs(moved - given).max()}"


def in_printed_order(schedule: str, values: list[np.ndarray]) -> np.ndarray:
    """The exact sum as `simulate` prints its order, chunk by chunk; `values` are vectors of one dtype."""
    outcome = simulate(SCHEDULES[schedule], apart(len(values)))
    chunks = SCHEDULES[schedule].chunks(apart(len(values)))
    total = np.empty_like(values[0])
    itemsize = total.itemsize
    cut = lanes.pieces(
        total.size, chunks, layout.Grid(1), lambda regions: itemsize * sum(region.size for region in regions)
    )
    for lane, chunk in product(range(len(cut)), range(chunks)):
        piece = cut[lane][chunk]
        order = re.sub(r"\d+", lambda rank: f"v[{rank[0]}]", outcome.symbols.order(outcome.values[0][chunk]))
        total[piece.start : piece.stop] = eval(order, {"v": [each[piece.start : piece.stop] for each in values]})
    return total

"""The schedule `mpi`: the ranks' integers are added by MPI's own allreduce, in place of a program's messages.

What a rank's own values become, and what sums become, is done as in a program; the pieces are those of `allgather`,
which every rank finishes too.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce.coding.layout import Chunk
from gqallreduce.runtime.operation import Operation
from gqallreduce.transport.dense import Summing
from gqallreduce.transport.exchange import NOT_FINITE, Gather

PIECES_OF = "allgather"
_NONE = -1, -1


def integer_type(most: int) -> np.dtype:
    """The narrowest that holds sums from -most to most."""
    return next(np.dtype(name) for name in ("int8", "int16", "int32") if most <= np.iinfo(name).max)


def add_by_mpi(call, operation: Operation):
    """Stages: all integers of the call in one vector, and one more number, which counts ranks with a flaw."""
    chunks = [((lane, 0), chunk) for lane, (chunk,) in enumerate(operation.plan.pieces)]
    size = sum(extent.size for _, chunk in chunks for extent in chunk.extents)
    dtype = integer_type(operation.codec.terms)
    lent = operation.workspace.take((size + 1) * dtype.itemsize)  # after an error MPI may still write to it
    numbers = lent[: (size + 1) * dtype.itemsize].view(dtype)
    began = perf_counter()
    _own(operation, chunks, numbers)
    operation.spent.encode += perf_counter() - began
    if operation.plan.size > 1:
        yield Summing(call.link, call.number, numbers)
        operation.spent.bytes_sent += numbers.nbytes
        operation.spent.bytes_received += numbers.nbytes
    if numbers[-1]:
        yield from _name(operation)
    else:
        began = perf_counter()
        _finish(operation, chunks, numbers)
        operation.spent.decode += perf_counter() - began
    operation.workspace.give(lent)


def _extents(operation: Operation, chunks):
    """(place, extent, its running values) of all."""
    for place, chunk in chunks:
        running = operation.room(place, chunk)
        for extent in chunk.extents:
            yield place, extent, Chunk.part(running, extent)


def _own(operation: Operation, chunks, numbers) -> None:
    """numbers := the integers of this rank's own values, unless one is not finite."""
    at = 0
    for place, extent, y in _extents(operation, chunks):
        flawed, residual = operation.begin_sum(extent, y)
        if flawed:
            operation.flaws.find(place, extent, y, residual, own=True, formed=True)
            numbers[at : at + extent.size] = 0
        else:
            numbers[at : at + extent.size] = y
        at += extent.size
    numbers[-1] = bool(operation.flaws)


def _finish(operation: Operation, chunks, numbers) -> None:
    """The sums become the result."""
    at = 0
    for place, extent, y in _extents(operation, chunks):
        y[:] = numbers[at : at + extent.size]
        at += extent.size
        if operation.finish(place, extent, y):
            operation.flaws.find_overflow(place, extent, y)


def _name(operation: Operation):
    """The flaw of the lowest rank, on all ranks."""
    plan, place = operation.plan, (0, 0)
    mine = np.array(operation.flaws.first or _NONE, np.int64)
    everyone = [mine]
    if plan.size > 1:
        asked = Gather(plan.rank, plan.size, NOT_FINITE, mine, operation.signature)
        yield asked
        everyone = asked.found
    operation.flaws.clear()
    operation.flaws.note(place, min(tuple(each.tolist()) for each in everyone if tuple(each.tolist()) != _NONE))

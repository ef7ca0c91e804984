"""The dense allreduce: MPI's own, as a stage of a call.

It begins only when all ranks have compared their calls (agreement.py): some MPIs write past the end of a buffer if
another rank's is larger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import arithmetic, frame
from gqallreduce.coding.message import Collective
from gqallreduce.transport.call import Call, OneLane
from gqallreduce.transport.exchange import NOT_FINITE, Gather
from gqallreduce.transport.link import Link

_TYPES = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "int16": MPI.INT16_T,
    "int32": MPI.INT32_T,
}
_ALL_FINITE = -1


class Dense(NamedTuple):
    """Where and how a dense call runs.

    workspace
        lends the vector that MPI sums. It is never the caller's memory: MPI cannot take back a collective operation
        that was given up, and would write to it later.
    """

    link: Link
    call: Call
    workspace: Workspace
    signature: int
    average: bool


class Summing(OneLane):
    """A stage: sums a vector in place over all ranks by MPI_Iallreduce, cut below MPI's int limit.

    MPI wants collective operations in the same order on all ranks. So it waits until each call before is done, or has
    begun something else: calls agree in any order, but are summed in that of their start.
    """

    def __init__(self, link: Link, call: Call, values: np.ndarray):
        self._link, self._call, self._values = link, call, values
        self._most = max(1, link.requests.longest(link.rank) // values.itemsize)
        self._at, self.finished = 0, False
        self._under_way: Collective | None = None

    def can_advance(self) -> bool:
        if self._under_way is not None and not self._under_way.ready:
            return False
        before = (each for each in self._link.progress.calls if each.number < self._call.number)
        return all(each.data is not None for each in before)

    def advance(self, messages) -> None:
        """The next part, once the one before is summed."""
        part = self._values[self._at : self._at + self._most]
        self.finished = not len(part)
        if self.finished:
            return
        self._at += len(part)
        self._under_way = Collective(tuple(self._link.others), part)
        messages.start(self._under_way, self._link.comm.Iallreduce, MPI.IN_PLACE, [part, _TYPES[part.dtype.name]])


def dense_on(processor, call, source, target, residual, new_residual, spent):
    """`dense_sum` of buffers in any memory: MPI adds in the host's."""
    if source.located is None:
        return (yield from dense_sum(call, source, target, residual, new_residual, spent))
    here, result = source.copied_to_host(processor), target.copied_to_host(processor)
    mine = None if residual is None else processor.on_host(residual)
    lost = None if new_residual is None else np.empty_like(mine)
    flaw = yield from dense_sum(call, here, result, mine, lost, spent)
    with processor.active(source.located, None):
        target.copy_from_host(processor, result)
        if new_residual is not None:
            processor.arithmetic.copy(new_residual, processor.adopt(lost))
        processor.finish()
    return flaw


def dense_sum(call, source, target, residual, new_residual, spent):
    """target := sum (or average) of source + residual; new_residual := 0, or what rounding to 16 bits loses.

    A generator of stages. call: a Dense, where and how. Returns None, or (rank, C-order index) of a value that is not
    finite: only then a small exchange asks for it.
    """
    link, spent.dense = call.link, True
    short = source.dtype in ("float16", "bfloat16")
    dtype = np.dtype(np.float64 if source.dtype == "float64" else np.float32)
    lent = call.workspace.take(source.size * dtype.itemsize)  # after an error it is not given back
    values = lent[: source.size * dtype.itemsize].view(dtype)
    _load(source, residual, values)
    if link.size > 1:
        yield Summing(link, call.call, values)
        spent.bytes_sent += values.nbytes
        spent.bytes_received += values.nbytes
    exact = values.copy() if short and new_residual is not None else None
    flawed = arithmetic.scale(values, 1.0 / link.size) if call.average else arithmetic.not_finite(values)
    first = _first_flaw(source, residual, np.empty_like(values)) if flawed else None
    if short:
        flawed = target.store(0, source.size, values) or flawed
    else:
        target.put(0, values)
    flaw = None
    if flawed:
        flaw = yield from _name(call, first, source, values)
    call.workspace.give(lent)
    if flaw is None and new_residual is not None:
        new_residual[:] = 0
        if short:
            _keep_rounding(link, target, exact, new_residual, call.average)
    return flaw


def _load(source, residual, values) -> None:
    """values := source + residual."""
    x = source.flat
    if residual is not None and x is not None and x.dtype == np.float32:
        arithmetic.add_finite(x, residual, values)
        return
    source.load(0, source.size, values)
    if residual is not None:
        values += residual


def _first_flaw(source, residual, values) -> int | None:
    """The C-order index of this rank's own first value that is not finite; `values` is scratch."""
    _load(source, residual, values)
    bad = np.flatnonzero(~np.isfinite(values))
    return source.c_index(bad) if len(bad) else None


def _name(call: Dense, first: int | None, source, values):
    """The lowest rank whose own values were not finite; NO_RANK with the sum's index if it overflowed."""
    mine = np.array([_ALL_FINITE if first is None else first], np.int64)
    asked = Gather(call.link.rank, call.link.size, NOT_FINITE, mine, call.signature)
    yield asked
    everyone = asked.found[:, 0]
    ranks = np.flatnonzero(everyone != _ALL_FINITE)
    if len(ranks):
        return int(ranks[0]), int(everyone[ranks[0]])
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):  # finite in float32, not in the buffer's 16 bits
        bad = np.argmax(np.abs(values), keepdims=True)
    return frame.NO_RANK, source.c_index(bad)


def _keep_rounding(link, target, exact, new_residual, average: bool) -> None:
    """Every rank holds the sum; rank r's residual gets the r-th of P slices of what the 16-bit result lost."""
    begin, stop = link.rank * len(exact) // link.size, (link.rank + 1) * len(exact) // link.size
    kept = np.empty(stop - begin, np.float32)
    target.load(begin, stop, kept)
    if average:
        kept *= np.float32(link.size)
    np.subtract(exact[begin:stop], kept, out=new_residual[begin:stop])

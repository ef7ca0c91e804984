"""The dense allreduce that `auto/` falls back to: MPI's own, polled so that the timeout holds."""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np
from mpi4py import MPI

from gqallreduce import frame
from gqallreduce.engine import message_most
from gqallreduce.errors import MismatchError
from gqallreduce.link import wait
from gqallreduce.stats import Spent

_TYPES = {"float32": MPI.FLOAT, "float64": MPI.DOUBLE}
_INNOCENT, _INVALID = -1, -2


def dense_on(processor, link, source, target, owed, owing, allreduce, spent):
    """`dense_sum` of buffers in any memory: MPI adds in the host's."""
    if source.located is None:
        return dense_sum(link, source, target, owed, owing, allreduce, spent)
    here, result = source.copied_to_host(processor), target.copied_to_host(processor)
    mine = None if owed is None else processor.on_host(owed)
    lost = None if owing is None else np.empty_like(mine)
    flaw = dense_sum(link, here, result, mine, lost, allreduce, spent)
    target.copy_from_host(processor, result)
    if owing is not None:
        processor.arithmetic.copy(owing, processor.adopt(lost))
    processor.finish()
    return flaw


def dense_sum(link, source, target, owed, owing, allreduce, spent):
    """target := sum (or average) of source + owed over ranks; owing := 0, or what rounding to 16 bits loses.

    Returns None, or (rank, C-order index) of a value that is not finite: only then a small collective asks for it.
    """
    spent.dense = True
    short = source.dtype in ("float16", "bfloat16")
    dtype = np.dtype(np.float64 if source.dtype == "float64" else np.float32)
    in_place = target.flat is not None
    values = target.flat if in_place else np.empty(source.size, dtype)
    source.load(0, source.size, values)
    if owed is not None:
        values += owed
    first = _first_flaw(source, values)
    _sum(link, values, allreduce.timeout, spent)
    exact = values.copy() if short and owing is not None else None
    if allreduce.average:
        values *= dtype.type(1.0 / link.size)
    flawed = not np.isfinite(values).all() if in_place else target.store(0, source.size, values)
    if flawed:
        return _name(link, first, source, values, allreduce.timeout)
    if owing is not None:
        owing[:] = 0
        if short:
            _owe_rounding(link, target, exact, owing, allreduce.average)
    return None


def dense_invalid(link, place, timeout: float) -> None:
    """Take part in a call for which this rank's own arguments are invalid: NaN makes the others ask who is to blame."""
    _, shape, _, dtype = place
    values = np.full(math.prod(shape), np.nan, np.float64 if dtype == "float64" else np.float32)
    if values.size:
        _sum(link, values, timeout, Spent())
        _blamed(link, _INVALID, timeout)


def _sum(link, values, timeout: float, spent) -> None:
    """MPI_Allreduce in place, cut below MPI's int limit."""
    if link.size == 1:
        return
    most = max(1, message_most() // values.itemsize)
    began = perf_counter()
    for start in range(0, values.size, most):
        part = values[start : start + most]
        wait(link.comm.Iallreduce(MPI.IN_PLACE, [part, _TYPES[values.dtype.name]]), timeout, link)
    spent.wait += perf_counter() - began
    spent.bytes_sent += values.nbytes
    spent.bytes_received += values.nbytes


def _first_flaw(source, values) -> int | None:
    bad = np.flatnonzero(~np.isfinite(values))
    return source.c_index(bad) if len(bad) else None


def _name(link, first: int | None, source, values, timeout: float) -> tuple[int, int]:
    """The lowest rank whose own values were not finite; NO_RANK with the sum's index if it overflowed."""
    everyone = _blamed(link, _INNOCENT if first is None else first, timeout)
    invalid = np.flatnonzero(everyone == _INVALID)
    if len(invalid):
        raise MismatchError("arguments", invalid.tolist(), "their own call was invalid")
    guilty = np.flatnonzero(everyone >= 0)
    if len(guilty):
        return int(guilty[0]), int(everyone[guilty[0]])
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):  # finite in float32, not in the buffer's 16 bits
        bad = np.argmax(np.abs(values), keepdims=True)
    return frame.NO_RANK, source.c_index(bad)


def _blamed(link, mine: int, timeout: float) -> np.ndarray:
    """Per rank: the C-order index of its first value that is not finite, _INNOCENT or _INVALID."""
    everyone = np.zeros(link.size, np.int64)
    sent = np.array([mine], np.int64)
    wait(link.comm.Iallgather([sent, MPI.INT64_T], [everyone, MPI.INT64_T]), timeout, link)
    return everyone


def _owe_rounding(link, target, exact, owing, average: bool) -> None:
    """Every rank holds the sum; rank r owes the r-th of P slices of what the 16-bit result lost."""
    begin, stop = link.rank * len(exact) // link.size, (link.rank + 1) * len(exact) // link.size
    kept = np.empty(stop - begin, np.float32)
    target.load(begin, stop, kept)
    if average:
        kept *= np.float32(link.size)
    np.subtract(exact[begin:stop], kept, out=owing[begin:stop])

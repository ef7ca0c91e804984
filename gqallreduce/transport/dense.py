"""The dense allreduce: MPI's own, as a stage of a call.

It begins only when all ranks have compared their calls (agreement.py): some MPIs write past the end of a buffer if
another rank's is larger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gqallreduce import _kernels
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import arithmetic, frame
from gqallreduce.coding.message import Collective
from gqallreduce.transport.call import OneLane
from gqallreduce.transport.exchange import NOT_FINITE, Gather
from gqallreduce.transport.link import Link

_TYPES = {
    np.dtype(np.float32): MPI.FLOAT,
    np.dtype(np.float64): MPI.DOUBLE,
    np.dtype(np.int8): MPI.INT8_T,
    np.dtype(np.int16): MPI.INT16_T,
    np.dtype(np.int32): MPI.INT32_T,
}
_ALL_FINITE = -1
_BLOCK = 1 << 16


class Dense(NamedTuple):
    """Where and how a dense call runs.

    number
        of the call on the Link.
    workspace
        lends the vector that MPI sums. It is never the caller's memory: MPI cannot take back a collective operation
        that was given up. It would write to it later, or read other values for a sum that other ranks still get.
    """

    link: Link
    number: int
    workspace: Workspace
    signature: int
    average: bool


class Summing(OneLane):
    """A stage: sums a vector in place over all ranks by MPI_Iallreduce, cut below MPI's int limit.

    MPI wants collective operations in the same order on all ranks. So it waits until each call before is done, or has
    begun something else: calls agree in any order, but are summed in that of their start. The runtime in C++ sums
    where there is nothing to wait for first.
    """

    def __init__(self, link: Link, number: int, values: np.ndarray):
        """number: of the call."""
        self._link, self._number, self._values = link, number, values
        self._most = max(1, link.requests.limit(link.rank) // values.itemsize)
        self._at, self.finished = 0, False
        self._under_way: Collective | None = None

    def native(self) -> _kernels.NativeSum | None:
        transport = self._link.requests.native
        if transport is None or not transport.sums or not len(self._values) or not self.can_advance():
            return None
        return _kernels.NativeSum(self._values, MPI._handleof(_TYPES[self._values.dtype]), self._most)

    def account(self, _: _kernels.NativeSum) -> None:
        """The runtime in C++ is done with it."""

    def can_advance(self) -> bool:
        if self._under_way is not None and not self._under_way.ready:
            return False
        before = (each for each in self._link.progress.calls if each.number < self._number)
        return all(each.data is not None for each in before)

    def advance(self, messages) -> None:
        """The next part, once the one before is summed."""
        part = self._values[self._at : self._at + self._most]
        self.finished = not len(part)
        if self.finished:
            return
        self._at += len(part)
        self._under_way = Collective(tuple(self._link.others), part)
        messages.start(self._under_way, self._link.comm.Iallreduce, MPI.IN_PLACE, [part, _TYPES[part.dtype]])


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
    """A generator of stages: `DenseSum`. Returns None, or (rank, C-order index) of a value that is not finite: only
    then a small exchange asks for it.
    """
    found = DenseSum(call, source, target, residual, new_residual, spent)
    found.load()
    if call.link.size > 1:
        yield found.summing()
    return (yield from found.name_flaw()) if found.store() else None


class DenseSum:
    """target := sum (or average) of source + residual; new_residual := 0, or what rounding to 16 bits loses.

    First `load`, then the stage that `summing` gives, with several ranks; then `store`.
    call
        a Dense, where and how.
    """

    def __init__(self, call: Dense, source, target, residual, new_residual, spent):
        self._call, self._source, self._target, self._spent = call, source, target, spent
        self._residual, self._new_residual = residual, new_residual
        self._short, self._first = source.dtype in ("float16", "bfloat16"), None
        spent.dense = True

    def load(self) -> None:
        """values := source + residual."""
        source = self._source
        dtype = np.dtype(np.float64 if source.dtype == "float64" else np.float32)
        nbytes = source.size * dtype.itemsize
        self._lent = self._call.workspace.take(nbytes)  # after an error it is not given back
        self.values = self._lent[:nbytes].view(dtype)
        _load(source, self._residual, self.values)

    def summing(self) -> Summing:
        """What sums the values over all ranks."""
        self._spent.bytes_sent += self.values.nbytes
        self._spent.bytes_received += self.values.nbytes
        return Summing(self._call.link, self._call.number, self.values)

    def store(self) -> bool:
        """The values are summed: write them. True if one is not finite: then `name_flaw` must follow."""
        flawed = self._store_rounded() if self._short else self._store_as_they_are()
        if flawed:
            return True
        self._call.workspace.give(self._lent)
        if self._new_residual is not None and not self._short:
            self._new_residual[:] = 0
        return False

    def _store_as_they_are(self) -> bool:
        """Block by block, each checked while it is in cache."""
        values, target = self.values, self._target.flat
        for begin in range(0, len(values), _BLOCK):
            part = values[begin : begin + _BLOCK]
            if self._scaled(part):
                self._find_flaw(begin)
                return True
            if target is None:
                self._target.put(begin, part)
            else:
                arithmetic.copy(target[begin : begin + len(part)], part)
        return False

    def _store_rounded(self) -> bool:
        """To 16 bits; what that loses stays in the residual."""
        call, values, target, new_residual = self._call, self.values, self._target, self._new_residual
        exact = values.copy() if new_residual is not None else None
        flawed = self._scaled(values)
        if flawed:
            self._find_flaw(0)
        if target.store(0, target.size, values) or flawed:
            return True
        if new_residual is not None:
            new_residual[:] = 0
            _keep_rounding(call.link, target, exact, new_residual, call.average)
        return False

    def _scaled(self, values) -> bool:
        """Average them, if the call does; is one not finite?"""
        if self._call.average:
            return arithmetic.scale(values, 1.0 / self._call.link.size)
        return arithmetic.not_finite(values)

    def _find_flaw(self, begin: int) -> None:
        """Which of this rank's own values is not finite, if one is. Before `begin` none is, since the sums there are
        finite; an in-place call has replaced them."""
        values = np.empty_like(self.values)
        _load(self._source, self._residual, values)
        bad = begin + np.flatnonzero(~np.isfinite(values[begin:]))
        self._first = self._source.c_index(bad) if len(bad) else None

    def name_flaw(self):
        """Stages; (rank, C-order index) of the first value of any rank that is not finite."""
        flaw = yield from _name(self._call, self._first, self._source, self.values)
        self._call.workspace.give(self._lent)
        return flaw


def _load(source, residual, values) -> None:
    """values := source + residual."""
    x = source.flat
    if x is not None and x.dtype == values.dtype and (residual is None or x.dtype == np.float32):
        if residual is None:
            arithmetic.copy(values, x)
        else:
            arithmetic.add_finite(x, residual, values)
        return
    source.load(0, source.size, values)
    if residual is not None:
        values += residual


def _name(call: Dense, first: int | None, source, values):
    """The lowest rank whose own values were not finite; NO_RANK with the sum's index if it overflowed."""
    mine = np.array([_ALL_FINITE if first is None else first], np.int64)
    everyone = mine
    if call.link.size > 1:
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

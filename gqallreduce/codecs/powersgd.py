"""A matrix as the product of two thin ones, which are summed in its place, one after the other.

Wire: that of the codec `inner`, of P, then of Q, each rank by rank; of buffers that are sent whole, of their values as
float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.codec import Codec, integer, register
from gqallreduce.coding.indirect import LARGEST_PROJECTED, Indirect, Own, Sum, Whole
from gqallreduce.coding.inner import CompositeCodec, inner_codec
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.order import axes
from gqallreduce.coding.preparing import mark_of
from gqallreduce.coding.products import multiplier
from gqallreduce.coding.text import codec_of, resolved


@register
class PowerSGD(CompositeCodec):
    """A low-rank approximation of the sum of matrices, by one step of power iteration from that of the call before.

    rank
        of the approximation, 1 or more.
    inner
        how P and Q are encoded: raw, float16, bfloat16, or a level codec with its options that does not learn, as in
        inner=qsgd(bits=8).
    A buffer is a matrix of m rows and n columns: of its slowest axis in memory and the others, or of its fastest, where
    m + n is less; so of the filters of a convolution, in both usual orders. Where rank (m + n) >= m n, as in a vector,
    it is sent whole, as float32. Of a key the Q of a call begins the next.
    Error: of a rank's own matrix v at most |v|; 0 for a sum of matrices whose rank together is at most `rank`. Use it
    with /ef: what the approximation leaves out waits in the residual, and residuals and result add up exactly, but for
    rounding to float32.
    With /ef values above 2^100 are refused (NonFiniteError, rank None).
    Cost: 4 rank (m + n) bytes with inner=raw, in two sums one after the other; each value is read four times and
    written three times, with 6 rank operations.
    Source: Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS 2019, algorithms 1 and 2; differs: a start at random is
    uniform; a rank's residual is v - P Q^T of its own Q, whose sum over ranks is that of the published ones, and Q is
    scaled by a power of two between calls, which changes no direction; a column that comes out as zeros starts anew; P
    and Q may be quantized, P Q^T then stands for the quantized Q.
    """

    rank: int = 4
    inner: str = "raw"

    name = "powersgd"
    source = "Vogels et al., PowerSGD, NeurIPS 2019"
    example = "direct/powersgd(rank=4)/ef"
    learns = True
    host_only = indirect = True
    omega = 1.0

    def __post_init__(self):
        integer(self, "rank", 1, 2**31 - 1)
        object.__setattr__(self, "inner", resolved(inner_codec(self, "inner")))

    @property
    def inner_texts(self) -> tuple[str, ...]:
        return (self.inner,)

    @property
    def factor_codec(self) -> Codec:
        """That of P and Q."""
        return self.inner_codecs[0]

    @property
    def linear(self) -> bool:
        return self.inner == "raw"

    @property
    def fixed_size(self) -> bool:
        return self.factor_codec.fixed_size

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> Indirect:
        rows, columns = matrix_of(form)
        if self.rank * (rows + columns) >= rows * columns:
            return Whole(form.size, codec_of("raw"))
        return LowRank(rows, columns, self.rank, self.factor_codec)

    def relearned(self, learned: dict, form: Form) -> dict:
        calls, q = learned["calls"], np.array(learned["q"], np.float32)
        size = getattr(self.bind(form), "q_size", 0)
        if isinstance(calls, (bool, np.bool_)) or not isinstance(calls, (int, np.integer)) or not 1 <= calls < 2**63:
            raise ValueError(f"got calls={calls!r}, expected an integer of 1 or more")
        if q.shape != (size,) or not np.isfinite(q).all():
            raise ValueError(f"got a factor of shape {q.shape}, expected {size} finite numbers")
        return {"calls": int(calls), "q": q}


def matrix_of(form: Form) -> tuple[int, int]:
    """(rows, columns) of a buffer in memory order: the slowest axis and the others, or these and the fastest.

    That of the two whose sum is less. Axes of extent 1 do not count.
    """
    extents = [form.shape[axis] for axis in axes(len(form.shape), form.order)]
    extents = [extent for extent in extents if extent != 1]
    if len(extents) < 2:
        return 1, form.size
    slowest, fastest = extents[0], extents[-1]
    return min((slowest, math.prod(extents[1:])), (math.prod(extents[:-1]), fastest), key=sum)


@dataclass(frozen=True)
class LowRank(Indirect):
    """P has rows x rank numbers, Q columns x rank; both lie rank by rank."""

    rows: int
    columns: int
    rank: int
    codec: Codec

    @property
    def q_size(self) -> int:
        return self.rank * self.columns

    @property
    def summed(self):
        return [(self.codec, self.rank * self.rows), (self.codec, self.q_size)]

    def runs(self, columns: Grid) -> Grid:
        return Grid(2**62)

    def sums(self, own: Own):
        rank, rows = self.rank, self.rows
        start, calls, mark = self._start(own)
        p, q = np.empty(rank * rows, np.float32), np.zeros(self.q_size, np.float32)
        for begin, stop, first in self._blocks(own):
            own.form(begin, stop)
            if own.feedback:
                own.limit(begin, stop, LARGEST_PROJECTED)
            _kernels.rows_of_factors(own.values[begin:stop], start, p, rank, first)
            yield
        yield Sum(own, p, self.codec, lambda numbers: numbers % rows * self.columns, mark)
        _kernels.orthonormalize(p, rank)
        yield
        for begin, stop, first in self._blocks(own):
            _kernels.columns_of_factors(own.values[begin:stop], p, q, rank, first)
            yield
        mine = q.copy() if own.feedback else q
        lost = yield Sum(own, q, self.codec, lambda numbers: numbers % self.columns, 1)
        if lost is not None:
            mine -= lost
        times_mine, times_q = (multiplier(each, rank) for each in (mine, q))
        for begin, stop, first in self._blocks(own):
            if own.feedback:
                times_mine(p, own.values[begin:stop], first, subtract=True)
            y = own.result(begin, stop)
            times_q(p, y, first)
            own.store(begin, stop, y)
            yield
        return {"calls": calls + 1, "q": self._scaled(q)}

    def _blocks(self, own: Own):
        """(begin, stop, first row) of whole rows."""
        for begin, stop in own.blocks(self.columns):
            yield begin, stop, begin // self.columns

    def _start(self, own: Own) -> tuple[np.ndarray, int, int]:
        """(the Q to begin with, calls before, the mark of both)."""
        known = own.learned or {"calls": 0, "q": np.zeros(self.q_size, np.float32)}
        q, calls = known["q"].reshape(-1), known["calls"]
        if _kernels.has_empty_rank(q, self.rank):
            ranks = q.reshape(self.rank, self.columns)
            q = np.where(ranks.any(axis=1, keepdims=True), ranks, self._random(own)).reshape(-1)
        return q, calls, mark_of(calls, q)

    def _random(self, own: Own) -> np.ndarray:
        """Uniform in (-1, 1), alike on all ranks."""
        bits = np.empty(self.q_size, np.uint16)
        _kernels.random16(own.draw(), 0, bits)
        return ((bits.astype(np.float32) + np.float32(0.5)) / np.float32(2**15) - 1).reshape(self.rank, self.columns)

    def _scaled(self, q: np.ndarray) -> np.ndarray:
        """Each rank times a power of two: its norm is at most 1, so that P is no larger than rows of values."""
        return _kernels.scaled_factor(q, self.rank, math.ceil(math.log2(self.columns) / 2))

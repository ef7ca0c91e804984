"""Slices of a gradient as coefficients in a basis that is learned from earlier sums.

Wire: that of `raw` in calls that sum all values, or of qsgd with `train_bits` in those that learn. Else that of the
codec `coefficients`: the first coefficient of all slices, then the second, and so on. The rest that is no slice comes
as float32 behind raw coefficients, or else in a sum of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.basis import EMPTY, checked, principal
from gqallreduce.coding.codec import choice, integer, register
from gqallreduce.coding.indirect import LARGEST_PROJECTED, Indirect, Own, Sum, Whole, sum_whole
from gqallreduce.coding.inner import CompositeCodec, inner_codec
from gqallreduce.coding.integers import IntegerCodec
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.preparing import FROM_RANK, SUM, Ask, mark_of
from gqallreduce.coding.products import multiplier
from gqallreduce.coding.slices import Slices
from gqallreduce.coding.text import codec_of, resolved

_TOGETHER = 512  # slices whose products are added in float32


@register
class GradiVeQ(CompositeCodec):
    """Vector quantization by principal components: of slices of K values d coefficients are summed. Use it without /ef.

    Calls of a key go through phases: `warmup` calls sum all values, then `train` calls too, of whose sums a basis is
    learned; in the next `compress` calls only coefficients in that basis travel, and training begins again.

    K
        values of a slice; 0: as many whole filters as fit into 512 values (with order=hwdf, whole multiples of all
        values at one place of a filter), or a filter in equal parts. Best a multiple of that.
    d
        coefficients of a slice; 0: as `lam` says.
    lam
        the least d that leaves at most this share of the energy of the training sums.
    order
        filter: the values of a filter follow each other; hwdf: those of one place of all filters and inputs do, filters
        fastest, as published.
    layout
        oihw: the first axis of a buffer counts filters, the second inputs; hwio: the last, and the last but one. Of a
        matrix these are its two axes.
    reuse
        pooled: the basis is that of all slices; first: of the first one, as published.
    center
        the mean of each slice in training is left out of the coefficients, and added to the result, as published.
    warmup
        how many calls sum all values first.
    train
        of how many calls the basis is learned.
    compress
        how many calls have coefficients; 0: all that follow.
    train_bits
        training sums go by qsgd with so many bits, 4 as published; 0: by raw.
    coefficients
        how they travel: raw, float16, bfloat16, a level codec that does not learn, or one whose integers all ranks
        share the unit of, as in coefficients=thc(bits=8, rotate=False, clip=0).
    drift
        training begins again when more than half of the ranks see a relative error of their own values above it; 0: no
        rank looks.
    A buffer with fewer than two axes, or fewer than K values, is always summed whole.
    Error: what of a rank's values is not in the span of the basis, at most |v|; with sums as in training, of relative
    energy `lam`. With /ef that stays in the residual until the basis changes, and is then sent at once;
    values above 2^100 are refused (NonFiniteError, rank None), and with center=True 2^-20 of the mean may be lost.
    Cost: 4 bytes for each of d coefficients of K values, on every hop, and 4 per value of the rest; 4 K d operations
    per slice; K^3 on one rank at the end of a training, and K (K + 2) numbers of memory while it lasts.
    Source: Yu et al., GradiVeQ, NeurIPS 2018, section 3 (linear compression), 4 (training), algorithm 1;
    differs: the published choices are order=hwdf, reuse=first, center=True and train_bits=4; one rank computes the
    basis for all; what is no slice is sent raw; any schedule, any shape.
    """

    K: int = 0
    d: int = 0
    lam: float = 0.01
    order: str = "filter"
    layout: str = "oihw"
    reuse: str = "pooled"
    center: bool = False
    warmup: int = 2500
    train: int = 100
    compress: int = 400
    train_bits: int = 0
    coefficients: str = "raw"
    drift: float = 0.0

    name = "gradiveq"
    source = "Yu et al., GradiVeQ, NeurIPS 2018"
    example = "direct/gradiveq(warmup=2500)"
    learns = host_only = indirect = True
    bit_exact = False
    omega = 1.0

    def __post_init__(self):
        integer(self, "K", 0, 1 << 14)
        integer(self, "d", 0, 1 << 14)
        if self.d and self.K and self.d > self.K:
            raise ValueError(f"gradiveq: d={self.d}, expected at most K={self.K}")
        for option in ("lam", "drift"):
            value = getattr(self, option)
            if not isinstance(value, float) or not 0 <= value < 1:
                raise ValueError(f"gradiveq: {option}={value!r}, expected a number from 0 to 1")
        choice(self, "order", "filter", "hwdf")
        choice(self, "layout", "oihw", "hwio")
        choice(self, "reuse", "pooled", "first")
        choice(self, "center", True, False)
        integer(self, "warmup", 0, 2**31 - 1)
        integer(self, "train", 1, 2**31 - 1)
        integer(self, "compress", 0, 2**31 - 1)
        choice(self, "train_bits", 0, 2, 3, 4, 5, 6, 7, 8)
        found = inner_codec(self, "coefficients", IntegerCodec, also_named="one that sums integers")
        object.__setattr__(self, "coefficients", resolved(found))

    @property
    def inner_texts(self) -> tuple[str, ...]:
        """Of training sums, and of coefficients."""
        return f"qsgd(bits={self.train_bits})" if self.train_bits else "raw", self.coefficients

    @property
    def linear(self) -> bool:
        return all(each.linear for each in self.inner_codecs)

    @property
    def deterministic(self) -> bool:
        return all(each.deterministic for each in self.inner_codecs)

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> Indirect:
        slices = Slices.of(self, form)
        return Whole(form.size, codec_of("raw")) if slices is None else Projected(self, slices, form.size)

    def relearned(self, learned: dict, form: Form) -> dict:
        slices = Slices.of(self, form)
        if slices is None:
            raise ValueError("got a state of a buffer that is summed whole")
        return checked(learned, slices.length, form.size)


@dataclass(frozen=True)
class Projected(Indirect):
    """A buffer that has slices."""

    codec: GradiVeQ
    slices: Slices
    size: int

    @property
    def summed(self):
        """Of a call that sums coefficients: a quarter of K, if nothing says how many."""
        kept = self.codec.d or -(-self.slices.length // 4)
        return [(self.codec.inner_codecs[1], kept * self.slices.count + self.size - self.slices.size)]

    def runs(self, columns: Grid) -> Grid:
        return Grid(2**62)

    def sums(self, own: Own):
        known = own.learned or EMPTY | {"since": self.codec.warmup}
        calls, since, train = known["calls"], known["since"], self.codec.train
        if self.codec.compress and known["basis"] is not None and calls >= since + train + self.codec.compress:
            known = EMPTY | {"calls": calls, "since": (since := calls)}
        mark = mark_of(calls, np.array([since, known["told"]]))
        known = known | {"calls": calls + 1}
        if known["basis"] is not None:
            return (yield from self._coefficients(own, known, mark))
        if calls < since:
            yield from sum_whole(own, codec_of("raw"), mark)
            return known
        gathered = [known["gathered"], known["total"]]
        yield from sum_whole(own, self.codec.inner_codecs[0], mark, lambda y: self._gather(y, gathered))
        if calls + 1 < since + train:
            return known | {"gathered": gathered[0], "total": gathered[1]}
        return (yield from self._learn(own, known, *gathered))

    # --- training ---

    def _gather(self, y: np.ndarray, gathered: list) -> None:
        """Add to the products of values of a slice, and to the sums if means are wanted."""
        length = self.slices.length
        ordered = self.slices.ordered(y)
        samples = ordered[: self.slices.size].reshape(-1, length)[: 1 if self.codec.reuse == "first" else None]
        exponent = math.frexp(float(np.abs(samples).max()))[1]  # scaled, so that no product leaves float32
        samples = np.ldexp(samples, -exponent)
        gathered[0] = np.zeros((length, length)) if gathered[0] is None else gathered[0].copy()
        for first in range(0, len(samples), _TOGETHER):
            some = samples[first : first + _TOGETHER]
            products = np.zeros(length * length, np.float32)
            _kernels.columns_of_factors(some.reshape(-1), some.T.reshape(-1), products, length, 0)
            gathered[0] += products.reshape(length, length).astype(np.float64) * 4.0**exponent
        if self.codec.center:
            gathered[1] = ordered.astype(np.float64) if gathered[1] is None else gathered[1] + ordered

    def _learn(self, own: Own, known: dict, products: np.ndarray, total: np.ndarray | None):
        """The rank that owns the key finds the basis, and all get it."""
        length, train, root = self.slices.length, self.codec.train, own.number % own.ranks
        mean, basis = None, np.zeros((0, length), np.float32)
        if total is not None:
            mean = (total / train).astype(np.float32)
            means = mean[: self.slices.size].astype(np.float64).reshape(-1, length)
            means = means[: 1 if self.codec.reuse == "first" else None]
            products = products - train * (means.T @ means)
        if own.rank == root:
            basis = principal(products, self.codec.d, self.codec.lam)
        yield
        kept = int((yield Ask(FROM_RANK, np.array([len(basis)]), root))[0])
        if not kept:  # nothing but zeros: train on
            return EMPTY | {"calls": known["calls"], "since": known["calls"]}
        mine = basis.reshape(-1) if own.rank == root else np.zeros(kept * length, np.float32)
        basis = (yield Ask(FROM_RANK, mine, root)).reshape(kept, length)
        told = mark_of(kept, basis) >> 1
        return EMPTY | {"calls": known["calls"], "since": known["since"], "basis": basis, "mean": mean, "told": told}

    # --- coefficients ---

    def _coefficients(self, own: Own, known: dict, mark: int):
        slices, basis, codec = self.slices, known["basis"].reshape(-1), self.codec.inner_codecs[1]
        rank, count = len(known["basis"]), slices.count
        for begin, stop in own.blocks():
            own.form(begin, stop)
            if own.feedback:
                own.limit(begin, stop, LARGEST_PROJECTED)
            yield
        v, mean = slices.ordered(own.values), known["mean"]
        if mean is not None:
            v = v - mean / np.float32(own.ranks)
        numbers = np.empty(rank * count + self.size - slices.size, np.float32)
        mine, rest = numbers[: rank * count], numbers[rank * count :]
        for begin, stop, first in slices.blocks():
            _kernels.rows_of_factors(v[begin:stop], basis, mine, rank, first)
            yield
        rest[:] = v[slices.size :]
        known = yield from self._watch(own, v, mine, rank, known)
        before = mine.copy() if own.feedback else None
        lost = yield from self._sum(own, codec, numbers, mine, rest, mark)
        if own.feedback:
            yield from self._leave(own, v, before, lost, basis, rank)
        yield from self._finish(own, numbers, basis, rank, mean)
        return known

    def _watch(self, own: Own, v, mine, rank: int, known: dict):
        """What the key learns of this call: training may begin again."""
        if not self.codec.drift:
            return known
        energy, kept = (float(np.dot(each, each)) for each in (v[: self.slices.size].astype(np.float64), mine))
        vote = math.sqrt(max(0.0, 1 - kept / energy)) > self.codec.drift if energy else False
        votes = yield Ask(SUM, np.array([vote], np.int64))
        if 2 * int(votes[0]) > own.ranks:
            return EMPTY | {"calls": known["calls"], "since": known["calls"]}
        return known

    def _sum(self, own: Own, codec, numbers, mine, rest, mark: int):
        """Sums coefficients and the rest, raw ones together; returns what the coefficients lost."""
        count, length, size = self.slices.count, self.slices.length, self.slices.size
        origin = self.slices.origin

        def named(these):
            inside = these < len(mine)
            return origin(np.where(inside, these % count * length, these - len(mine) + size))

        if codec == codec_of("raw") or not len(rest):
            return (yield Sum(own, numbers, codec, named, mark))
        lost = yield Sum(own, mine, codec, named, mark)
        yield Sum(own, rest, codec_of("raw"), lambda these: origin(these + size), 1)
        return lost

    def _leave(self, own: Own, v, before, lost, basis, rank: int):
        """The residual: own values less what was sent of them."""
        if lost is not None:
            before -= lost[: len(before)]
        v[self.slices.size :] = 0
        times_basis = multiplier(basis, rank)
        for begin, stop, first in self.slices.blocks():
            times_basis(before, v[begin:stop], first, subtract=True)
            yield
        self.slices.put(v, own.values)
        yield

    def _finish(self, own: Own, numbers, basis, rank: int, mean):
        slices, y = self.slices, np.empty(self.size, np.float32)
        times_basis = multiplier(basis, rank)
        for begin, stop, first in slices.blocks():
            times_basis(numbers[: rank * slices.count], y[begin:stop], first)
            yield
        y[slices.size :] = numbers[rank * slices.count :]
        if mean is not None:
            y += mean
        result = own.result(0, self.size)
        slices.put(y, result)
        for begin, stop in own.blocks():
            own.store(begin, stop, result[begin:stop])
            yield

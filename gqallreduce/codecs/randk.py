"""Random values of the vector, at places that all ranks draw alike, so that no indices travel and sums are short.

Wire: that of the codec `values`, for the chosen values in order of their places; with shared=False that of
gqallreduce/coding/sparse.py. How the places are drawn, from a random stream of the call, is in `places` here and in
docs/wire.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.codec import Codec, RegionCodec, choice, register
from gqallreduce.coding.indirect import Indirect, Own, Sum
from gqallreduce.coding.layout import Form
from gqallreduce.coding.selection import Selection, kept_of
from gqallreduce.coding.sparse import SparseCodec, one_of_k_and_ratio
from gqallreduce.registry import CODECS


@register
class RandK(Codec):
    """rand-k: in each call k values at random; the others wait in the residual. Use it with /ef.

    ratio
        k = max(1, floor(ratio n)) of n values, 0 < ratio <= 1; 0.0 if k is given.
    values
        raw: they travel as float32, whatever the dtype of the buffer; float16: rounded when they are sent. Sums are
        float32.
    k
        how many of a vector; 0: as `ratio` says. Less than 1: one value in a call with probability k, else none.
    shared
        True: all ranks choose the same places. False: each its own, which travel with the values; sums are sent
        exactly, as those of topk with sums=union.
    Every set of k places is equally likely, and drawn anew in every call of a key, from its stream.
    Error: of what is not chosen, all; E|v - C(v)|^2 = (1 - k/n) |v|^2. Chosen values are not scaled by n/k: that would
    be unbiased, but where k < n/2 its error is larger than v, and with error feedback residuals would grow.
    Cost: 4 bytes per chosen value (2 with float16), on every hop: no indices. With shared=False that of topk.
    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018, definition 2.1 (rand_k) and remark
    2.3 (ultra-sparsification, k < 1); differs: with shared=True all ranks choose the same places, so that partial sums
    never grow, and a call that sends nothing sends a zero.
    """

    ratio: float = 0.01
    values: str = "raw"
    k: float = 0.0
    shared: bool = True

    name = "randk"
    source = "Stich et al., Sparsified SGD with memory, NeurIPS 2018"
    example = "direct/randk(ratio=0.01)/ef"
    host_only = True

    def __post_init__(self):
        k = self.k if isinstance(self.k, (int, float)) and not isinstance(self.k, bool) else -1
        if not 0 <= k < 2**62 or (k > 1 and k != math.floor(k)):
            raise ValueError(f"randk: k={self.k!r}, expected a whole number, or one between 0 and 1")
        number = isinstance(self.ratio, (int, float)) and not isinstance(self.ratio, bool)
        if not k and (not number or not 0 < self.ratio <= 1):
            raise ValueError(f"randk: ratio={self.ratio!r}, expected a number above 0, up to 1")
        object.__setattr__(self, "k", float(k))  # written as 1 or 1.0, it is one scheme
        object.__setattr__(self, "ratio", 0.0 if k else float(self.ratio))
        choice(self, "values", "raw", "float16")
        choice(self, "shared", True, False)

    @classmethod
    def make(cls, given: dict) -> Codec:
        one_of_k_and_ratio(cls, given)
        return super().make(given)

    @property
    def linear(self) -> bool:
        return self.shared and self.values == "raw"

    @property
    def fixed_size(self) -> bool:
        return self.shared

    @property
    def sums_grow(self) -> bool:
        return not self.shared

    @property
    def indirect(self) -> bool:
        return self.shared

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec | Indirect:
        if not self.shared:
            return OwnPlaces(self.ratio, self.values, self.k).bind(form, size, arithmetic)
        k = _count(self.k, self.ratio, form.size)
        return Chosen(form.size, k, min(self.k, 1.0) or 1.0, CODECS[self.values]())


def _count(k: float, ratio: float, n: int) -> int:
    """How many of n values are chosen, at most."""
    return min(n, max(1, math.floor(k or ratio * n)))


@dataclass(frozen=True)
class OwnPlaces(SparseCodec):
    """What randk(shared=False) encodes by."""

    ratio: float
    values: str
    k: float
    sums: str = "union"

    name = RandK.name

    def most(self, elements: int, total: int) -> int:
        """The share of a piece, rounded up."""
        return min(elements, -(-_count(self.k, self.ratio, total) * elements // max(total, 1)))

    def select(self, parts, most: int):
        elements = sum(region.size for region in parts.regions)
        drawn = drawn_with(parts.stream, elements, most, min(self.k, 1.0) or 1.0)
        kept, begin = [], 0
        for number in range(len(parts)):
            region, x, residual, new_residual = parts[number]
            v = np.empty_like(x) if new_residual is None else new_residual
            flawed = _kernels.add_finite(x, residual, v)
            here = _within(drawn, begin, x.size)[1].astype(np.uint32)
            kept.append(kept_of(region, here[:0] if flawed else here, v[here[:0] if flawed else here], not flawed))
            begin += x.size
            yield
        return Selection(kept, lambda: None)


@dataclass(frozen=True)
class Chosen(Indirect):
    """k of n values at places that all ranks draw alike, or, with a probability below 1, none."""

    n: int
    k: int
    probability: float
    codec: Codec

    @property
    def summed(self):
        return [(self.codec, self.k)]

    def sums(self, own: Own):
        drawn = drawn_with(own.draw(), self.n, self.k, self.probability)
        chosen = np.zeros(self.k, np.float32)  # zeros, if none is drawn
        for begin, stop in own.blocks():
            own.form(begin, stop)
            here, at = _within(drawn, begin, stop - begin)
            np.take(own.values[begin:stop], at, out=chosen[here])
            yield
        lost = yield Sum(own, chosen, self.codec, lambda numbers: drawn[numbers] if len(drawn) else numbers)
        for begin, stop in own.blocks():
            here, at = _within(drawn, begin, stop - begin)
            if own.feedback:
                own.values[begin:stop][at] = 0 if lost is None else lost[here]
            y = own.result(begin, stop)
            y[:] = 0
            y[at] = chosen[here]
            own.store(begin, stop, y)
            yield


def drawn_with(stream, n: int, k: int, probability: float) -> np.ndarray:
    """`places`, or none, if the random bits of the elements 2^40 to 2^40 + 3, lowest first, say so: r >= 2^64 p."""
    if probability < 1:
        bits = np.empty(4, np.uint16)
        _kernels.random16(stream, 1 << 40, bits)
        if int(bits.view(np.uint64)[0]) >= int(probability * 2**64):
            return np.empty(0, np.int64)
    return places(stream, n, k)


def _within(drawn, begin: int, size: int):
    """(which of the places are among elements [begin, begin + size), where among those)."""
    if len(drawn) and begin <= drawn[0] and drawn[-1] < begin + size:
        return slice(None), drawn - begin if begin else drawn
    first, last = np.searchsorted(drawn, (begin, begin + size))
    return slice(first, last), drawn[first:last] - begin


def places(stream, n: int, k: int) -> np.ndarray:
    """k places below n, ascending, int64: every set is equally likely.

    Places are drawn one after the other, and those that came before are passed over, until there are k; or n - k that
    are left out, if those are fewer. The i-th drawn is floor(r n / 2^64), where r is made of the 16 random bits of the
    elements 4i to 4i + 3 of the stream, lowest first.
    """
    found = np.empty(k, np.int64)
    _kernels.draw_places(stream, n, found)
    return found

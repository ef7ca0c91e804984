"""Random values of the vector, at places that all ranks draw alike, so that no indices travel and sums are short.

Wire: that of the codec `values`, for the chosen values in order of their places. How the places are drawn, from the
random stream of the call, is in `places` here and in docs/wire.md.
"""

from __future__ import annotations

import math

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.codec import Codec, RegionCodec, choice, register
from gqallreduce.coding.layout import Form
from gqallreduce.coding.transform import Transform
from gqallreduce.registry import CODECS


@register
class RandK(Codec):
    """rand-k: in each call k values at random, the same on all ranks; the others wait in the residual. Use it with /ef.

    ratio
        k = max(1, floor(ratio n)) of n values, 0 < ratio <= 1.
    values
        raw: they travel as float32, whatever the dtype of the buffer; float16: rounded when they are sent. Sums are
        float32.
    Every set of k places is equally likely, and drawn anew in every call of a key, from its stream.
    Error: of what is not chosen, all; E|v - C(v)|^2 = (1 - k/n) |v|^2. Chosen values are not scaled by n/k: that would
    be unbiased, but where k < n/2 its error is larger than v, and with error feedback residuals would grow.
    Cost: 4 bytes per chosen value (2 with float16), on every hop: no indices.
    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018, definition 2.1 (rand_k); differs: all
    ranks choose the same places, so that partial sums never grow.
    """

    ratio: float = 0.01
    values: str = "raw"

    name = "randk"
    source = "Stich et al., Sparsified SGD with memory, NeurIPS 2018"
    example = "direct/randk(ratio=0.01)/ef"
    fixed_size = host_only = True

    def __post_init__(self):
        number = isinstance(self.ratio, (int, float)) and not isinstance(self.ratio, bool)
        if not number or not 0 < self.ratio <= 1:
            raise ValueError(f"randk: ratio={self.ratio!r}, expected a number above 0, up to 1")
        object.__setattr__(self, "ratio", float(self.ratio))  # written as 1 or 1.0, it is one scheme
        choice(self, "values", "raw", "float16")

    @property
    def linear(self) -> bool:
        return self.values == "raw"

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec:
        chosen = Chosen(form.size, min(form.size, max(1, math.floor(self.ratio * form.size))))
        return CODECS[self.values]().bind(chosen.form, size, arithmetic).knowing(transform=chosen)


class Chosen(Transform):
    """k of n values. What is drawn are their places, ascending."""

    def __init__(self, n: int, k: int):
        self.n, self.form = n, Form((k,), "C", "float32")

    def draw(self, stream) -> np.ndarray:
        return places(stream, self.n, self.form.size)

    def shorten(self, drawn, begin, v, coefficients):
        here, at = _within(drawn, begin, v.size)
        np.take(v, at, out=coefficients[here])

    def leave(self, drawn, begin, v, coefficients):
        v[_within(drawn, begin, v.size)[1]] = 0

    def lengthen(self, drawn, begin, coefficients, y, add):
        here, at = _within(drawn, begin, y.size)
        if add:
            y[at] += coefficients[here]
        else:
            y[:] = 0
            y[at] = coefficients[here]

    def origin(self, drawn, numbers):
        return drawn[numbers]


def _within(drawn, begin: int, size: int):
    """(which of the places are among elements [begin, begin + size), where among those)."""
    first, last = np.searchsorted(drawn, (begin, begin + size))
    return slice(first, last), drawn[first:last] - begin


def places(stream, n: int, k: int) -> np.ndarray:
    """k places below n, ascending, int64: every set is equally likely.

    Places are drawn one after the other, and those that came before are passed over, until there are k; or n - k that
    are left out, if those are fewer. The i-th drawn is floor(r n / 2^64), where r is made of the 16 random bits of the
    elements 4i to 4i + 3 of the stream, lowest first.
    """
    few = min(k, n - k)
    drawn = np.empty(0, np.uint64)
    found = drawn
    while len(found) < few:
        left = few - len(found)
        more = math.ceil(-n * math.log1p(-left / n)) + 4 * math.isqrt(left) + 16
        bits = np.empty(4 * more, np.uint16)
        _kernels.random16(stream, 4 * len(drawn), bits)
        drawn = np.concatenate([drawn, _multiply_high(bits.view(np.uint64), n)])
        found, first = _different(drawn, n)
    if few:
        found = found[first <= np.partition(first, few - 1)[few - 1]]
    if few == k:
        return found.astype(np.int64)
    chosen = np.ones(n, bool)
    chosen[found.astype(np.int64)] = False
    return np.flatnonzero(chosen)


def _different(drawn: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(the different places, ascending, where each was drawn first)."""
    bits = len(drawn).bit_length()
    if n.bit_length() + bits > 64:
        return np.unique(drawn, return_index=True)
    both = np.sort(drawn << np.uint64(bits) | np.arange(len(drawn), dtype=np.uint64))  # in one go: NumPy does that fast
    place = both >> np.uint64(bits)
    new = np.ones(len(both), bool)
    np.not_equal(place[1:], place[:-1], out=new[1:])
    return place[new], (both[new] & np.uint64((1 << bits) - 1)).astype(np.int64)


def _multiply_high(r: np.ndarray, n: int) -> np.ndarray:
    """floor(r n / 2^64) of uint64 numbers."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    r0, r1, n0, n1 = r & low, r >> half, np.uint64(n & 0xFFFFFFFF), np.uint64(n >> 32)
    middle = r1 * n0 + (r0 * n0 >> half)
    return r1 * n1 + (middle >> half) + ((r0 * n1 + (middle & low)) >> half)

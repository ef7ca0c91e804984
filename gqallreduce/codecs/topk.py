"""The largest values of a vector with their places. Wire: gqallreduce/coding/sparse.py."""

from __future__ import annotations

import math

from gqallreduce.coding.codec import Codec, choice, integer, register
from gqallreduce.coding.selection import select_most
from gqallreduce.coding.sparse import SparseCodec, one_of_k_and_ratio
from gqallreduce.coding.text import resolved


@register
class TopK(SparseCodec):
    """top-k: exactly the k nonzero values of largest magnitude, fewer if fewer exist. Use it with /ef.

    k
        how many of a vector; 0: as `ratio` says. Of a partial sum of m of its n values ceil(k m / n).
    ratio
        k = max(1, floor(ratio n)), 0 < ratio <= 1; 0.0 if k is given.
    values
        how the values travel: raw, float16, bfloat16, or a level codec with its options, as in
        values=qsgd(bits=4, bucket=64); not those that learn.
    sums
        reselect: of a partial sum the largest values of the range at hand are sent, and the rest goes into a residual.
        union: a partial sum is sent exactly, with the places that any of its contributions has, or as a float32 for
        each value where that is shorter; a contribution is encoded once, whatever the schedule.
    Ties are broken by memory order. Of own values the largest of the whole vector are sent.
    Error: |v|^2 is left of each value not sent, so that |v - C(v)|^2 <= (1 - k/n) |v|^2 with values=raw; of the others
    what their codec loses. With sums=union that is all; with reselect partial sums lose as much again.
    Cost: at most 2 bytes per entry, or a bit per value where that is less, and those of `values`; 12 bytes per block of
    2^18 values and 2 per 65536. With sums=union a sum of m contributions has up to m k entries of 4 bytes and a place.
    Device arrays go through host memory.
    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018, definition 2.1 (top_k); differs: what
    is left of a partial sum goes into a residual, so that nothing is lost. sums=union: Renggli et al., SparCML, SC
    2019 (sparse streams that turn dense); allgather, recursive_doubling and direct are its sparse allgather,
    recursive doubling and split-allgather; differs: any number of ranks, and the same bits on all.
    """

    k: int = 0
    ratio: float = 0.01
    values: str = "raw"
    sums: str = "reselect"

    name = "topk"
    source = "Stich et al., Sparsified SGD with memory, NeurIPS 2018"
    example = "direct/topk(ratio=0.01)/ef"

    def __post_init__(self):
        integer(self, "k", 0, 2**62)
        if not self.k and not (isinstance(self.ratio, float) and 0 < self.ratio <= 1):
            raise ValueError(f"topk: ratio={self.ratio!r}, expected a number above 0, up to 1")
        object.__setattr__(self, "ratio", 0.0 if self.k else self.ratio)
        choice(self, "sums", "reselect", "union")
        object.__setattr__(self, "values", resolved(self.inner))

    @classmethod
    def make(cls, given: dict) -> Codec:
        one_of_k_and_ratio(cls, given)
        return super().make(given)

    def most(self, elements: int, total: int) -> int:
        if self.k:
            return min(elements, -(-self.k * elements // max(total, 1)))
        return min(elements, max(1, math.floor(self.ratio * elements)))

    def select(self, parts, most: int):
        return select_most(parts, most)

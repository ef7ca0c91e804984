"""The largest values of a vector with their places. Wire: gqallreduce/coding/sparse.py."""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import Codec, choice, integer, register
from gqallreduce.coding.inner import inner_codec
from gqallreduce.coding.layout import Form, Grid
from gqallreduce.coding.preparing import SUM, Ask, Prepared, mark_of
from gqallreduce.coding.reusing import borders_of, most_reused, select_reusing
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
    reuse
        0: the k largest of own values are searched in every call. T: in every T-th call of a key; between these what
        reaches the threshold of the call before is sent, at most 4/3 k values, and the threshold is adjusted.
    balance
        0: chunks have nearly as many elements each. N: every N calls of a key ranks agree on borders for the following
        calls, between which they have sent about as many values; with sums=union only.
    Ties are broken by memory order. Of own values the largest of the whole vector are sent.
    Error: |v|^2 is left of each value not sent, so that |v - C(v)|^2 <= (1 - k/n) |v|^2 with values=raw; of the others
    what their codec loses. With sums=union that is all; with reselect partial sums lose as much again.
    Cost: at most 2 bytes per entry, or a bit per value where that is less, and those of `values`; 12 bytes per block of
    2^18 values and 2 per 65536. With sums=union a sum of m contributions has up to m k entries of 4 bytes and a place.
    Device arrays go through host memory.
    Source: Stich, Cordonnier and Jaggi, Sparsified SGD with memory, NeurIPS 2018, definition 2.1 (top_k); differs: what
    is left of a partial sum goes into a residual, so that nothing is lost. sums=union: Renggli et al., SparCML, SC
    2019 (sparse streams that turn dense); allgather, recursive_doubling and direct are its sparse allgather,
    recursive doubling and split-allgather; differs: any number of ranks, and the same bits on all. reuse and balance:
    Li and Hoefler, Ok-Topk, PPoPP 2022; differs: coding/reusing.py, and sums keep all their values.
    """

    k: int = 0
    ratio: float = 0.01
    values: str = "raw"
    sums: str = "reselect"
    reuse: int = field(default=0, repr=False)  # a message is one of topk without these options: one signature
    balance: int = field(default=0, repr=False)

    name = "topk"
    source = "Stich et al., Sparsified SGD with memory, NeurIPS 2018"
    example = "direct/topk(ratio=0.01)/ef"

    def __post_init__(self):
        integer(self, "k", 0, 2**62)
        if not self.k and not (isinstance(self.ratio, float) and 0 < self.ratio <= 1):
            raise ValueError(f"topk: ratio={self.ratio!r}, expected a number above 0, up to 1")
        object.__setattr__(self, "ratio", 0.0 if self.k else self.ratio)
        choice(self, "sums", "reselect", "union")
        integer(self, "reuse", 0, 2**31 - 1)
        integer(self, "balance", 0, 2**31 - 1)
        if self.balance and self.sums != "union":
            raise ValueError(f"topk: balance={self.balance}, expected sums=union with it, or balance=0")
        object.__setattr__(self, "values", resolved(inner_codec(self, "values")))

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

    def at_most(self, most: int) -> int:
        return most_reused(most) if self.reuse else most

    def coder(self):
        values = None if self.values == "raw" else self.inner.coder()
        if values is None and self.values != "raw":
            return None
        return _kernels.sparse_coder(self.k, self.ratio, self.sums == "union", values, self.inner.grid(Grid(1)).run)

    # --- from call to call ---

    @property
    def learns(self) -> bool:
        return bool(self.reuse or self.balance)

    @property
    def moves_borders(self) -> bool:
        return bool(self.balance)

    def borders(self, learned: dict | None) -> tuple[int, ...]:
        known = (learned or {}).get("borders")
        return () if known is None else tuple(known.tolist())

    def prepare(self, parts):
        return self._select(parts) if parts.learned is None or not self.learns else self._learn(parts)

    def _learn(self, parts):
        """Select, by the last threshold if it is not time for a search, and agree on borders if it is time for that."""
        known = parts.learned or {"calls": 0, "threshold": 0.0, "borders": None}
        calls, borders = known["calls"], known["borders"]
        mark = mark_of(calls, np.array(self.borders(known), np.int64)) if self.balance else 0
        threshold = known["threshold"] if self.reuse and calls % self.reuse else 0.0
        selected, found = yield from select_reusing(parts, self.most_of(parts), threshold)
        if self.balance and calls % self.balance == 0:
            mine = borders_of(selected, parts.regions, parts.pieces)
            borders = (yield Ask(SUM, mine)) // parts.size
        learned = {"calls": calls + 1, "threshold": found if self.reuse else 0.0, "borders": borders}
        return Prepared(self.in_a_call(), selected, learned, mark)

    def relearned(self, learned: dict, form: Form) -> dict:
        calls, threshold, borders = (learned[name] for name in ("calls", "threshold", "borders"))
        if isinstance(calls, bool) or not isinstance(calls, (int, np.integer)) or not 1 <= calls < 2**63:
            raise ValueError(f"got calls={calls!r}, expected an integer of 1 or more")
        if not 0 <= threshold <= np.finfo(np.float32).max:
            raise ValueError(f"got a threshold of {threshold!r}, expected a float32 of 0 or more")
        if borders is not None:
            given = np.asarray(borders)
            if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
                raise ValueError(f"got borders {borders!r}, expected a vector of integers")
            borders = given.astype(np.int64)
            if borders.size and (borders[0] < 0 or borders[-1] > form.size or (np.diff(borders) < 0).any()):
                raise ValueError(f"got borders {borders}, expected them to ascend from 0 to {form.size}")
        if (borders is None) != (not self.balance):
            raise ValueError(f"got borders {borders!r} with balance={self.balance}")
        return {"calls": int(calls), "threshold": float(np.float32(threshold)), "borders": borders}

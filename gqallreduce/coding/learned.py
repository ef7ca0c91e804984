"""Level codecs whose levels follow from the values of earlier calls of a key, alike on all ranks.

What a key has learned is part of its State (memory.py): how many calls it has had, its levels, how many updates were
due, and what has been gathered for the next. Levels are changed before the first encoding of a call, so that all of its
messages have the same; a hash of them, and of the number of calls, is in every header.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import fitting
from gqallreduce.coding.codec import choice, integer
from gqallreduce.coding.distributions import Histogram
from gqallreduce.coding.layout import Form
from gqallreduce.coding.levels import NormCodec
from gqallreduce.coding.preparing import FROM_RANK, POOLED, SUM, Ask, Prepared, mark_of
from gqallreduce.errors import WireError
from gqallreduce.hashing import checksum


@dataclass(frozen=True)
class LearnedCodec(NormCodec):
    """A subclass has `solve`, and `weight`: buckets count by their norm to this power.

    updates, every
        numbers of calls (0 is the first of a key) that begin with an update; every so many calls there is one too.
    samples
        levels are fitted to the call of an update and those before it, so many in all, since the last update.
    share
        key: a key has levels of its own; group: the keys of a group that are updated in one call get the same.
    fit
        histogram: of v / norm in 770 bins; normal: the normal distribution with its mean and variance.
    """

    bits: int = 4
    bucket: int = 512
    norm: str = "max"
    zero_level: bool = True
    rounding: str = "stochastic"
    coding: str = "fixed"
    rotate: bool = False
    fit: str = "histogram"
    updates: tuple = (0, 100, 2000)
    every: int = 10000
    samples: int = 10
    share: str = "key"

    learns = True
    weight: ClassVar[int] = 0

    @abstractmethod
    def solve(self, distribution) -> np.ndarray:
        """The `count` levels for it, float64, from -1 to 1."""

    def __post_init__(self):
        super().__post_init__()
        self._check_updates()
        integer(self, "every", 0, 2**31 - 1)
        integer(self, "samples", 1, 2**31 - 1)
        choice(self, "share", "key", "group")
        choice(self, "fit", "histogram", "normal")

    def _check_updates(self) -> None:
        given = self.updates
        calls = given if isinstance(given, (tuple, list)) else (given,)
        if not all(isinstance(call, int) and not isinstance(call, bool) and 0 <= call < 2**31 for call in calls):
            raise ValueError(f"{self.name}: updates={given!r}, expected numbers of calls from 0 to 2^31 - 1")
        object.__setattr__(self, "updates", tuple(sorted(set(calls))))

    @property
    def count(self) -> int:
        """Of levels."""
        return 2**self.bits - self.zero_level

    def level_set(self):
        """Before the first update: powers of two, or of a larger number if the smallest would be below 2^-16."""
        multiplier = fitting.initial_multiplier(self.count, self.zero_level)
        return self._table(fitting.multiplied(self.count, self.zero_level, multiplier).astype(np.float32))

    def _table(self, levels: np.ndarray) -> _kernels.Levels:
        return _kernels.Levels.table(self.bits, levels)

    def with_levels(self, levels: np.ndarray) -> LearnedCodec:
        """This codec with these levels: float32[count], ascending from -1 to 1."""
        return self.knowing(levels=self._used(self._table(levels)))

    def __copy__(self) -> LearnedCodec:
        """Without what is kept of this codec alone: the codec of the last call's levels, and its Coder."""
        made = super().__copy__()
        vars(made).pop("_last", None)
        vars(made).pop("kept_coder", None)
        return made

    @cached_property
    def kept_coder(self):
        """Its `coder()`, made once."""
        return self.coder()

    # --- from call to call ---

    def prepare(self, parts):
        return None if parts.learned is None else self._learn(parts)

    def _learn(self, parts):
        """Gather, update if it is time, and encode with the levels there are then."""
        known = self.known(parts.learned)
        if known is not None:
            return known
        calls, updates, levels, gathered = _fields_of(parts.learned)
        gathered = np.zeros(_kernels.SPREAD_BINS) if gathered is None else gathered.copy()
        for region, x, e, _ in parts:
            if self.rotate:
                x, e = _rotated(x, e, region), None
            self.arithmetic.levels_spread(x, e, gathered, self.norm == "l2", self.weight, region)
            yield None
        due = self._updates_until(calls)
        if due > updates:
            total = yield Ask(SUM if self.share == "key" else POOLED, gathered)
            if total.any():  # else there is nothing to fit to, and the next call tries again
                root = parts.number % parts.size if self.share == "key" else 0
                mine = _solved(self, total.tobytes()) if parts.rank == root else np.zeros(self.count, np.float32)
                levels, updates, gathered = (yield Ask(FROM_RANK, mine, root)), due, None
        return self._prepared(calls, updates, levels, gathered, self.arithmetic.SPREAD_REASON)

    def known(self, learned: dict | None) -> Prepared | None:
        """If this call neither updates the levels nor gathers for an update."""
        calls, updates, levels, gathered = _fields_of(learned)
        due = self._updates_until(calls)
        if due > updates or self._updates_until(calls + self.samples - 1) > due:
            return None
        return self._prepared(calls, updates, levels, gathered)

    def _prepared(self, calls: int, updates: int, levels, gathered, reason: str = "") -> Prepared:
        learned = {"calls": calls + 1, "updates": updates, "levels": levels, "gathered": gathered}
        if levels is None:
            return Prepared(self, None, learned, mark_of(calls), reason)
        last, codec, hashed = vars(self).get("_last", (None, None, 0))
        if levels is not last:
            try:
                codec, hashed = self.with_levels(levels), checksum(levels.tobytes())
            except ValueError as problem:
                raise WireError(f"what ranks agreed on is no set of levels: {problem}") from problem
            vars(self)["_last"] = levels, codec, hashed
        return Prepared(codec, None, learned, _kernels.mixed(calls, hashed), reason)

    def _updates_until(self, call: int) -> int:
        """How many updates are due in calls 0 to `call`; one that is due twice is made once."""
        return bisect_right(self.updates, call) + (call // self.every if self.every else 0)

    def relearned(self, learned: dict, form: Form) -> dict:
        calls, updates = (_count(name, learned[name]) for name in ("calls", "updates"))
        levels, gathered = (_floats(name, learned[name]) for name in ("levels", "gathered"))
        if calls < 1 or not 0 <= updates <= self._updates_until(calls - 1) or (updates > 0) != (levels is not None):
            what = "no levels" if levels is None else "levels"
            raise ValueError(f"got {updates} updates in {calls} calls, and {what}")
        if levels is not None:
            levels = levels.astype(np.float32)
            if levels.shape != (self.count,):
                raise ValueError(f"got levels of shape {levels.shape}, expected {(self.count,)}")
            self._table(levels)
            if (levels[0], levels[-1]) != (-1, 1) or (self.zero_level and levels[self.count // 2] != 0):
                raise ValueError(f"got levels {levels}, expected them from -1 to 1{', with 0' * self.zero_level}")
        if gathered is not None:
            fit = gathered.shape == (_kernels.SPREAD_BINS,) and bool((gathered >= 0).all())
            if not fit or not np.isfinite(gathered.sum()):
                raise ValueError(f"what was gathered has shape {gathered.shape}, expected 770 numbers of 0 or more")
        return {"calls": calls, "updates": updates, "levels": levels, "gathered": gathered}


def _fields_of(learned: dict | None) -> tuple:
    """Calls, updates, levels and what has been gathered; as they begin, if nothing has been learned."""
    known = learned or {"calls": 0, "updates": 0, "levels": None, "gathered": None}
    return known["calls"], known["updates"], known["levels"], known["gathered"]


def _rotated(x, e, region) -> np.ndarray:
    """The buckets of x + e, each rotated as in a message, but by another key."""
    v, at = np.array(x) if e is None else x + e, 0
    for size, start, run, _, _ in region.table.rows:
        here = v[at : at + size]
        _kernels.rotate(here, here, start, run, 0)
        at += size
    return v


def _count(name: str, value) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value >= 2**63:
        raise ValueError(f"got {name}={value!r}, expected an integer")
    return int(value)


def _floats(name: str, value) -> np.ndarray | None:
    """float64, or None."""
    if value is None:
        return None
    found = np.asarray(value)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"got {name} of dtype {found.dtype}, expected numbers")
    return found.astype(np.float64)


@dataclass(frozen=True)
class FittedCodec(LearnedCodec):
    """Every level is fitted."""

    solver: str = "optimal"

    def __post_init__(self):
        super().__post_init__()
        choice(self, "solver", *fitting.SOLVERS)

    def solve(self, distribution):
        return fitting.fit(distribution, self.count, self.zero_level, self.solver)


class MultiplierCodec(LearnedCodec):
    """Levels are powers of one number, which is fitted."""

    def solve(self, distribution):
        return fitting.fit_multiplier(distribution, self.count, self.zero_level)


@lru_cache(maxsize=8)
def _solved(codec: LearnedCodec, weight: bytes) -> np.ndarray:
    """float32[count]. Kept, since the keys of a group that share levels ask one after the other."""
    spread = Histogram(np.frombuffer(weight))
    found = codec.solve(spread.normal() if codec.fit == "normal" else spread)
    levels = found.astype(np.float32)
    if np.diff(levels).min() <= 0:  # neighbours that are one float32: a little of equal steps keeps them apart
        levels = (found + 2.0**-12 * (np.linspace(-1, 1, found.size) - found)).astype(np.float32)
    return levels

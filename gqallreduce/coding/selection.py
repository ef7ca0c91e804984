"""Exact selection of the k largest magnitudes of a range, in about one pass over it and without sorting.

A small sample guesses a floor that a little more than k values reach. One pass forms v = x + residual and keeps what
lies above the floor (the survivors); the exact k-th magnitude is then found among those few by radix histograms. If the
guess was too high, or far too low, a histogram of the whole range gives the floor. The sample decides only the time
that is taken, never the result. A short range in one part is left to one kernel call, which finds the same.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from gqallreduce import _kernels

_SAMPLE = 1 << 14
_SPARE = 4096
SMALL = _kernels.TALLEST_REGION


@dataclass
class Kept:
    """Values of a part that will be sent, those of one region after the other.

    index
        uint32, ascending, each in its region.
    value
        float32.
    counts
        int64, how many are of each region.
    flawed
        if nothing is kept since a value is not finite, and that is known by region: bool, has a region such a value?
    """

    index: np.ndarray
    value: np.ndarray
    counts: np.ndarray
    finite: bool = True
    flawed: np.ndarray | None = None

    def split(self, table) -> Kept:
        """With indices into all elements, as those of each region of another table of the same elements."""
        index, counts = self.index.copy(), np.empty(len(table), np.int64)
        _kernels.split(index, counts, table)
        return Kept(index, self.value, counts, self.finite)

    def look_for_flaws(self, x, residual, table) -> None:
        """Find out in which regions of a table a value of x + residual is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            bad = ~np.isfinite(x if residual is None else x + residual)
        before, ends = np.concatenate([[0], np.cumsum(bad)]), np.cumsum(table.sizes)
        self.flawed = before[ends] > before[ends - table.sizes]

    def of_rows(self, rows: list[int]) -> Kept:
        """Of some regions, by ascending number."""
        if len(rows) == len(self.counts):
            return self
        chosen = np.zeros(len(self.counts), bool)
        chosen[rows] = True
        mine = np.repeat(chosen, self.counts)
        finite = self.finite if self.flawed is None else not self.flawed[rows].any()
        return Kept(self.index[mine], self.value[mine], self.counts[rows], finite)


class Fresh:
    """Lends memory that is not lent elsewhere."""

    def take(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def give(self, buffer) -> None:
        """It is freed when nothing refers to it."""


class Survivors:
    """What passed the floor, part after part, in two borrowed arrays; `spans` holds (begin, count) per part."""

    def __init__(self, parts, workspace, floor: int, capacity: int):
        self.parts, self.workspace, self.floor, self.capacity = parts, workspace, floor, capacity
        self.spans: list[tuple[int, int]] = []
        self.total = 0
        self._buffers = workspace.take(4 * capacity), workspace.take(4 * capacity)
        self.index = self._buffers[0].view(np.uint32)[:capacity]
        self.value = self._buffers[1].view(np.float32)[:capacity]

    def collect(self, formed: bool):
        """Fill, or stop when there is no room. A generator: yields between kernel calls, returns whether all fitted.

        formed
            `new_residual` holds v already, from an earlier pass.
        """
        fits = True
        for part in range(len(self.parts)):
            region, x, residual, new_residual = self.parts[part]
            if formed and new_residual is not None:
                x, residual, new_residual = new_residual, None, None
            if fits:
                room = self.capacity - self.total
                index, value = self.index[self.total :], self.value[self.total :]
                count = _kernels.collect(x, residual, new_residual, self.floor, index, value, region.streams)
                fits = count <= room
                self.spans.append((self.total, min(count, room)))
                self.total += min(count, room)
            elif new_residual is not None:
                _kernels.add_finite(x, residual, new_residual)
            yield
        return fits

    def kept(self) -> list[Kept]:
        """By part; after that, indices are those in regions."""
        found = []
        for region, (at, count) in zip(self.parts.regions, self.spans, strict=True):
            found.append(kept_of(region, self.index[at : at + count], self.value[at : at + count]))
        return found

    def release(self) -> None:
        for buffer in self._buffers:
            self.workspace.give(buffer)


def kept_of(region, index, value, finite: bool = True) -> Kept:
    """The kept values of a part, whose indices in the part become those in its regions."""
    table = region.table
    counts = np.empty(len(table), np.int64)
    _kernels.split(index, counts, table)
    return Kept(index, value, counts, finite)


class Selection(list):
    """One Kept per part; `release()` gives the memory back."""

    def __init__(self, kept: list[Kept], release):
        super().__init__(kept)
        self.release = release
        firsts = itertools.accumulate((len(kept.counts) for kept in self), initial=0)
        self._part_from = {first: part for part, first in enumerate(firsts)}

    def of(self, piece) -> list[Kept]:
        """Of the selection from a whole vector, whose parts are extents of pieces: one Kept per extent of a piece."""
        if not piece.extents:
            return []
        part = self._part_from[piece.first]
        return self[part : part + len(piece.extents)]


class SmallSelection(list):
    """The selection from a small range of one part: one Kept, by regions of all its tensors."""

    def __init__(self, kept: Kept, span):
        super().__init__([kept])
        self._first: dict[int, int] = {}  # tensor -> its first row
        for row, tensor in enumerate(span.table.segments.tolist()):
            self._first.setdefault(tensor, row)

    def release(self) -> None:
        """No memory is to be given back."""

    def of(self, piece) -> list[Kept]:
        """One Kept for several small tensors together, else one per region of a piece."""
        rows = [
            self._first[part.tensor] + part.first + number
            for part in piece.parts
            for number in range(len(part.regions))
        ]
        together = [rows] if len(piece.parts) > 1 else [[row] for row in rows]
        return [self[0].of_rows(each) for each in together]


def select_largest(parts, pi: int, separate: bool):
    """Keep exactly max(1, n // pi) nonzero values of a tensor, fewer if fewer exist; ties in memory order.

    A generator that yields between kernel calls; returns a Selection. `parts` is a Parts; its `new_residual`, where
    given, holds v afterwards. With a value that is not finite nothing is kept, and the parts that hold one say so.
    """
    elements = sum(region.size for region in parts.regions)
    if parts.whole is not None or (len(parts) == 1 and elements <= SMALL):
        return _select_at_once(parts, pi, separate)
    return (yield from select_most(parts, min(max(1, elements // pi), elements), separate))


def select_most(parts, k: int, separate: bool = False):
    """As select_largest, exactly k <= the number of values, fewer if fewer are nonzero."""
    elements = sum(region.size for region in parts.regions)
    floor, capacity = (1, elements) if separate else _sampled_floor(parts, k, elements)
    survivors = Survivors(parts, parts.workspace, floor, capacity)
    complete = yield from survivors.collect(formed=False)
    if not complete or (survivors.total < k and floor > 1):
        survivors.release()
        floor, capacity = yield from _exact_floor(parts, k)
        survivors = Survivors(parts, parts.workspace, floor, capacity)
        yield from survivors.collect(formed=True)
    if not _kernels.all_finite(survivors.value[: survivors.total]):
        return flawed(survivors)
    choose = _keep_separate if separate else keep_joint
    choose(survivors, k)
    return Selection(survivors.kept(), survivors.release)


def _select_at_once(parts, pi: int, separate: bool) -> SmallSelection:
    """From each tensor within itself, in one kernel call."""
    span, x, residual, new_residual = parts[0]
    whole = _kernels.Regions([(x.size, 0, 1, 1, 0)]) if parts.whole is None else parts.whole.table
    kept = select_regions(x, residual, new_residual, whole, pi, separate)
    if len(whole) > 1:  # indices in tensors become those in all
        sizes = whole.sizes
        kept.index += np.repeat(np.cumsum(sizes) - sizes, kept.counts).astype(np.uint32)
    if len(span.table) > 1:
        kept = kept.split(span.table)
    if not kept.finite:
        kept.look_for_flaws(x, residual, span.table)
    return SmallSelection(kept, span)


def select_regions(x, residual, new_residual, table, pi: int, separate: bool) -> Kept:
    """Of each region of a table by itself, in one kernel call; regions have at most SMALL elements."""
    sizes = table.sizes
    room = int(np.minimum(sizes, np.maximum(1, sizes // pi)).sum())
    index, value, counts = np.empty(room, np.uint32), np.empty(room, np.float32), np.empty(len(table), np.int64)
    count = _kernels.select_regions(x, residual, new_residual, index, value, counts, table, pi, separate)
    if count < 0:
        return Kept(index[:0], value[:0], np.zeros_like(counts), finite=False)
    return Kept(index[:count], value[:count], counts)


def _sampled_floor(parts, k: int, elements: int) -> tuple[int, int]:
    """(bits of a magnitude that, very likely, at least k and not many more values reach, how many these may be).

    Four standard deviations of a sample's count are left on either side: where k is a small share of a long vector the
    upper ones are most of the room.
    """
    stride = max(1, elements // _SAMPLE) | 1  # odd: not in step with columns
    samples = []
    for part in range(0, len(parts), max(1, len(parts) // 64)):
        _, x, residual, _ = parts[part]
        samples.append(np.abs(x[::stride] if residual is None else x[::stride] + residual[::stride]))
    sample = np.concatenate(samples) if samples else np.zeros(0, np.float32)
    expected = k * len(sample) / max(elements, 1)
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    most = math.ceil((rank + 4 * math.sqrt(rank)) * elements / max(len(sample), 1))
    capacity = min(elements, max(2 * k + _SPARE, most))
    if rank >= len(sample):
        return 1, capacity
    magnitude = np.partition(sample.view(np.uint32), len(sample) - rank)[len(sample) - rank]
    return max(1, int(magnitude)), capacity


def _exact_floor(parts, k: int):
    """(bits of a histogram bin's lower edge that at least k values reach, how many do)."""
    counts = np.zeros(4096, np.int64)
    for part in range(len(parts)):
        _, x, residual, new_residual = parts[part]
        v, e = (x, residual) if new_residual is None else (new_residual, None)
        _kernels.histogram(v, e, counts)
        yield
    reached = np.cumsum(counts[::-1])[::-1]
    enough = np.flatnonzero(reached >= k)
    bin_ = int(enough[-1]) if len(enough) else 0
    return max(1, bin_ << 19), int(reached[bin_])


def flawed(survivors: Survivors) -> Selection:
    """Of values that are not all finite: nothing, and which parts have one that is not."""
    found = Selection(survivors.kept(), survivors.release)
    for kept in found:
        kept.finite = bool(_kernels.all_finite(kept.value))
        kept.index, kept.value, kept.counts = kept.index[:0], kept.value[:0], np.zeros_like(kept.counts)
    return found


def keep_joint(survivors: Survivors, k: int) -> None:
    """Of these the k largest magnitudes, or all if they are fewer."""
    k = min(k, survivors.total)
    if k:
        bits, above = _kernels.kth(survivors.value[: survivors.total], k, 0)
        _keep(survivors, bits, bits, np.array([k - above, 0], np.int64), joint=True)


def _keep_separate(survivors: Survivors, k: int) -> None:
    """Split k in proportion to the counts of each sign, rounded down; the rest goes to the larger next magnitude."""
    value = survivors.value[: survivors.total]
    positives, negatives = _kernels.count_signs(value)
    k = min(k, positives + negatives)
    if not k:
        return
    share = [k * count // (positives + negatives) for count in (positives, negatives)]
    if sum(share) < k:
        share[_next_sign(value, share, (positives, negatives))] += 1
    thresholds, ties = [], np.zeros(2, np.int64)
    for which, sign in enumerate((1, -1)):
        bits, above = _kernels.kth(value, share[which], sign) if share[which] else (0xFFFFFFFF, 0)
        thresholds.append(bits)
        ties[which] = share[which] - above
    _keep(survivors, *thresholds, ties, joint=False)


def _next_sign(value: np.ndarray, share: list[int], counts: tuple[int, int]) -> int:
    """0 or 1: the sign whose next candidate is larger; in a tie, the one that comes first in memory."""
    candidates = []
    for which, sign in enumerate((1, -1)):
        if share[which] < counts[which]:
            bits, above = _kernels.kth(value, share[which] + 1, sign)
            same = np.flatnonzero(value == sign * np.uint32(bits).view(np.float32))
            candidates.append((-bits, int(same[share[which] - above]), which))
    return min(candidates)[2]


def _keep(survivors: Survivors, positive: int, negative: int, ties: np.ndarray, joint: bool) -> None:
    """Drop what is below the thresholds: every part in place, in memory order."""
    for part, (begin, count) in enumerate(survivors.spans):
        end = begin + count
        kept = _kernels.keep(
            survivors.index[begin:end], survivors.value[begin:end], count, positive, negative, ties, joint
        )
        survivors.spans[part] = begin, kept

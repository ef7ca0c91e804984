"""Selection by the threshold of an earlier call, which needs no search; and the borders that divide what was selected.

Source: Li and Hoefler, Near-optimal sparse allreduce for distributed deep learning (Ok-Topk), PPoPP 2022; differs:
where more than 4/3 k values reach the threshold, or fewer than k / 2, exactly k are selected in that call, so that a
message is bounded and a threshold that has become unfit is not kept.
"""

from __future__ import annotations

import itertools

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.selection import Selection, Survivors, flawed, keep_joint, select_most
from gqallreduce.coding.union import regions_of

_STEP = np.float32(1.012)


def most_reused(k: int) -> int:
    """How many values are selected at most: 4/3 k, rounded up."""
    return -(-4 * k // 3)


def most_collected(k: int) -> int:
    """How many may reach a threshold, so that the k largest are found among these, without another pass."""
    return 8 * k + 4096


def select_reusing(parts, k: int, threshold: float):
    """What reaches the threshold, or exactly the k largest. A generator like select_most's.

    Returns (Selection, the threshold of the next call). `threshold`: 0 if none is known.
    """
    if threshold > 0:
        survivors = Survivors(parts, parts.workspace, int(np.float32(threshold).view(np.uint32)), most_collected(k))
        if (yield from survivors.collect(formed=False)) and 2 * survivors.total >= k:
            if not _kernels.all_finite(survivors.value[: survivors.total]):
                return flawed(survivors), threshold
            if survivors.total <= most_reused(k):
                return Selection(survivors.kept(), survivors.release), adjusted(threshold, survivors.total, k)
            keep_joint(survivors, k)
            selected = Selection(survivors.kept(), survivors.release)
            return selected, smallest(selected)
        survivors.release()
    selected = yield from select_most(parts, k)
    return selected, smallest(selected)


def adjusted(threshold: float, count: int, k: int) -> float:
    """Of the next call, if so many values have reached this one."""
    if 3 * count < 2 * k:
        return float(np.float32(threshold) / _STEP)
    return float(np.float32(threshold) * _STEP) if 4 * count > 5 * k else threshold


def smallest(selected: Selection) -> float:
    """Magnitude of what was selected, 0 if that is nothing."""
    return float(min((np.abs(kept.value).min() for kept in selected if len(kept.value)), default=0))


def borders_of(selected: Selection, regions, pieces: int) -> np.ndarray:
    """int64[pieces - 1]: where pieces with as many selected values each begin; equal pieces if nothing is selected.

    regions
        or Spans: those of the selection, in order, of all elements.
    """
    each = [region for part in regions for region in regions_of(part)]
    counts = list(itertools.chain.from_iterable(kept.counts.tolist() for kept in selected))
    starts = np.repeat(np.array([region.start for region in each], np.int64), counts)
    elements = sum(region.size for region in each)
    if not len(starts):
        return np.array([piece * elements // pieces for piece in range(1, pieces)], np.int64)
    places = starts + np.concatenate([kept.index for kept in selected])
    return places[[piece * len(places) // pieces for piece in range(1, pieces)]]

"""One half of an allreduce as a call: what it is given and returns, and what becomes of residuals and steps.

A key's residual is that of the whole vector on each rank. A reduce-scatter takes all of it, and leaves nothing where
the rank's own part is, whose sum it has exactly. An allgather takes and replaces that part alone. So the two in turn
do with a key what one allreduce does, and they use the random bits of one step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Form, chunks_of, columns
from gqallreduce.coding.order import axes
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.arguments import Given, integer
from gqallreduce.runtime.flaws import Flaws
from gqallreduce.runtime.packets import gather
from gqallreduce.scheduling.halves import why_not
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER
from gqallreduce.scheme import AUTO, DENSE, MPI_SUM

if TYPE_CHECKING:
    from gqallreduce.scheme import Scheme

SCHEDULE = "direct"  # of a scheme that names none


class Half:
    """A reduce-scatter or an allgather of one call.

    which
        REDUCE_SCATTER or ALLGATHER.
    counts
        elements of each rank's part; of a group a list of these, or None.
    shard
        of an allgather, this rank's part, where it is not in the buffer yet; of a group a list.
    """

    def __init__(self, which: str, counts=None, shard=None):
        self.which, self.counts, self.shard = which, counts, shard
        self._parts: list[slice] = []
        self._given: list[Buffer | None] = []

    @property
    def scatters(self) -> bool:
        return self.which == REDUCE_SCATTER

    # --- before the call ---

    def fit(self, given: Given, allreduce) -> Given:
        """The arguments of the call, checked as those of a half; ValueError, TypeError for what does not fit."""
        require(allreduce.scheme, self.which, allreduce.plans.topology)
        if not self.scatters and allreduce.average:
            raise ValueError(
                "allgather() of an object that averages: what it sends is no sum; make another object, average=False"
            )
        counts = self._counts_of_each(len(given.forms))
        pairs = zip(given.forms, counts, strict=True)
        forms = tuple(form._replace(counts=counted(each, form, allreduce.size)) for form, each in pairs)
        if forms != given.forms:
            given.forms, given.agreed = forms, None
        for form, target in zip(forms, given.targets, strict=True):
            if form.factors is not None or target.memory.ndim != 1:
                raise ValueError("a half of an allreduce takes arrays without gaps in memory, got one with gaps")
        self._parts = [part_of(allreduce.scheme.codec, form, allreduce.size, allreduce.rank) for form in forms]
        self._look_at_shards(given)
        return given

    def _counts_of_each(self, keys: int) -> list:
        if self.counts is None:
            return [None] * keys
        nested = len(self.counts) > 0 and (self.counts[0] is None or isinstance(self.counts[0], (list, tuple)))
        found = list(self.counts) if nested else [self.counts]
        if len(found) != keys:
            raise ValueError(f"got counts of {len(found)} buffers, expected those of {keys}")
        return found

    def _look_at_shards(self, given: Given) -> None:
        shards = list(self.shard) if isinstance(self.shard, (list, tuple)) else [self.shard] * len(given.forms)
        if len(shards) != len(given.forms):
            raise ValueError(f"got {len(shards)} shards, expected {len(given.forms)}, one of each key")
        self._given = []
        for shard, target, part in zip(shards, given.targets, self._parts, strict=True):
            found = None if shard is None else Buffer(shard)
            if found is not None:
                size, expected = found.size, part.stop - part.start
                if (size, found.dtype) != (expected, target.dtype):
                    raise ValueError(f"got a shard of {size} {found.dtype}, expected {expected} {target.dtype} as out")
                if found.device != target.device or found.memory.ndim != 1:
                    raise ValueError(f"got a shard in other memory, or with gaps; expected one {target.device}")
            self._given.append(found)

    # --- in the call ---

    def take_shards(self, targets: list[Buffer]) -> None:
        """This rank's part of each buffer := what was given."""
        for shard, target, part in zip(self._given, targets, self._parts, strict=True):
            if shard is not None and part.stop > part.start:
                target.arithmetic.copy(target.memory[part], shard.memory)

    def begin(self, states: dict, memory, arithmetic) -> None:
        """States after the call: their steps, and of the new residuals what the call does not write."""
        for (key, state), part in zip(list(states.items()), self._parts, strict=True):
            before = memory.get(key)
            if self.scatters:
                states[key] = state.replaced(halfway=True)
            elif before is not None and before.halfway:
                states[key] = state.replaced(step=before.step)
            if state.residual is not None and not self.scatters:
                for rest in (slice(0, part.start), slice(part.stop, len(state.residual))):
                    if rest.stop > rest.start:
                        arithmetic.copy(state.residual[rest], state.spare[rest])

    def parts(self, result, targets: list[Buffer]):
        """What the call returns: of a reduce-scatter this rank's part of each buffer."""
        if not self.scatters:
            return result
        if isinstance(result, (list, tuple)):
            return [part_view(*each) for each in zip(result, targets, self._parts, strict=True)]
        return part_view(result, targets[0], self._parts[0])


class _Verdict:
    """What all ranks learn at the end of a reduce-scatter, in which a message goes to one rank alone."""

    def __init__(self, plan, step: int, signature: int, flaw, spent):
        self.plan, self.step, self.signature, self.spent = plan, step & frame.LARGEST_STEP, signature, spent
        self.flaws = Flaws(None)
        if flaw is not None:
            self.flaws.note((0, 0), flaw)


def first_of_all(plan, step: int, signature: int, flaw, spent):
    """A stage; the first flaw of any rank, None if there is none."""
    verdict = _Verdict(plan, step, signature, flaw, spent)
    yield from gather(verdict, np.empty(0, np.uint8))
    return verdict.flaws.first


# --- which schemes have halves, and where they are cut ---


def require(scheme: Scheme, which: str, topology) -> None:
    """ValueError if a scheme has no such half."""
    schedule = scheme.schedule or SCHEDULE
    if schedule in (AUTO, DENSE, MPI_SUM):
        raise ValueError(f"{scheme}: {schedule} has no halves; name a schedule, as in direct/{scheme.codec.name}")
    if SCHEDULES[schedule].scatter_rounds(topology) is None:
        raise ValueError(f"{scheme}: {why_not(SCHEDULES[schedule], topology)}")
    codec = scheme.codec
    if codec.indirect:
        raise ValueError(f"{scheme}: {codec.name} sums other vectors than the buffers, so it has no halves")
    if codec.moves_borders:
        raise ValueError(f"{scheme}: it moves the borders of parts from call to call; take balance=0")
    bound = codec.bind(Form((1,), "C", "float32"), topology.size)
    selects = bound.prepare is None or bound.of_sums.prepares
    if which == ALLGATHER and (bound.of_sums.exact or codec.learns or not selects):
        raise ValueError(
            f"{scheme}: what {codec.name} sends of a sum depends on what all ranks have sent for it, so it has no "
            "allgather of its own; take a level codec such as qsgd"
        )


@lru_cache(maxsize=1024)
def _bounds(codec, form: Form, size: int) -> tuple[int, ...]:
    grid = codec.bind(form._replace(counts=None), size).grid(columns(form.shape, form.order))
    return tuple(chunks_of(form.size, size, grid, form.counts))


def part_of(codec, form: Form, size: int, rank: int) -> slice:
    """A rank's part of a vector."""
    bounds = _bounds(codec, form, size)
    return slice(bounds[rank], bounds[rank + 1])


def counted(counts, form: Form, size: int) -> tuple[int, ...] | None:
    """Checked; ValueError unless they are the elements of `size` parts of the buffer."""
    if counts is None:
        return None
    found = tuple(integer("counts", each) for each in counts)
    if len(found) != size or min(found) < 0 or sum(found) != form.size:
        raise ValueError(f"got counts {found}, expected {size} of 0 or more that add up to {form.size}")
    return found


def part_view(value, buffer: Buffer, part: slice):
    """A part of an array that a caller gave, in the order of its memory: a vector of the same kind, without a copy."""
    slowest_first = axes(len(buffer.shape), buffer.order)
    turned = value.permute(*slowest_first) if hasattr(value, "permute") else value.transpose(slowest_first)
    return turned.reshape(-1)[part]

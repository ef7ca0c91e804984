"""One half of an allreduce as a call: what it is given and returns, and what becomes of residuals and steps.

A key's residual is that of the whole vector on each rank. A reduce-scatter takes all of it, and leaves nothing where
the rank's own part is, whose sum it has exactly. An allgather takes and replaces that part alone. So the two in turn
do with a key what one allreduce does, and they use the random bits of one step.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import frame
from gqallreduce.coding.lanes import chunks_of
from gqallreduce.coding.layout import Form, columns
from gqallreduce.coding.order import axes, to_vector
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
        self.scatters = which == REDUCE_SCATTER
        self._parts: list[slice] = []
        self._views: list = []  # of a reduce-scatter, the parts that it returns
        self._given: list[tuple] = []  # of an allgather, (part of the buffer, shard) for each shard that was given

    @property
    def words(self) -> str:
        """Its name in errors."""
        return self.which.replace("_", "-")

    @property
    def written(self) -> str:
        """The argument that is written in place."""
        return "buf" if self.scatters else "out"

    # --- before the call ---

    def with_copies(self) -> Half:
        """The same with copies of what the caller may change meanwhile."""
        group = isinstance(self.shard, (list, tuple))
        shard = [_copied(each) for each in self.shard] if group else _copied(self.shard)
        return Half(self.which, copy.deepcopy(self.counts), shard)

    def fit(self, given: Given, result, allreduce) -> Given:
        """The arguments of the call, checked as those of a half; ValueError, TypeError for what does not fit.

        result
            what is written, as the caller gave it.
        """
        if given.agreed is None:  # else such a call has succeeded before
            require(allreduce.scheme, self.which, allreduce.plans.topology)
        if not self.scatters and allreduce.average:
            raise ValueError(
                "allgather() of an object that averages: what it sends is no sum; make another object, average=False"
            )
        self.counts = _to_keep(self.counts)  # a call may be looked at twice
        counts, shards = _of_each("counts", self.counts, given), _of_each("shard", self.shard, given)
        values = result if isinstance(given.name, tuple) else [result]
        forms, read, self._parts, self._views, self._given = [], [], [], [], []
        for number, (form, value) in enumerate(zip(given.forms, values, strict=True)):
            try:
                cut = counted(counts[number], form, allreduce.size)
                forms.append(form if cut == form.counts else form._replace(counts=cut))
                memory = None  # a plain array, as in the call before
                if given.arrays is None:
                    require_dense(given.targets[number])
                    memory = given.targets[number].memory
                part = part_of(allreduce.scheme.codec, forms[-1], allreduce.size, allreduce.rank)
                self._parts.append(part)
                if self.scatters:
                    self._views.append(part_view(value, form.order, memory, part))
                shard = shards[number]
                read.append(None if shard is None else _shard(shard, form.dtype, given.device, part))
                if shard is not None and part.stop > part.start:
                    place = part_view(value, form.order, None, part) if memory is None else memory[part]
                    self._given.append((place, read[-1].memory))
            except (TypeError, ValueError) as error:
                if len(given.keys) == 1:
                    raise
                raise type(error)(f"key {given.keys[number]!r} of the group: {error}") from None
        if tuple(forms) != given.forms:
            given.forms, given.agreed = tuple(forms), None
        given.written = self.written
        given.read(read)
        return given

    def fit_again(self, parts: tuple[slice, ...], forms, result) -> None:
        """What `fit` finds of plain arrays of these forms, where neither shards nor counts are given."""
        self._parts, self._given = parts, []
        if self.scatters:
            values = result if isinstance(result, (list, tuple)) else [result]
            each = zip(values, forms, parts, strict=True)
            self._views = [part_view(value, form.order, None, part) for value, form, part in each]

    # --- in the call ---

    def take_shards(self, given: Given, processor) -> None:
        """Copy the given shards into this rank's part of each buffer. They are not read any more."""
        if self._given:
            with processor.active(given.located, given.name):
                for place, shard in self._given:
                    processor.arithmetic.copy(place, shard)
        given.read([])

    def begin(self, states, memory, arithmetic) -> dict:
        """The States after the call: with their steps, and of the new residuals what the call does not write."""
        if self.scatters:
            return {key: state.halved() for key, state in states.items()}
        found = dict(states.items())
        for (key, state), part in zip(states.items(), self._parts, strict=True):
            before = memory.get(key)
            if before is not None and before.halfway:
                found[key] = state.at_step(before.step)
            if state.residual is not None:
                for rest in (slice(0, part.start), slice(part.stop, len(state.residual))):
                    if rest.stop > rest.start:
                        arithmetic.copy(state.residual[rest], state.spare[rest])
        return found

    def returned(self, result):
        """What the call returns: of a reduce-scatter this rank's part of each buffer."""
        if not self.scatters:
            return result
        return self._views if isinstance(result, (list, tuple)) else self._views[0]


def _copied(shard):
    if shard is None:
        return None
    if hasattr(shard, "clone"):
        return shard.clone()
    return shard.copy() if hasattr(shard, "copy") else np.array(shard)


def _to_keep(counts):
    """Of an iterator the tuple of what it yields; also within a list."""
    if isinstance(counts, (list, tuple)):
        return [_to_keep(each) for each in counts]
    return tuple(counts) if hasattr(counts, "__next__") else counts


def _of_each(name: str, value, given: Given) -> list:
    """What was given of each key: of a group a list, or None for none of all."""
    group, count = isinstance(given.name, tuple), len(given.keys)
    if not group:
        if name == "shard" and isinstance(value, (list, tuple)):
            raise TypeError(f"shard is a {type(value).__name__}, so of a group; expected an array, as out")
        return [value]
    if value is None:
        return [None] * count
    if name == "shard" and not isinstance(value, (list, tuple)):
        raise TypeError(f"shard is a {type(value).__name__}, expected a list of {count}, as out")
    if not hasattr(value, "__len__") or len(value) != count:
        got = f"{len(value)}" if hasattr(value, "__len__") else type(value).__name__
        raise ValueError(f"{name}: got {got}, expected one of each of the {count} keys of the group")
    return list(value)


def _shard(shard, dtype: str, device: str, part: slice) -> Buffer:
    found, expected = Buffer(shard), part.stop - part.start
    if (found.size, found.dtype) != (expected, dtype):
        raise ValueError(f"got a shard of {found.size} {found.dtype}, expected {expected} {dtype}, the part of out")
    if found.device != device:
        raise ValueError(f"the shard is {found.device}, expected {device} as out")
    require_dense(found)
    return found


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
        rest = str(scheme).replace(DENSE, "raw", 1) if schedule == DENSE else str(scheme).removeprefix(f"{schedule}/")
        raise ValueError(f"{scheme}: {schedule} has no halves; name a schedule, as in {SCHEDULE}/{rest}")
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


def has(scheme: Scheme, which: str, topology) -> bool:
    """Has it such a half?"""
    try:
        require(scheme, which, topology)
    except ValueError:
        return False
    return True


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
    if not hasattr(counts, "__iter__"):
        raise TypeError(f"counts: got {type(counts).__name__}, expected {size} integers")
    found = tuple(integer("counts", each) for each in counts)
    if len(found) != size or min(found) < 0 or sum(found) != form.size:
        raise ValueError(f"got counts {found}, expected {size} of 0 or more that add up to {form.size}")
    return found


def require_dense(buffer: Buffer) -> None:
    """ValueError for what is written, if it has gaps in memory, or is none."""
    if buffer.form.factors is not None or buffer.memory.ndim != 1:
        raise ValueError("a half of an allreduce takes arrays without gaps in memory, got one with gaps")


def part_view(value, order: str, memory, part: slice):
    """A part of an array that a caller gave, in the order of its memory: a vector without a copy, of the same kind.

    memory
        its elements as a vector, whose part is returned where the value is neither an array of NumPy or CuPy nor a
        tensor; None for a plain array of NumPy.
    """
    if type(value) is np.ndarray and order in ("C", "F"):
        return value.reshape(-1, order=order)[part]
    if isinstance(value, np.ndarray):
        return to_vector(np.asarray(value), order)[part]
    if hasattr(value, "permute"):  # of PyTorch
        turned = value.permute(*axes(value.ndim, order)) if value.ndim else value
    elif hasattr(value, "transpose") and hasattr(value, "reshape"):
        turned = value.transpose(axes(value.ndim, order))
    else:
        return memory[part]
    return turned.reshape(-1)[part]

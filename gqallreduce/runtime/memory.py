"""What is kept of a key from call to call: its form, how many calls succeeded, its residual, what its codec learned.

A State is never changed. A call works on the next State, whose residual lies in a second array, and only when the call
has succeeded does that State replace the old one. Several keys are replaced at once or not at all.
"""

from __future__ import annotations

import functools
import math
import weakref

import numpy as np

from gqallreduce import _kernels
from gqallreduce._kernels import Kept, KeptStates, NormOfStates, State
from gqallreduce.coding import arithmetic
from gqallreduce.coding.layout import Grid, Region, Span, blocks
from gqallreduce.coding.preparing import Parts
from gqallreduce.rounding import usual_arithmetic


class Norm(NormOfStates):
    """The Euclidean norm of the residuals that a call leaves, as long as it is referenced.

    It is computed when it is asked for, or before one of their arrays is used again.
    """

    __slots__ = ()

    @usual_arithmetic()
    def __call__(self) -> float:
        states = self.states
        if self.value is None:
            found = math.hypot(*[_norm(key, state) for key, state in states.items()])
            # Where another thread has computed it meanwhile, an array may have been used again since.
            if self.value is None:
                self.value, self.states = found, None
        return self.value

    def settle(self) -> None:
        """Compute it now; NaN if that fails."""
        try:
            self()
        except Exception:
            if self.value is None:
                self.value, self.states = math.nan, None


def _norm(key, state: State) -> float:
    if state.residual is None:
        return 0.0
    with state.processor.active(None, key):
        return math.sqrt(sum_of_squares(state.processor, state.residual))


def keep_learned(states, keys, learned) -> dict:
    """The States after a call, each with what its codec has learned."""
    return {key: states[key].knowing(each) for key, each in zip(keys, learned, strict=True)}


def _no_residual() -> float:
    """The norm of what calls without feedback leave."""
    return 0.0


class Memory(KeptStates):
    """The States of all keys."""

    def __init__(self):
        super().__init__(Norm, _no_residual)

    def __contains__(self, key) -> bool:
        """Is there a residual for the key?"""
        state = self.get(key)
        return state is not None and state.residual is not None

    def __iter__(self):
        """Keys with a residual, sorted."""
        return iter(sorted(key for key, state in self.states.items() if state.residual is not None))

    @property
    def states(self) -> dict:
        """key -> State of all, those of a step that is not over yet included."""
        return self.kept.as_dict() | (self.kept_in_step.as_dict() if self.kept_in_step else {})

    def residual(self, key: str):
        """The residual."""
        return self._state_of(key).residual

    def processor_of(self, key: str):
        """The processor in whose memory the residual lies."""
        return self._state_of(key).processor

    def norm(self, key: str) -> float:
        return _norm(key, self._state_of(key))

    def _state_of(self, key: str) -> State:
        if key not in self:
            raise KeyError(key)
        return self.get(key)

    # --- the next State ---

    def next_alone(self, key, form, processor, norm: weakref.ref) -> State:
        """The State of one key after a call, with feedback."""
        return self._after(key, self._before(key, form, processor), norm)

    def _before(self, key, form: tuple, processor) -> State:
        """The State of a key, with a residual in the memory of this processor."""
        before = self.get(key)
        if before is None or before.residual is None:
            zeros = processor.zeros(math.prod(form[0]))
            return (before or State(form)).replaced(residual=zeros, processor=processor)
        if before.processor is not processor:
            here = processor.adopt(before.processor.on_host(before.residual))
            return before.replaced(residual=here, spare=None, processor=processor, spare_norm=None)
        return before

    def zeroed(self, key: str) -> State:
        """The State after a flush: the same, with a residual of zeros."""
        before = self._state_of(key)
        after = self._after(key, before)
        after.residual[:] = 0
        return after.replaced(step=before.step)

    def scaled(self, key: str, factor: float) -> State:
        """The State with the residual times a factor. ValueError if a value would leave float32."""
        before = self._state_of(key)
        after, arithmetic = self._after(key, before).replaced(step=before.step), before.processor.arithmetic
        with before.processor.active(None, key), np.errstate(over="ignore"):
            arithmetic.multiply(before.residual, factor, after.residual)
        if not math.isfinite(_norm(key, after)):
            raise ValueError(f"factor: got {factor!r}, by which the residual of {key!r} leaves float32")
        return after

    def _after(self, key, before: State, norm: weakref.ref | None = None) -> State:
        if before.spare is None or (self.kept_in_step is not None and before.spare is self._committed_residual(key)):
            zeros = before.processor.zeros(len(before.residual))
            before = before.replaced(spare=zeros, spare_norm=None)
        return before.after(norm)

    def _committed_residual(self, key):
        """What the end of a step may have to go back to."""
        committed = self.kept.get(key)
        return None if committed is None else committed.residual

    def forget(self, key) -> None:
        """Nothing of this key is kept from now on."""
        self.kept.forget(key)

    def holds(self, states, for_good: bool = False) -> bool:
        """Have these States been committed? `for_good`: not only until the end of a step."""
        return (self.kept if for_good or self.kept_in_step is None else self.kept_in_step).holds(states)

    # --- several calls as one ---

    @property
    def staging(self) -> bool:
        return self.kept_in_step is not None

    def stage(self) -> None:
        """Keep what is committed from now on apart, until `unstage`."""
        self.kept_in_step = Kept()

    def unstage(self, keep: bool) -> None:
        """All that was committed since `stage` takes effect, or nothing of it."""
        if keep:
            self.kept.update(self.kept_in_step)
        dropped = () if keep else self.kept_in_step.norms()
        self.kept_in_step = None
        for norm in dropped:  # computed now, since their arrays will be used again
            if (kept := norm()) is not None:
                kept.settle()

    @property
    def staged(self) -> dict:
        """key -> State of what was committed since `stage`."""
        return self.kept_in_step.as_dict()

    @property
    def staged_steps(self) -> list[tuple]:
        """(key, step) of what was committed since `stage`, by key: ranks may have committed in another order."""
        return sorted((repr(key), state.step) for key, state in self.staged.items())


@functools.lru_cache(4096)
def _blocks_of(size: int) -> Span:
    grid = Grid(1)
    return Span([Region(begin, end - begin, grid, size) for begin, end in blocks(0, size, grid)])


def sum_of_squares(processor, x) -> float:
    """The sum of x * x: of each block by the sum rule, blocks in order, so alike on all processors.

    Not by BLAS: its threads spin into the next call.
    """
    if not x.size:
        return 0.0
    span = _blocks_of(x.size)
    if processor.arithmetic is arithmetic:  # the host's: all blocks at once
        return sum(_kernels.measure(x, None, True, span.table)[1].tolist())
    parts = Parts(processor.extents(span.regions), lambda part: (x[part.start : part.start + part.size], None, None))
    return sum(squares for _, squares, _ in processor.arithmetic.measure(parts, squares=True))

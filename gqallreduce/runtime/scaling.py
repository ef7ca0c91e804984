"""Residuals multiplied by a number, of one key or of all: on all ranks alike, or on none."""

from __future__ import annotations

import math
from numbers import Real

from gqallreduce.runtime.arguments import plain_key
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.transport.agreement import agree


def require_factor(factor) -> None:
    """ValueError for what residuals cannot be multiplied by."""
    if isinstance(factor, bool) or not isinstance(factor, Real) or not math.isfinite(factor):
        raise ValueError(f"factor: got {factor!r}, expected a finite number")


def scale_memory(call, allreduce, factor: float, key: str | None):
    """The stages of `Allreduce.scale_memory`, of its object."""
    memory = allreduce.memory
    try:
        require_factor(factor)
        keys = list(memory) if key is None else [plain_key(key, allreduce.scheme)]
        forms = [allreduce.form_of(each) for each in keys]
        states = {each: memory.scaled(each, float(factor)) for each in keys}
    except Exception as error:
        yield from join_invalid(call, allreduce, error)
    if allreduce.size > 1:
        steps = tuple(memory.get(each).step for each in keys)
        named = "scale_memory", float(factor), *zip(keys, forms, strict=True)
        yield from agree(call.link, allreduce.plans.hashes(named, allreduce.seed), (allreduce.number, steps), 0)
    call.states = states
    memory.commit(states)

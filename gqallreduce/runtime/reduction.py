"""One call of an Allreduce, as stages: check its arguments, agree, carry an Operation out, and let it take effect.

Also what other calls of an object have in common with it: how they carry an Operation out, and how a rank whose own
call is invalid takes part.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce.coding import frame
from gqallreduce.errors import NonFiniteError
from gqallreduce.runtime import arguments
from gqallreduce.runtime.operation import Operation
from gqallreduce.runtime.plans import Agreed
from gqallreduce.stats import Spent
from gqallreduce.transport.agreement import agree, compare_replicas
from gqallreduce.transport.call import Call, Finished
from gqallreduce.transport.dense import Dense, dense_on
from gqallreduce.transport.exchange import MEASURE, Largest


def reduce(call: Call, allreduce, buf, key, out):
    """The stages of `Allreduce.__call__` and `start`, of their object."""
    began = perf_counter()
    call.result = buf if out is None else out
    allreduce.begun += 1
    verify = allreduce.verify and allreduce.begun % allreduce.verify == 0
    try:
        key = arguments.plain_key(key, allreduce.scheme)
        source, target = _buffers(call, allreduce, buf, key, out)
        dropped = _require_free(allreduce, key, source, target) if allreduce.home.unclaimed else []
        for other in dropped:
            yield Finished(other)
        if dropped:
            source, target = _buffers(call, allreduce, buf, key, out)
        if allreduce.unheard:
            _raise_unheard(allreduce)
    except Exception as error:
        yield from join_invalid(call, allreduce, error)
    place, processor = (key, *source.form), allreduce.processors.of(source)
    agreed = yield from _agreed(call, allreduce, place, source.located is not None)
    spent = Spent(agreed.what, agreed.why)
    form = None if key is None else place[1:]
    owed, after = None, allreduce.memory.counted(key, form)
    step = after.step - 1
    if allreduce.scheme.feedback:
        with processor.active(source.located, key):
            owed, after = allreduce.memory.next(key, form, source.size, processor)
    vectors = source, target, owed, after.residual
    if agreed.dense:
        dense = Dense(call.link, call, allreduce.processors.host.workspace, agreed.signature, allreduce.average)
        flaw = yield from dense_on(processor, dense, *vectors, spent)
    else:
        plan = allreduce.plans.plan(agreed, processor)
        flaw = yield from carry_out(call, plan, vectors, key, agreed, step, spent)
    if flaw is not None:
        raise NonFiniteError(None if flaw[0] == frame.NO_RANK else flaw[0], key, flaw[1])
    if verify:
        yield from compare_replicas(call.link, agreed.signature, processor.on_host(target.array))
    allreduce.plans.remember(place, agreed)
    spent.wait, spent.total = call.wait, perf_counter() - began
    call.states = {key: after}
    allreduce.memory.commit(call.states)
    allreduce.account(spent, source.nbytes, after)


def carry_out(call: Call, plan, vectors, key, agreed: Agreed, step: int, spent: Spent):
    """The stages of an Operation on (source, target, owed, owing); its first flaw, or None."""
    operation = Operation(plan, *vectors, key, agreed.stream, step, agreed.signature, spent)
    try:
        call.data = operation
        number = operation.measure()
        if number is not None:
            asked = Largest(plan.rank, plan.size, MEASURE, np.array([number]), agreed.signature)
            yield asked
            operation.agreed(float(asked.found[0]))
        yield operation
        return operation.flaw
    finally:
        operation.end()


def join_invalid(call: Call, allreduce, error: Exception):
    """This rank's own call is invalid: take part in the others' agreement, and tell them. Stages; raises error."""
    call.invalid = error
    if allreduce.size > 1:
        yield from agree(call.link, None, 0, 0)
    call.known_to_all = True
    raise error


def _buffers(call: Call, allreduce, buf, key, out) -> tuple:
    """The call's Buffers, source and target; they belong to it from now on."""
    known = allreduce.memory.get(key)
    source, target = arguments.buffers(buf, out, key, allreduce.processors, known and known.form)
    call.held = key, source, target
    return source, target


def _require_free(allreduce, key: str | None, source, target) -> list[Call]:
    """ValueError if the key, or memory of the buffers, belongs to a call whose request is not waited for yet.

    Returns calls to be finished first: those whose request was dropped.
    """
    dropped = []
    for other in list(allreduce.home.unclaimed):
        if other.held is None or (other.done and other.owner.unusable):  # given up, or over with its object
            allreduce.home.unclaimed.remove(other)
            continue
        mine, (used, read, written) = other.owner is allreduce, other.held
        overlaps = [
            name
            for name, each in (("buf", source), ("out", target))
            if each.overlaps(written) or (each is target and each.overlaps(read))
        ]
        if other.request() is None:
            if other.done:
                allreduce.home.unclaimed.remove(other)
            elif mine or overlaps:
                dropped.append(other)
        elif mine and used == key:
            what = "a call without a key" if key is None else f"key {key!r}"
            raise ValueError(f"{what} is under way; wait for its request before the next call")
        elif overlaps:
            raise ValueError(f"{overlaps[0]} overlaps a buffer of {other.name}, which is under way; wait for it")
    return dropped


def _raise_unheard(allreduce) -> None:
    """The error of a call whose request was dropped."""
    dropped = [call for call in allreduce.unheard if call.request is None or call.request() is None]
    for call in dropped:
        allreduce.unheard.remove(call)
        if call.request is not None:
            raise call.error


def _agreed(call: Call, allreduce, place: tuple, on_device: bool):
    """What runs: known, or compared with the other ranks' calls and decided by rank 0.

    A dense call is compared every time, since no message of it says whose it is.
    """
    plans = allreduce.plans
    known = plans.find(place)
    if known is not None and allreduce.check == "first" and not known.dense:
        return known
    agreed = known or plans.propose(place, allreduce.seed, allreduce.home.group, on_device)
    if allreduce.size == 1:
        return agreed
    names, state = plans.choices(), allreduce.memory.get(place[0])
    step = 0 if state is None else state.step
    chosen = names[(yield from agree(call.link, agreed.hashes, (allreduce.number, step), names.index(agreed.choice)))]
    return agreed if chosen == agreed.choice else plans.instead(agreed, chosen)

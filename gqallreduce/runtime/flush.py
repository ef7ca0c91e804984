"""The exact sums of residuals, which are zero afterwards: of all keys that are asked for, or of none."""

from __future__ import annotations

from time import perf_counter

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.order import to_array
from gqallreduce.errors import NonFiniteError
from gqallreduce.hashing import hash64
from gqallreduce.runtime.arguments import plain_key
from gqallreduce.runtime.operand import Operand
from gqallreduce.runtime.reduction import carry_out, join_invalid
from gqallreduce.stats import Spent
from gqallreduce.transport.agreement import agree


def flush(call, allreduce, key: str | None):
    """The stages of `Allreduce.flush`, of its object; the call's result: key -> sum, of one key or of all."""
    memory = allreduce.memory
    try:
        keys = list(memory) if key is None else [plain_key(key, allreduce.scheme)]
        forms = [allreduce.form_of(each) for each in keys]
    except Exception as error:
        yield from join_invalid(call, allreduce, error)
    if allreduce.size > 1:
        steps = tuple(memory.get(each).step for each in keys)
        hashes = allreduce.plans.hashes(("flush", *zip(keys, forms, strict=True)), allreduce.seed)
        yield from agree(call.link, hashes, (allreduce.number, steps), 0)
    names = allreduce.scheme.resolved(), *zip(keys, forms, strict=True)
    signature = hash64(
        "flush", allreduce.number, *names, allreduce.average
    )  # of all keys: their messages come in order
    call.result, spent = {}, {}
    for each in keys:
        call.result[each], spent[each] = yield from _sum(call, allreduce, each, signature)
    call.states = {each: memory.zeroed(each) for each in keys}
    memory.commit(call.states)
    for each in keys:
        allreduce.account(spent[each], call.result[each].nbytes, memory.no_norm)


def _sum(call, allreduce, key: str, signature: int):
    """Stages; the exact sum of a key's residuals, and what it cost; changes nothing."""
    state, (shape, order, _), began = allreduce.memory.get(key), allreduce.form_of(key), perf_counter()
    processor, waited = state.processor, call.wait
    with processor.active(None, key):
        total = state.residual.copy()
    agreed = allreduce.plans.exact(total.size, signature)
    spent = Spent(agreed.what, agreed.why)
    buffer, plan = Buffer.of_vector(total, processor), allreduce.plans.plan(agreed, processor)
    tensor = Operand(buffer, buffer, None, None, state.step, *agreed.streams)
    flaw, _ = yield from carry_out(call, plan, [tensor], key, agreed, spent)
    if flaw is not None:
        raise NonFiniteError(None, key, flaw[1])
    spent.wait, spent.total = call.wait - waited, perf_counter() - began
    return to_array(total, shape, order), spent

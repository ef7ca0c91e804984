"""The exact sums of residuals, which are zero afterwards: of all keys that are asked for, or of none."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding.order import to_array
from gqallreduce.errors import NonFiniteError
from gqallreduce.hashing import hash64
from gqallreduce.runtime.arguments import plain_key
from gqallreduce.stats import Spent
from gqallreduce.transport.agreement import agree


def flush(call, allreduce, key: str | None) -> dict[str, np.ndarray]:
    """What `Allreduce.flush` does with its object in a call: key -> sum, of one key or of all."""
    memory = allreduce.memory
    try:
        keys = list(memory) if key is None else [plain_key(key, allreduce.scheme)]
        forms = [allreduce.form_of(each) for each in keys]
    except Exception:
        allreduce.join_invalid(call)
        raise
    if allreduce.size > 1:
        steps = tuple(memory.get(each).step for each in keys)
        hashes = allreduce.making.hashes(("flush", *zip(keys, forms, strict=True)), allreduce.seed)
        agree(call.link, hashes, (allreduce.number, steps), 0, allreduce.timeout)
    sums, spent = {}, {}
    for number, each in enumerate(keys):
        if number:
            call.link.begin(allreduce)
        sums[each], spent[each] = _sum(call, allreduce, each)
    call.states = {each: memory.zeroed(each) for each in keys}
    memory.commit(call.states)
    for each in keys:
        allreduce.account(spent[each], sums[each].nbytes, call.states[each])
    return sums


def _sum(call, allreduce, key: str) -> tuple[np.ndarray, Spent]:
    """The exact sum of a key's residuals, and what it cost; changes nothing."""
    state, (shape, order, _), began = allreduce.memory.get(key), allreduce.form_of(key), perf_counter()
    processor = state.processor
    with processor.active(None, key):
        total = state.residual.copy()
        signature = hash64("flush", allreduce.number, key, allreduce.scheme.resolved(), shape, allreduce.average)
        kind = allreduce.making.exact(total.size, signature)
        spent = Spent(kind.what, kind.why)
        buffer, worker = Buffer.of_vector(total, processor), allreduce.making.worker(kind, processor)
        flaw = allreduce.quantized(call.link, kind, worker, buffer, buffer, None, None, state.step, spent)
        if flaw is not None:
            raise NonFiniteError(None, key, flaw[1])
        spent.total = perf_counter() - began
        return to_array(total, shape, order), spent

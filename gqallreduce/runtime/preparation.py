"""The stages of a call before its first encoding: each codec's `prepare`, with one exchange for what several tensors
ask alike.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from gqallreduce.coding.preparing import FROM_RANK, LARGEST, POOLED, SUM, Ask
from gqallreduce.errors import MismatchError
from gqallreduce.hashing import hash64
from gqallreduce.runtime import trace
from gqallreduce.transport.agreement import differing_ranks
from gqallreduce.transport.call import OneLane
from gqallreduce.transport.exchange import PREPARE, FromRank, Gather, Largest, Total
from gqallreduce.transport.progress import POLL

if TYPE_CHECKING:
    from gqallreduce.runtime.operation import Operation

_EXCHANGES = {LARGEST: Largest, SUM: Total, POOLED: Total, FROM_RANK: FromRank}


def prepare(operation: Operation, signature: int = 0):
    """Stages: kernel calls, and an exchange for what several tensors ask alike."""
    left = operation.to_prepare()
    while left:
        work = KernelCalls(operation, left)
        work.advance(None)  # of short tensors that is all
        if not work.finished:
            yield work
        left = work.asking
        yield from answer(operation, left, signature)


def answer(operation, asking: list[tuple], signature: int):
    """Stages: an exchange for what several generators ask alike. Answers take the places of their Asks.

    What a codec asks may follow from what it has learned: where that differs, messages would have other lengths than
    receives, so ranks compare first what they ask.
    """
    plan, together = operation.plan, _alike([ask for _, _, ask in asking])
    if together and plan.size > 1 and plan.codec.learns:
        asked = [
            (operator, rank, [asking[each][2].values.nbytes for each in numbers])
            for operator, rank, numbers in together
        ]
        yield from _compare(plan, hash64(asked), signature)
    for operator, rank, numbers in together:
        asked, at = [asking[number][2].values for number in numbers], 0
        found = _together(operator, asked)
        if plan.size > 1:
            exchange = _EXCHANGES[operator](plan.rank, plan.size, PREPARE, found, signature)
            exchange.root = rank
            yield exchange
            found = exchange.found
        for number, values in zip(numbers, asked, strict=True):
            steps, prepared, ask = asking[number]
            asking[number] = steps, prepared, ask.answer(found[at : at + values.size])
            at += 0 if operator == POOLED else values.size


def _compare(plan, asked: int, signature: int):
    """Stages: MismatchError, on all ranks that ask, if they do not ask the same."""
    exchange = Gather(plan.rank, plan.size, PREPARE, np.array([asked], np.uint64), signature)
    yield exchange
    if differing := differing_ranks(exchange.found[:, 0].tolist()):
        raise MismatchError("frame", differing, "their codecs have learned something else: load states of one step")


def _together(operator: str, asked: list[np.ndarray]) -> np.ndarray:
    """What one exchange carries for several tensors."""
    if len(asked) == 1:
        return asked[0]
    return np.add.accumulate(asked)[-1] if operator == POOLED else np.concatenate(asked)


def _alike(asks: list[Ask]):
    """(operation, rank, the numbers of the Asks that one exchange can answer)."""
    groups: dict[tuple, list[int]] = {}
    for number, ask in enumerate(asks):
        if not isinstance(ask, Ask):
            continue
        alike = ask.operation, ask.rank, ask.values.dtype, ask.values.size if ask.operation == POOLED else None
        groups.setdefault(alike, []).append(number)
    return [(operation, rank, numbers) for (operation, rank, _, _), numbers in groups.items()]


class KernelCalls(OneLane):
    """Lets every generator go on until it ends or asks.

    left
        (generator, what takes a Prepared, the answer that it waits for) of each.
    asking
        (generator, what takes a Prepared, Ask) of those that ask.
    """

    def __init__(self, operation: Operation, left: list[tuple]):
        self._operation, self._left = operation, deque(left)
        self.poll_at = perf_counter() + POLL
        self.asking: list[tuple] = []
        self.finished = False

    def can_advance(self) -> bool:
        return True

    def advance(self, messages) -> None:
        """Until a poll is due; at least one kernel call."""
        began = now = perf_counter()
        with self._operation.active():
            while self._left:
                steps, prepared, answer = self._left.popleft()
                try:
                    ask = steps.send(answer)
                except StopIteration as done:
                    prepared(done.value)
                else:
                    if ask is None:
                        self._left.appendleft((steps, prepared, None))
                    else:
                        self.asking.append((steps, prepared, ask))
                now = perf_counter()
                if now >= self.poll_at:
                    break
        self._operation.spent.encode += now - began
        if self._operation.trace is not None:
            self._operation.trace.add(trace.PREPARE, began, now, repr(self._operation.key), 0)
        self.finished = not self._left

"""The next call of a known key by MPI's own sum, carried out at once (repeated_stages.py)."""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.reduction import compare, go_on, steps_of
from gqallreduce.runtime.repeated_stages import Again
from gqallreduce.transport.agreement import begun, words_of_step
from gqallreduce.transport.dense import Dense, DenseSum
from gqallreduce.transport.exchange import FIRST, Largest


class KnownDense:
    """What the calls of one key have alike.

    fits
        can they be carried out at once?
    """

    def __init__(self, agreed, allreduce, plans, link):
        native = allreduce.processors.host.pool is not None and link.requests.native.sums
        self.fits = native and len(agreed.keys) == 1
        self._number, self._choices, self._agreed = allreduce.number, plans.choices(), agreed
        self._given = begun(link, agreed.hashes, None, 0).given

    def one(self) -> DenseAgain:
        """What carries one of them out."""
        return DenseAgain(self)

    def first(self, link, memory) -> tuple[Largest, np.ndarray]:
        """(the exchange by which ranks compare such a call, what it finds if they go on with it)."""
        trials = self._agreed.trials
        word = self._choices.index(self._agreed.choice) if trials is None else trials.settled
        expected = self._given.copy()
        expected[-2:] = words_of_step((self._number, steps_of(memory, self._agreed.name)))
        given = expected.copy()
        expected[1] = word
        if link.rank == 0:
            given[1] = word
        return Largest(link.rank, link.size, FIRST, given), expected


class DenseAgain(Again):
    """One such call."""

    def __init__(self, known: KnownDense):
        super().__init__()
        self._known = known

    def whole(self, repeat):
        """The agreement, and the sum; another call, if the ranks do not go on with that."""
        link, agreed, allreduce = repeat.link, repeat.agreed, repeat.allreduce
        (after,) = repeat.states.values()
        if link.size > 1:
            first, expected = self._known.first(link, allreduce.memory)
            yield first
            first.finished = True
            if first.found.tobytes() != expected.tobytes():
                if self.call is None:
                    yield None
                agreed, place = yield from compare(self.call, allreduce, allreduce.plans, repeat.given, first)
                yield from go_on(self.call, allreduce, allreduce.plans, repeat.given, agreed, place, repeat.began)
                return
            if agreed.trials is not None:
                agreed.trials.go_on()
        source = target = Buffer.of_known(repeat.arrays, 0)
        if repeat.into is not None:
            target = Buffer.of_known(repeat.into, 0)
        dense = Dense(link, repeat.number, allreduce.processors.host.workspace, agreed.signature, allreduce.average)
        found = DenseSum(dense, source, target, after.spare, after.residual, repeat.spent)
        found.load()
        if link.size > 1:
            yield found.summing()
        if found.store():
            flaw = yield from found.name_flaw()
            if self.call is None:
                yield None
            raise not_finite(flaw, agreed.keys, [source], link.size)

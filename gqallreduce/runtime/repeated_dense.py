"""The next call of a known key by MPI's own sum, carried out at once (repeated.py).

Its messages are those of any such call (reduction.py): ranks may differ in which of the two they take.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.runtime.flaws import not_finite
from gqallreduce.runtime.reduction import compare, go_on
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

    def first(self, link, step: int) -> tuple[Largest, np.ndarray]:
        """(the exchange by which ranks compare such a call, what it finds if they go on with it)."""
        trials = self._agreed.trials
        word = self._choices.index(self._agreed.choice) if trials is None else trials.settled
        expected = self._given.copy()
        expected[-2:] = words_of_step((self._number, step))
        given = expected.copy()
        expected[1] = word
        if link.rank == 0:
            given[1] = word
        return Largest(link.rank, link.size, FIRST, given), expected


class DenseAgain:
    """One such call. It has no reference to the Repeat whose it is, which has one to this."""

    def __init__(self):
        self._first = self._sum = self._summing = None

    def carry_out(self, repeat) -> bool:
        """Is it done, and all of the result finite?"""
        link, agreed, allreduce = repeat.link, repeat.agreed, repeat.allreduce
        if link.size > 1 and not self._compare(repeat):
            return False
        source = target = Buffer.of_known(repeat.arrays, 0)
        if repeat.into is not None:
            target = Buffer.of_known(repeat.into, 0)
        (after,) = repeat.states.values()
        dense = Dense(link, repeat.number, allreduce.processors.host.workspace, agreed.signature, allreduce.average)
        self._sum = DenseSum(dense, source, target, after.spare, after.residual, repeat.spent)
        self._sum.load()
        if link.size > 1 and not self._add(repeat):
            return False
        return not self._sum.store()

    def _compare(self, repeat) -> bool:
        """Do all ranks make this call, and go on with MPI's sum?"""
        (state,) = repeat.states.values()
        self._first, expected = repeat.known.dense.first(repeat.link, state.step - 1)
        repeat.running = self._first.native()
        if not repeat.run_with_others(repeat.running, FIRST, 0):
            return False
        self._first.finished, repeat.running = True, None
        if self._first.found.tobytes() != expected.tobytes():
            return False
        if repeat.agreed.trials is not None:
            repeat.agreed.trials.go_on()
        return True

    def _add(self, repeat) -> bool:
        """Have all ranks' values been summed?"""
        summing = self._sum.summing()
        if self._sum.values.size:
            self._summing, repeat.running = summing, summing.native()
            if not repeat.run_with_others(repeat.running, 0, 0):
                return False
            self._summing = repeat.running = None
        return True

    def stages(self, repeat, call):
        """What is left of it, as a Call: the Stage that the runtime carries out now, if any, and those after it."""
        allreduce = repeat.allreduce
        if self._sum is None:
            agreed, place = yield from compare(call, allreduce, allreduce.plans, repeat.given, self._first)
            yield from go_on(call, allreduce, allreduce.plans, repeat.given, agreed, place, repeat.began)
            return
        flawed = self._summing is None
        if self._summing is not None:
            yield self._summing
            flawed = self._sum.store()
        if flawed:
            flaw = yield from self._sum.name_flaw()
            raise not_finite(flaw, repeat.given.keys, repeat.given.sources, call.link.size)
        call.spent, repeat.waited = repeat.spent, call.wait
        repeat.take_effect()

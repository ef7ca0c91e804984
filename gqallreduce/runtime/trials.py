"""`auto/` measures: the first calls of a key try what can run in turn, and the fastest is kept.

A try is two calls. What the first one runs is rank 0's decision, told in its agreement, so that ranks cannot differ.
The second one runs the same without an agreement, as later calls will: memory and Plans are warm then. The time of the
first is that of its slowest rank. Of the second it is that of the rank that waited least, since ranks do not begin it
together. The shorter one counts. What was second best is tried once more: of short calls one second call tells little,
and one that was disturbed makes the best the second best. Once decided, a key's calls go on without agreement, and
count: at the same one of them all ranks begin to try again.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.transport.agreement import agree
from gqallreduce.transport.exchange import TIMES, Largest

TRY, DECIDE, GO_ON = range(3)
AGREED, REPEATED = range(2)  # the calls of a try
CALLS = 2
TRIES = 6  # so many at most, but for those that have failed
GAIN = 0.95  # of the time of the best exact sum: what loses something must take less
AGAIN_LEAST = 200  # calls
LEAST = 1e-7  # seconds, below which clocks tell nothing
SHARE = 0.01  # of the time of all later calls that is spent on tries again


class Trials(_kernels.Trials):
    """Of one name with forms. What has been chosen is in the class of C (kernels/known.pxi).

    names
        all that can be chosen, alike on all ranks.
    exact
        those of them that lose nothing.
    candidates
        those that this rank would try, as rank 0, in this order; the first also where no try succeeded.
    compared
        MPI's own sum. Ranks compare every call of it, so an agreement's time is added to that of its first one. It is
        not tried for a buffer on a device, which it would have copied to the host; what was chosen before a buffer
        moved is kept.
    source
        of the profile that the candidates follow from.
    """

    def __init__(self, names: list[str], exact: set[str], candidates: list[str], compared: str, source: str):
        super().__init__()
        self._source = source
        self._names, self._exact, self._compared = names, exact, names.index(compared)
        self._all = [names.index(each) for each in candidates]
        self._begin()

    def _begin(self) -> None:
        """All are to be tried."""
        self._next, self._added = 0, 0
        self._candidates, self._tries = [], []  # those of this series, and the tries, made at its first call
        self._agreement = np.inf  # seconds of the shortest
        self._times = np.full((CALLS, len(self._names)), np.inf)
        self.repeated = None

    def stages(
        self, call, step: tuple, hashes: tuple[int, ...], signature: int, on_device: bool, first: Largest | None = None
    ):  # fmt: skip
        """A call's agreement, and what rank 0 says of it: (choice, why, for which time it is noted or None).

        first
            of the agreement, if it is begun.
        """
        began = perf_counter()
        word, words = self._word(on_device), 3 * len(self._names)
        word = yield from agree(call.link, hashes, step, word, words, first)
        self._agreement = min(self._agreement, perf_counter() - began)
        what, number = divmod(word, len(self._names))
        if what == TRY:
            self._next += 1
            self.keep(self._names[number], "a try", 1)
            self.repeated = REPEATED, number
            return self.chosen, self.reason, (AGREED, number)
        if what == GO_ON:  # the others do as rank 0, whatever they have counted
            self.chosen, self.left = self._names[number], max(0, self.left - 1)
            return self.chosen, self.reason or "rank 0's choice", None if number == self._compared else self.repeated
        first, repeated = self._times
        # Of the last two the least of all ranks is found: no rank waits there for a late one.
        mine = np.concatenate([first, -repeated, [-self._agreement]])
        largest = Largest(call.link.rank, call.link.size, TIMES, mine, signature)
        yield largest
        first, repeated = largest.found[:-1].reshape(self._times.shape)
        first[self._compared] -= largest.found[-1]
        self._decide(np.minimum(first, -repeated), number)
        self._begin()
        return *self.go_on(), None

    def _word(self, on_device: bool) -> int:
        """What this rank says if it is rank 0: what to do, and which choice."""
        if not self._candidates:
            self._candidates = [each for each in self._all if not on_device or each != self._compared]
            self._tries = self._candidates[:]
        if self.left > 0:
            return self.settled
        for more in (self._failed, self._runner_up)[self._added :]:
            if self._next == len(self._tries):
                self._tries += more()
                self._added += 1
        what, number = DECIDE, self._candidates[0]
        if self._next < len(self._tries):
            what, number = TRY, self._tries[self._next]
        return what * len(self._names) + number

    def _failed(self) -> list[int]:
        """Those of which no call has succeeded."""
        return [number for number in self._candidates if np.isinf(self._times[:, number]).all()]

    def _runner_up(self) -> list[int]:
        """What was second best on this rank, if there is room for one more try."""
        seconds = self._times.min(axis=0)
        seconds[self._compared] += self._agreement
        found = sorted((seconds[number], number) for number in self._candidates if seconds[number] < np.inf)
        return [number for _, number in found[1:2]] if len(self._candidates) < TRIES else []

    @property
    def settled(self) -> int:
        """What rank 0 says where a choice is kept."""
        return GO_ON * len(self._names) + self._names.index(self.chosen)

    def _decide(self, seconds: np.ndarray, otherwise: int) -> None:
        """The fastest; how many calls it is kept for follows from what trying again would cost."""
        with np.errstate(invalid="ignore"):  # NaN, of a rank that tells what cannot be
            found = sorted((float(seconds[number]), number) for number in np.flatnonzero(lawful(seconds)))
        if not found:
            self.keep(self._names[otherwise], "predicted: no try has succeeded", AGAIN_LEAST)
            return
        best = found[0]
        exact = [each for each in found if self._names[each[1]] in self._exact]
        if exact and best[0] > GAIN * exact[0][0]:
            best = exact[0]
        reason = "measured: " + ", ".join(f"{self._names[each]} {1e3 * time:.3g} ms" for time, each in found)
        reason += f"; tried by the profile of {self._source}"
        once = CALLS * sum(time for time, _ in found)  # no less than it costs
        calls = max(AGAIN_LEAST, int(min(once / (SHARE * max(best[0], LEAST)), 2**31)))
        self.keep(self._names[best[1]], reason, calls)

    def note(self, place: tuple[int, int], seconds: float) -> None:
        """A call of a try has succeeded here: (which, choice). Of two that were repeated the shorter one counts."""
        self._times[place] = min(seconds, self._times[place]) if place[0] == REPEATED else seconds


def lawful(seconds: np.ndarray) -> np.ndarray:
    """Which can be times that a call took? Of a try that failed it is infinite, of a faulty rank anything."""
    return (seconds >= LEAST) & (seconds < np.inf)

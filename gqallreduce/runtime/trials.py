"""`auto/` measures: the first calls of a key try what can run in turn, and the fastest is kept.

What a call tries is rank 0's decision, told in the agreement of that call, so that ranks cannot differ. The time of a
try is that of its slowest rank. Once decided, a key's calls go on without agreement, and count: at the same one of them
all ranks begin to try again.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gqallreduce import _kernels
from gqallreduce.transport.agreement import agree
from gqallreduce.transport.exchange import TIMES, Largest

TRY, DECIDE, GO_ON = range(3)
BEST, TRIES = 3, 3  # so many of the candidates, by their first try, are tried so often: the first one finds memory cold
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
        MPI's own sum. Ranks compare every call of it, so its time has an agreement's in it. It is not tried for a
        buffer on a device, which it would have copied to the host; what was chosen before a buffer moved is kept.
    """

    def __init__(self, names: list[str], exact: set[str], candidates: list[str], compared: str):
        super().__init__()
        self._names, self._exact, self._compared = names, exact, names.index(compared)
        self._all = [names.index(each) for each in candidates]
        self._begin()

    def _begin(self) -> None:
        """All are to be tried."""
        self._next, self._rounds = 0, 0
        self._candidates, self._tries = [], []  # those of this series, and the tries, made at its first call
        self._agreement = np.inf  # seconds of the shortest
        self._times = np.full((len(self._names), TRIES), np.inf)

    def stages(
        self, call, step: tuple, hashes: tuple[int, ...], signature: int, on_device: bool, first: Largest | None = None
    ):  # fmt: skip
        """A call's agreement, and what rank 0 says of it: (choice, why, which try it is or None).

        first
            of the agreement, if it is begun.
        """
        began = perf_counter()
        word, words = self._word(on_device), 3 * TRIES * len(self._names)
        word = yield from agree(call.link, hashes, step, word, words, first)
        self._agreement = min(self._agreement, perf_counter() - began)
        word, number = divmod(word, len(self._names))
        what, turn = divmod(word, TRIES)
        if what == TRY:
            self._next += 1
            return self._names[number], f"try {turn + 1} of up to {TRIES}", (number, turn)
        if what == GO_ON:  # the others do as rank 0, whatever they have counted
            self.chosen, self.left = self._names[number], max(0, self.left - 1)
            return self.chosen, self.reason or "rank 0's choice", None
        mine = np.append(self._times, -self._agreement)  # of agreements the least: no rank waits for a late one
        slowest = Largest(call.link.rank, call.link.size, TIMES, mine, signature)
        yield slowest
        seconds = slowest.found[:-1].reshape(self._times.shape).min(axis=1)
        seconds[self._compared] -= slowest.found[-1]
        self._decide(seconds, number)
        self._begin()
        return *self.go_on(), None

    def _word(self, on_device: bool) -> int:
        """What this rank says if it is rank 0: what to do, for which time, and which choice."""
        if not self._candidates:
            self._candidates = [each for each in self._all if not on_device or each != self._compared]
            self._tries = [(number, 0) for number in self._candidates]
        if self._next == len(self._tries):
            self._add_tries()
        what, number, turn = DECIDE, self._candidates[0], 0
        if self.left > 0:
            return self.settled
        if self._next < len(self._tries):
            what, (number, turn) = TRY, self._tries[self._next]
        return (what * TRIES + turn) * len(self._names) + number

    @property
    def settled(self) -> int:
        """What rank 0 says where a choice is kept."""
        return GO_ON * TRIES * len(self._names) + self._names.index(self.chosen)

    def _add_tries(self) -> None:
        """After the first try of each: once more those that failed, then the best."""
        self._rounds += 1
        failed = [number for number in self._candidates if self._times[number, 0] == np.inf]
        if self._rounds == 1 and failed:
            self._tries += [(number, 0) for number in failed]
        elif self._rounds <= 2:
            best = sorted(self._candidates, key=lambda number: self._times[number, 0])[:BEST]
            self._tries += [(number, turn) for turn in range(1, TRIES) for number in best]
            self._rounds = 2

    def _decide(self, seconds: np.ndarray, otherwise: int) -> None:
        """The fastest; how many calls it is kept for follows from what trying again would cost."""
        found = sorted((float(seconds[number]), number) for number in np.flatnonzero(np.isfinite(seconds)))
        if not found:
            self.keep(self._names[otherwise], "predicted: no try has succeeded", AGAIN_LEAST)
            return
        best = found[0]
        exact = [each for each in found if self._names[each[1]] in self._exact]
        if exact and best[0] > GAIN * exact[0][0]:
            best = exact[0]
        reason = "measured: " + ", ".join(f"{self._names[each]} {1e3 * time:.3g} ms" for time, each in found)
        once = TRIES * sum(time for time, _ in found)  # no less than it costs
        calls = max(AGAIN_LEAST, int(min(once / (SHARE * max(best[0], LEAST)), 2**31)))
        self.keep(self._names[best[1]], reason, calls)

    def note(self, place: tuple[int, int], seconds: float) -> None:
        """A try has succeeded here."""
        self._times[place] = seconds

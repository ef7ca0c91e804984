"""The thread of the runtime beside the callers of several ranks of one process, with many calls under way.

`make sanitize-threads` runs it with a build that looks for races.
"""

import random
import threading
import time

import numpy as np
import pytest
from simd import threads

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.runtime.indirect import begin
from gqallreduce.runtime.local import LocalAllreduce, Mailbox
from gqallreduce.runtime.operand import Operand
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call
from gqallreduce.transport.progress import Progress

AT_ONCE, SECONDS = 6, 60.0
# Elements of a kernel call from which on it is shared by two threads: twice kLeastPerThread of csrc/gq/door.hpp.
SHARED = 2 * 16384
SCHEMES = (
    "direct/qsgd(bits=4)",
    "ring/raw",
    "recursive_doubling/onebit",
    "allgather/eden",
    "direct/adaptive(pi=7)",
    "ring/topk(k=50, sums=union)",
)
in_cpp = pytest.mark.parametrize("runtime", ["native"], indirect=True)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


class Place(Mailbox):
    """Calls have tags of their own, so that several may be under way."""

    def tag(self, number, lane, signature):
        return 16 * number + lane


class Rank(threading.Thread):
    """One rank: starts calls, leaves them to the thread for a while, waits for them in another order."""

    def __init__(self, local, rank, mailboxes, arrays):
        super().__init__()
        self.local, self.rank, self.arrays = local, rank, arrays
        self.draws, self.problem = random.Random(rank), None
        place = Place(rank, mailboxes, list)
        self.progress = Progress(place, place, threaded=True)

    def run(self):
        try:
            for first in range(0, len(self.arrays), AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, len(self.arrays)))
                under_way = [self.start_call(number) for number in numbers]
                self.draws.shuffle(under_way)
                for call, operation in under_way:
                    self.progress.hand_over()
                    time.sleep(self.draws.choice([0, 0, 1e-4, 2e-3]))
                    self.progress.take_back()
                    self.progress.run(call, SECONDS)
                    operation.end()
        except BaseException as problem:
            self.problem = problem

    def start_call(self, number):
        buffer = Buffer(self.arrays[number])
        plan = self.local.plan(self.rank, buffer)
        operation = begin(plan, [Operand(buffer, buffer, None, None, 0, number)], "w", number, Spent())
        call = Call(f"call {number}")
        call.number = number
        self.progress.start(call, operation.stages())
        return call, operation


def run_ranks(local, values):
    """All calls by as many threads as ranks; values[call, rank] are what is summed."""
    ranks, mailboxes = local.size, _kernels.Mailboxes()
    arrays = values.copy()
    callers = [Rank(local, rank, mailboxes, arrays[:, rank]) for rank in range(ranks)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [caller.problem for caller in callers] == [None] * ranks
    assert mailboxes.empty
    for each in arrays:
        assert len({row.tobytes() for row in each}) == 1
    error = np.abs(arrays[:, 0] - values.sum(axis=1)).max()
    assert error < (1e-5 if local.scheme.codec.name == "raw" else 20)


@in_cpp
@every_scheme
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_with_threads_of_the_runtime(runtime, scheme, ranks):
    values = np.random.default_rng(ranks).normal(size=(24, ranks, 3000)).astype(np.float32)
    run_ranks(LocalAllreduce(scheme, ranks), values)


@in_cpp
@every_scheme
@pytest.mark.parametrize("ranks", [2, 3])
def test_their_kernels_have_threads_too(runtime, scheme, ranks):
    """These are lent to one call at a time: kernel calls of other ranks do without."""
    values = np.random.default_rng(ranks).normal(size=(4, ranks, 200_000)).astype(np.float32)
    local = LocalAllreduce(scheme, ranks)
    assert local.plan(0, Buffer(values[0, 0])).widest >= SHARED
    with threads(3):
        run_ranks(local, values)

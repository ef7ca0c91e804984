"""The thread of the runtime beside the callers of several ranks of one process, with many calls under way.

`make sanitize` runs it with a build that looks for races.
"""

import random
import threading
import time

import numpy as np
import pytest

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.runtime.indirect import begin
from gqallreduce.runtime.local import LocalAllreduce, Mailbox
from gqallreduce.runtime.operand import Operand
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call
from gqallreduce.transport.progress import Progress

SIZE, CALLS, AT_ONCE, SECONDS = 3000, 24, 6, 60.0


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
            for first in range(0, CALLS, AT_ONCE):
                under_way = [self.start_call(number) for number in range(first, first + AT_ONCE)]
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


@pytest.mark.parametrize("runtime", ["native"], indirect=True)
@pytest.mark.parametrize(
    "scheme",
    [
        "direct/qsgd(bits=4)",
        "ring/raw",
        "recursive_doubling/onebit",
        "allgather/eden",
        "direct/adaptive(pi=7)",
        "ring/topk(k=50, sums=union)",
    ],
)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_with_threads_of_the_runtime(scheme, ranks):
    values = np.random.default_rng(ranks).normal(size=(CALLS, ranks, SIZE)).astype(np.float32)
    local, mailboxes = LocalAllreduce(scheme, ranks), _kernels.Mailboxes()
    arrays = values.copy()
    threads = [Rank(local, rank, mailboxes, arrays[:, rank]) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [thread.problem for thread in threads] == [None] * ranks
    assert mailboxes.empty
    for each in arrays:
        assert len({row.tobytes() for row in each}) == 1
    error = np.abs(arrays[:, 0] - values.sum(axis=1)).max()
    assert error < (1e-5 if "raw" in scheme else 20)

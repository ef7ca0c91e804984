"""Small exchanges between ranks (transport/exchange.py): by Python and by the runtime in C++, the same bytes."""

import numpy as np
import pytest

from gqallreduce import _kernels
from gqallreduce.runtime.local import Mailbox
from gqallreduce.stats import Spent
from gqallreduce.transport.call import Call
from gqallreduce.transport.exchange import FromRank, Gather, Largest, Total

RANKS = (1, 2, 3, 4, 5, 7, 8, 33)


def exchange(stages, natively):
    """Carries an exchange of all ranks out, rank r's by the runtime in C++ if natively(r): what has travelled."""
    seen = []

    def noted(source, to, tag, message):
        seen.append((source, to, tag, bytes(message)))
        return message

    mailboxes = _kernels.Mailboxes(noted)
    ranks = [Mailbox(rank, mailboxes, list) for rank in range(len(stages))]
    for rank, stage in enumerate(stages):
        if not natively(rank):
            stage.native = lambda: None
    calls = [Call("an exchange") for _ in stages]
    for rank, call, stage in zip(ranks, calls, stages, strict=True):
        rank.progress.start(call, (each for each in [stage]))
    for _ in range(1000):
        for rank in ranks:
            rank.progress.work()
        if all(call.done for call in calls):
            break
    assert all(call.done for call in calls)
    assert mailboxes.empty
    return sorted(seen)


def values_of(rank, dtype):
    generator = np.random.default_rng(rank)
    if dtype is np.float64:
        return generator.standard_normal(5)
    return generator.integers(0, np.iinfo(dtype).max, 5, dtype, endpoint=True)


KINDS = {
    "largest uint64": (Largest, np.uint64),
    "largest float64": (Largest, np.float64),
    "gather uint8": (Gather, np.uint8),
    "gather uint64": (Gather, np.uint64),
    "total": (Total, np.float64),
    "from rank": (FromRank, np.float64),
}


@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("kind", KINDS)
def test_both_runtimes_find_the_same_by_the_same_bytes(kind, size):
    made, dtype = KINDS[kind]
    values = [values_of(rank, dtype) for rank in range(size)]
    expected = {
        Largest: lambda: np.max(values, axis=0),
        Gather: lambda: np.array(values),
        Total: lambda: np.add.accumulate(values)[-1],
        FromRank: lambda: values[0],
    }[made]()
    travelled = []
    for natively in (lambda rank: False, lambda rank: True, lambda rank: rank % 2 == 0):
        stages = [made(rank, size, 3, values[rank], 17) for rank in range(size)]
        spent = [Spent() for _ in stages]
        for stage, cost in zip(stages, spent, strict=True):
            stage.spent = cost
        travelled.append(exchange(stages, natively))
        for stage in stages:
            np.testing.assert_array_equal(stage.found, expected)
        rounds = (size - 1).bit_length()
        assert [each.messages for each in spent] == [rounds] * size
        sent = sum(len(message) for *_, message in travelled[-1])
        assert sum(each.bytes_sent for each in spent) == sum(each.bytes_received for each in spent) == sent
    assert travelled[0] == travelled[1] == travelled[2]


@pytest.mark.parametrize("size", [2, 5])
def test_a_nan_is_the_largest(size):
    """As NumPy has it: no rank may take a NaN for a scale."""
    for natively in (lambda rank: False, lambda rank: True):
        stages = [Largest(rank, size, 3, np.array([np.nan if rank == 1 else 7.0, -rank])) for rank in range(size)]
        exchange(stages, natively)
        for stage in stages:
            np.testing.assert_array_equal(stage.found, [np.nan, 0.0])


def test_messages_that_must_be_cut_are_left_to_python():
    mailboxes = _kernels.Mailboxes()
    engine = _kernels.Engine(_kernels.Loopback(mailboxes, 0, limit=64), 0.0)
    for words, begins in ((8, True), (9, False)):
        largest = _kernels.NativeRounds(0, 2, np.zeros(words), gather=False)
        assert engine.exchange(largest, 0) == begins
    rows = _kernels.NativeRounds(0, 5, np.zeros((5, 5)), gather=True)  # of 40 bytes, at most two at once
    assert not engine.exchange(rows, 0)
    assert len(engine.exchanges) == 1


@pytest.mark.parametrize(
    ("values", "gather"), [(np.zeros(3, np.float32), False), (np.zeros((3, 2)), True), (np.zeros(2, np.int64), False)]
)
def test_other_values_are_refused(values, gather):
    with pytest.raises(ValueError, match="expected 2 rows, or uint64 or float64"):
        _kernels.NativeRounds(0, 2, values, gather)

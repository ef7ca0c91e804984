"""Promise 3 on whole allreduces: an unbiased codec gives an unbiased sum, on every schedule."""

import itertools

import numpy as np
import pytest
from contract import cuts
from reductions import arrays, copies
from schemes import PARTICULARS, SCHEDULE_NAMES, WHOLE, variants

from gqallreduce import Scheme
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Region
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.runtime.memory import State
from gqallreduce.transport.exchange import FIRST

UNBIASED = [text for text in WHOLE if Scheme.parse(text).codec.unbiased and not Scheme.parse(text).codec.deterministic]
FAILURE = 1e-9
TRIALS, SIZE = 250, 96


def errors(text: str, schedule: str, values) -> np.ndarray:
    """[trial, element]: result - exact sum, each trial being the next step of one key."""
    local = LocalAllreduce(f"{schedule}/{text}", len(values), average=True)
    exact = sum(each.astype(np.float64) for each in values)
    return np.array([local(copies(values), key="w")[0] * len(values) - exact for _ in range(TRIALS)], np.float64)


def widest(text: str, values) -> float:
    """More than one encoding can err by: the distance of levels for sums of twice the magnitudes."""
    codec = Scheme.parse(text).codec
    found = Region(0, SIZE, codec.grid(None), SIZE)
    assert len(cuts(found)) > 1
    top = np.full(SIZE, 2 * sum(np.abs(each).max() for each in values), np.float32)
    return PARTICULARS[codec.name].spread(codec, top, found).max()


@variants("text", UNBIASED)
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_mean_of_the_results_is_the_sum(text, schedule, ranks):
    """Azuma's inequality: errors of successive encodings are martingale differences, 2 P per element at most."""
    values = arrays(8, ranks, (SIZE,))
    wrong = errors(text, schedule, values)
    exact = sum(each.astype(np.float64) for each in values)
    step, rounds = widest(text, values), 2 * ranks
    slack = rounds * step * 2.0**-16 + 1e-5
    for weights in (np.eye(SIZE), np.ones((SIZE, 1)), np.sign(exact)[:, None]):
        projected = (wrong @ weights).mean(0)
        mass = np.abs(weights).sum(0)
        bound = step * np.sqrt(2 * rounds * mass * np.log(2 * len(mass) / FAILURE) / TRIALS)
        assert (np.abs(projected) <= bound + slack * mass).all()
    steps_are_independent(wrong)


def steps_are_independent(wrong):
    """Equal streams in two steps would give equal errors."""
    wrong = wrong - wrong.mean(0)
    following = (wrong[1:] * wrong[:-1]).sum(1)
    assert abs(following.mean()) <= 7 * following.std() / np.sqrt(len(following)) + 1e-9


@variants("text", UNBIASED)
def test_ranks_with_equal_values_round_differently(text, monkeypatch):
    """Else their errors would add up instead of cancelling."""
    sent = {}

    def record(source, to, lane, data):
        if lane < FIRST:
            sent.setdefault(to, []).append(bytes(data[frame.SIZE :]))
        return data

    monkeypatch.setattr(LocalAllreduce, "tap", staticmethod(record))
    value = arrays(8, 1, (600,))[0]
    LocalAllreduce(f"direct/{text}", 4)(copies([value] * 4))
    for payloads in sent.values():
        assert len(payloads) == 6
        assert len(set(payloads)) == 6


@variants("text", UNBIASED)
def test_alone_the_error_has_the_stated_variance(text):
    value = arrays(8, 1, (SIZE,))[0]
    codec = Scheme.parse(text).codec
    if codec.learns:
        local = LocalAllreduce(f"ring/{text}", 1)
        local(copies([value]), key="w")
        codec = codec.with_levels(local.memory[0].get("w").learned["levels"])
    stated = PARTICULARS[codec.name].variance(codec, value, Region(0, SIZE, codec.grid(None), SIZE)).sum()
    assert abs(errors(text, "ring", [value]).var(0).sum() - stated) <= 0.25 * stated


@variants("text", UNBIASED)
def test_direct_has_the_variance_of_its_encodings(text):
    """P - 1 encodings of rank-own values, with independent streams: variances add, and the owner's last one on top."""
    ranks, codec = 5, Scheme.parse(text).codec
    if codec.linear or getattr(codec, "bits", 1) < 6:
        pytest.skip("there is no last encoding, or, of a random sum, it would hide the first ones")
    values = arrays(8, ranks, (SIZE,))
    wrong = errors(text, "direct", values)
    found = Region(0, SIZE, codec.grid(None), SIZE)
    stated = PARTICULARS[codec.name].variance
    parts = np.array([stated(codec, each, found) for each in values])
    bounds = [chunk * SIZE // ranks for chunk in range(ranks + 1)]
    upper = 0.0
    for chunk, (begin, end) in enumerate(itertools.pairwise(bounds)):
        upper += parts[np.arange(ranks) != chunk][:, begin:end].sum()
    last = PARTICULARS[codec.name].spread(codec, sum(values), found) ** 2 / 4
    assert wrong.var(0).sum() <= 1.3 * (upper + last.sum())


def test_a_value_that_is_encoded_at_two_hops_is_rounded_by_other_random_bits():
    """Rank 0's 0.5 becomes 0 or 1. Where it is 0, the sum 0 + 1 is rounded to 0 or 2, each as often as the other.

    With the bits of the hop before, which were large there, it would always be 0. Hoeffding's inequality bounds chance.
    """
    buckets, bucket = 40, 512
    values = [np.zeros((buckets, bucket), np.float32) for _ in range(4)]
    values[0][:], values[1][:] = 0.5, 1
    values[0][:, 0] = 1  # the largest of each bucket is exact, so that the sum's largest is 2
    results = LocalAllreduce("recursive_doubling/qsgd(bits=2, bucket=512)", 4)(values, key="w")
    inner = results[0][:, 1:]
    assert set(np.unique(inner)) == {0, 2}
    assert abs((inner == 2).mean() - 0.75) <= np.sqrt(np.log(2 / FAILURE) / (2 * inner.size))


@variants("text", UNBIASED)
def test_steps_of_all_32_bits_give_other_results_and_the_header_says_which(text, monkeypatch):
    headers = set()

    def record(source, to, lane, data):
        if lane < FIRST:
            headers.add(frame.read(data).step)
        return data

    monkeypatch.setattr(LocalAllreduce, "tap", staticmethod(record))
    values, steps = arrays(8, 3, (SIZE,)), (0, 1, 2**8, 2**16, 2**16 + 1, 2**24, 2**31, 2**32 - 1)

    def result(step):
        local = LocalAllreduce(f"direct/{text}", 3)
        for memory in local.memory:
            memory.commit({"w": State(None, step)})
        return local(copies(values), key="w")[0].tobytes()

    made = [result(step) for step in steps]
    assert headers == set(steps)
    assert len(set(made)) == len(steps)
    assert result(2**32) == made[0]

"""Under MPI as in one process: the same bits in the result and in the residuals, the same bytes and messages."""

import numpy as np
import pytest
from ranks import TIMEOUT, Oracle, bytes_of, carrying, inputs, pairs, schemes, seen

import gqallreduce as gq
from gqallreduce.coding import lanes, layout
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.transport import progress, requests

pytestmark = pytest.mark.mpi
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def agree_with_oracle(comm, scheme, shapes, dtype="float32", order="C", steps=2, **options):
    """Run `steps` calls per shape through one object and the oracle; a key per shape."""
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options), Oracle(comm, scheme, **options)
    for shape in shapes:
        for step in range(steps):
            arrays = inputs(comm.size, shape, dtype, order, step)
            expected = oracle(arrays, key=f"{shape}")
            assert seen(allreduce, arrays[comm.rank], key=f"{shape}") == expected, (scheme, shape, step)


@pytest.fixture
def short_lanes(monkeypatch):
    """Many lanes and blocks in a small vector."""
    monkeypatch.setattr(lanes, "LANE_BYTES", 32)
    monkeypatch.setattr(layout, "BLOCK", 512)


@pytest.mark.parametrize("scheme", schemes())
def test_small_and_odd_sizes(comm, scheme):
    sizes = {0, 1, comm.size - 1, comm.size, comm.size + 1, 700}
    agree_with_oracle(comm, scheme, [(), *((size,) for size in sorted(sizes))])


@carrying(pairs(True))
def test_other_dtypes(comm, scheme):
    for dtype in DTYPES[1:]:
        agree_with_oracle(comm, scheme, [(0,), (3, 50)], dtype)


@carrying(pairs(True))
def test_matrices(comm, scheme):
    for order in "CF":
        agree_with_oracle(comm, scheme, [(40, 7), (2, 3, 31)], order=order)
    agree_with_oracle(comm, scheme, [(2, 9, 5, 3), (4, 3, 3, 40)], order="0,2,3,1")


@carrying(pairs(True))
def test_many_lanes_and_blocks(comm, scheme, short_lanes):
    shape = (60 * comm.size, 200)
    agree_with_oracle(comm, scheme, [shape])
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    allreduce(np.ones(shape, np.float32), key="w")
    plan = allreduce.plans._plans.popitem()[1]
    if allreduce.scheme.codec.indirect:
        assert plan._plans.popitem()[1].lanes > 1
        return
    codec = plan.tensors[0].codec
    if getattr(codec, "bucket", 0) >= np.prod(shape):  # one bucket, which lanes do not cut
        assert plan.lanes == 1
    else:
        assert plan.lanes == lanes.LANES_MOST


@pytest.mark.parametrize("codec", ["bfloat16", "onebit", "powersgd", "topk"])
def test_lanes_one_by_one(comm, codec, short_lanes, monkeypatch):
    """More than there are tags for, as where a rank has no memory for the messages of all lanes that could begin.

    All codecs: tests/whole/test_lanes_in_turn.py.
    """
    monkeypatch.setattr(lanes, "HELD_LEAST", 1)
    monkeypatch.setattr(lanes, "HELD_SHARE", 0.05)
    monkeypatch.setattr(lanes, "HELD_MESSAGE", 16)
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", "python" if comm.rank % 2 else "native")  # both have the same tags
    shape = (60 * comm.size, 200)
    agree_with_oracle(comm, f"allgather/{codec}/ef", [shape])
    with gq.Allreduce(f"allgather/{codec}/ef", comm=comm, timeout=TIMEOUT) as allreduce:
        allreduce(np.ones(shape, np.float32), key="w")
        plan = allreduce.plans._plans.popitem()[1]
    if comm.size > 1 and codec == "bfloat16":
        assert plan.lanes > 2 * lanes.LANES_MOST


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("codec", ["raw", "adaptive(pi=2)"])
def test_lanes_of_real_size(comm, schedule, codec):
    agree_with_oracle(comm, f"{schedule}/{codec}", [(300_001,)], steps=1)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_as_many_values_are_clipped(comm, schedule):
    scheme, arrays = f"{schedule}/terngrad(clip=1.5)", inputs(comm.size, (40, 60))
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    for number in (1, 2):
        oracle(arrays)
        counts = comm.bcast([spent.saturated for spent in oracle.local.spent] if comm.rank == 0 else None)
        allreduce(arrays[comm.rank].copy())
        assert allreduce.stats.last.saturated == counts[comm.rank] > 0
        assert allreduce.stats.total.saturated == number * counts[comm.rank]


@carrying(pairs(True))
def test_average(comm, scheme):
    for dtype in DTYPES:
        agree_with_oracle(comm, scheme, [(517,)], dtype, average=True)


@carrying(pairs(False))
def test_seeds_of_the_random_streams(comm, scheme):
    agree_with_oracle(comm, scheme, [(200,)], seed=12345)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_the_schedule_that_the_rule_chooses(comm, codec):
    agree_with_oracle(comm, codec, [(10,), (300_000,)], steps=1)


@carrying(pairs())
def test_out_leaves_buf_alone(comm, scheme):
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    for step in range(2):
        arrays = inputs(comm.size, (20, 30), step=step)
        expected = oracle(arrays)[0]
        before, mine, out = bytes_of(arrays[comm.rank]), arrays[comm.rank], np.full((20, 30), np.nan, np.float32)
        mine.flags.writeable = False
        assert allreduce(mine, key="w", out=out) is out
        assert (bytes_of(mine), bytes_of(out)) == (before, expected)


def test_out_may_be_buf(comm):
    arrays = inputs(comm.size, (100,))
    expected = Oracle(comm, "ring/qsgd/ef")(arrays)[0]
    gq.Allreduce("ring/qsgd/ef", comm=comm, timeout=TIMEOUT)(arrays[comm.rank], key="w", out=arrays[comm.rank])
    assert bytes_of(arrays[comm.rank]) == expected


@carrying(pairs(True))
def test_short_messages_change_no_bit(comm, scheme, monkeypatch):
    for most, elements in ((32, 300), (64, 1500), (1000, 9000)):
        monkeypatch.setenv("GQALLREDUCE_MAX_MESSAGE", str(most))
        agree_with_oracle(comm, scheme, [(5,), (elements,)], steps=1)


@pytest.mark.parametrize("most", ["31", str(2**31)])
def test_messages_of_no_use_are_refused(comm, most, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_MAX_MESSAGE", most)
    with pytest.raises(ValueError, match=most):
        requests.message_most()


@carrying(pairs(True))
def test_a_narrow_window_of_requests_changes_no_bit(comm, scheme, short_lanes, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_MAX_MESSAGE", "200")
    for most in (1, 4):
        monkeypatch.setattr(progress, "REQUESTS", most)
        agree_with_oracle(comm, scheme, [(comm.size * 640,)], steps=1)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_large_messages_through_a_narrow_window(comm, schedule, monkeypatch):
    """A message that is not taken at once blocks the place of the next ones, which must not become a deadlock."""
    monkeypatch.setattr(progress, "REQUESTS", 4)
    agree_with_oracle(comm, f"{schedule}/raw", [(60_000 * comm.size,)], steps=1)


@carrying(pairs(True))
def test_one_lane_at_a_time_changes_no_bit(comm, scheme, short_lanes, monkeypatch):
    from gqallreduce.runtime import plan

    monkeypatch.setattr(plan, "LIVE_LEAST", 1)
    monkeypatch.setattr(plan, "LIVE_SHARE", 0)
    agree_with_oracle(comm, scheme, [(90 * comm.size, 48)], steps=1)

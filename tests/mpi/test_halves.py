"""Reduce-scatter and allgather under MPI: their bits, residuals, shards, steps, and errors on every rank."""

import array
import time

import numpy as np
import pytest
from ranks import TIMEOUT, alike, errors, inputs

import gqallreduce as gq
from gqallreduce.coding.layout import Form
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime import reduction
from gqallreduce.runtime.halves import has
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER
from gqallreduce.scheduling.topology import apart

pytestmark = pytest.mark.mpi

HALVED = [name for name, schedule in SCHEDULES.items() if schedule.scatter_rounds(apart(4)) is not None]


def _schemes(half: str) -> list[str]:
    plain = [gq.Scheme.parse(CODECS[name].example).resolved("direct").removesuffix("/ef") for name in sorted(CODECS)]
    return [text for text in plain if has(gq.Scheme.parse(text), half, apart(4))]


BOTH, SCATTERED = _schemes(ALLGATHER), _schemes(REDUCE_SCATTER)


@pytest.fixture(params=["native", "python"])
def runtime(request, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", request.param)


def halved(schedule: str, comm) -> bool:
    return SCHEDULES[schedule].scatter_rounds(apart(comm.size)) is not None


def made(scheme: str, comm, **options) -> gq.Allreduce:
    return gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT, **options)


def shards_of(comm, shard: np.ndarray) -> np.ndarray:
    """Those of all ranks, in their order."""
    return np.concatenate(comm.allgather(np.asarray(shard)))


def test_most_codecs_have_both():
    assert {"raw", "onebit", "adaptive", "topk", "qsgd", "float16", "eden", "natural"} <= {
        gq.Scheme.parse(text).codec.name for text in BOTH
    }
    assert set(BOTH) < set(SCATTERED)
    assert {gq.Scheme.parse(text).codec.name for text in SCATTERED} >= {"terngrad", "threshold", "thc", "alq"}


@pytest.mark.parametrize("schedule", sorted(HALVED))
@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("feedback", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "ef"])
def test_in_turn_they_are_the_allreduce(comm, runtime, schedule, codec, feedback):
    """Bit for bit, over several steps: results and residuals."""
    if not halved(schedule, comm):
        pytest.skip(f"{schedule} has no halves on {comm.size} ranks")
    scheme = f"{schedule}/{codec.partition('/')[2]}" + "/ef" * feedback
    with made(scheme, comm) as whole, made(scheme, comm) as halves:
        for shape in ((0,), (1,), (comm.size + 1,), (70, 90), (40_000,)):
            key = str(shape)
            for step in range(3):
                mine = inputs(comm.size, shape, step=step)[comm.rank]
                summed, out = mine.copy(), np.full_like(mine, np.nan)
                whole(summed, key=key)
                shard = halves.reduce_scatter(mine, key=key)
                assert np.shares_memory(shard, mine) or not shard.size
                assert halves.allgather(shard, out=out, key=key) is out
                np.testing.assert_array_equal(out, summed, strict=True)
                if feedback:
                    np.testing.assert_array_equal(halves.residual(key), whole.residual(key))


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_each_conserves(comm, runtime, codec, dtype):
    """Of each, result + new residuals = given + old residuals; of two objects, as for gradients and parameters."""
    scheme, shape = codec + "/ef", (33, 50)
    with made(scheme, comm) as sums, made(scheme, comm) as parameters:
        for step in range(3):
            mine = inputs(comm.size, shape, step=step)[comm.rank].astype(dtype)
            given = mine.astype(np.float64) + (sums.residual("w") if step else 0)
            shard = sums.reduce_scatter(mine, key="w").copy()
            left = comm.allreduce(sums.residual("w").astype(np.float64))
            scale = np.abs(comm.allreduce(np.abs(given))).max()
            result = shards_of(comm, shard).reshape(shape)
            np.testing.assert_allclose(result + left, comm.allreduce(given), atol=2e-6 * comm.size * scale, rtol=0)
            before = parameters.residual("w").ravel() if step else np.zeros(mine.size, np.float32)
            own = parameters.shard(mine)
            begin = sum(comm.allgather(own.size)[: comm.rank])
            part = slice(begin, begin + own.size)
            out = np.full_like(mine, np.nan)
            parameters.allgather(shard, out=out, key="w")
            assert alike(comm, out)
            after = parameters.residual("w").ravel()
            kept = out.ravel()[part].astype(np.float64) + after[part]
            np.testing.assert_allclose(kept, shard + before[part].astype(np.float64), atol=2e-6 * scale, rtol=0)
            assert not after[: part.start].any()
            assert not after[part.stop :].any()


@pytest.mark.parametrize("codec", SCATTERED)
def test_a_reduce_scatter_is_unchanged_by_the_runtime(comm, monkeypatch, codec):
    found = []
    for runtime in ("native", "python"):
        monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
        with made(codec + "/ef", comm) as allreduce:
            for step in range(2):
                shard = allreduce.reduce_scatter(inputs(comm.size, (5000,), step=step)[comm.rank], key="w")
            found.append((shard.copy(), allreduce.residual("w")))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_shards_of_counts_are_alike_for_all_schemes(comm, runtime):
    """Uneven, and of no elements: of gradients by columns, and of parameters by buckets."""
    counts = [0 if rank % 3 == 1 else 10 * rank + 7 for rank in range(comm.size)]
    size = sum(counts)
    begin = sum(counts[: comm.rank])
    mine, exact = inputs(comm.size, (size,))[comm.rank], np.add.reduce(inputs(comm.size, (size,)))
    with made("direct/onebit/ef", comm) as sums, made("ring/qsgd(bits=8, bucket=16)", comm) as parameters:
        for _ in range(2):
            shard = sums.reduce_scatter(mine.copy(), key="w", counts=counts)
            assert len(shard) == counts[comm.rank]
            out = np.empty(size, np.float32)
            parameters.allgather(exact[begin : begin + len(shard)].copy(), out=out, key="w", counts=counts)
            np.testing.assert_allclose(out, exact, atol=np.abs(exact).max() / 100)
        assert np.shares_memory(parameters.shard(out, counts=counts), out) or not counts[comm.rank]
        other = [size, *[0] * (comm.size - 1)]
        assert len(sums.reduce_scatter(mine.copy(), key="w", counts=other)) == other[comm.rank]


def test_long_vectors_have_several_lanes(comm, runtime):
    size = 3_000_001
    counts = [size // 2, *[0] * (comm.size - 2), size - size // 2] if comm.size > 1 else [size]
    given = [np.random.default_rng([7, rank]).standard_normal(size).astype(np.float32) for rank in range(comm.size)]
    with made("direct/raw", comm) as allreduce:
        for shares in (None, counts):
            mine = given[comm.rank].copy()
            shard = allreduce.reduce_scatter(mine, key="w", counts=shares)
            total = np.add.reduce([each.astype(np.float64) for each in given])
            np.testing.assert_allclose(shards_of(comm, shard), total, atol=1e-5)
            out = np.full(size, np.nan, np.float32)
            allreduce.allgather(shard, out=out, key="w", counts=shares)
            np.testing.assert_array_equal(out, shards_of(comm, shard))


def test_groups_and_calls_under_way(comm, runtime):
    shapes, keys = [(300,), (7, 40), (0,), (5000,)], list("abcd")
    given = [inputs(comm.size, shape)[comm.rank] for shape in shapes]
    with made("direct/onebit/ef", comm) as group, made("direct/onebit/ef", comm) as alone:
        for _ in range(2):
            mine = [each.copy() for each in given]
            shards = group.start_reduce_scatter(mine, key=keys).wait()
            outs = [np.empty_like(each) for each in given]
            request = group.start_allgather(shards, key=keys, out=outs)
            assert request.wait() is outs
            started = [alone.start_reduce_scatter(each.copy(), key=key) for each, key in zip(given, keys, strict=True)]
            for key, got, request, out in zip(keys, shards, started, outs, strict=True):
                shard = request.wait()
                np.testing.assert_array_equal(shard, got)
                whole = np.empty_like(out)
                np.testing.assert_array_equal(alone.allgather(shard, out=whole, key=key), out)
                np.testing.assert_array_equal(alone.residual(key), group.residual(key))


def test_orders_outputs_and_foreign_arrays(comm):
    mine = np.asfortranarray(inputs(comm.size, (12, 35))[comm.rank])
    with made("direct/raw", comm) as allreduce:
        before, out = mine.copy("F"), np.full_like(mine, np.nan)
        shard = allreduce.reduce_scatter(mine, key="w", out=out)
        np.testing.assert_array_equal(mine, before)
        assert np.shares_memory(shard, out) or not shard.size
        total = shards_of(comm, shard)
        np.testing.assert_allclose(total, np.add.reduce(inputs(comm.size, (12, 35))).ravel("F"), atol=1e-5)
        allreduce.allgather(None, out=out, key="w")  # the shard lies in it
        np.testing.assert_array_equal(out.ravel("F"), total)
        gaps = np.zeros((12, 40), np.float32)[:, :35]
        with pytest.raises(ValueError, match="without gaps"):
            allreduce.reduce_scatter(gaps, key="gaps")


def test_what_is_not_finite_is_told_on_every_rank(comm, runtime):
    """A rank's value goes to one other rank, and yet all raise, and nothing has changed."""
    with made("direct/onebit/ef", comm) as allreduce:
        good = inputs(comm.size, (400,))[comm.rank]
        allreduce.reduce_scatter(good.copy(), key="w")
        before = allreduce.residual("w")
        bad = good.copy()
        if comm.rank == comm.size - 1:
            bad[3] = np.nan
        with pytest.raises(gq.NonFiniteError) as caught:
            allreduce.reduce_scatter(bad, key="w")
        assert (caught.value.rank, caught.value.key, caught.value.index) == (comm.size - 1, "w", 3)
        np.testing.assert_array_equal(allreduce.residual("w"), before)
        shard = allreduce.reduce_scatter(good.copy(), key="w").copy()
        if comm.rank == 0 and shard.size:
            shard[0] = np.inf
        with pytest.raises(gq.NonFiniteError) as caught:
            allreduce.allgather(shard, out=np.zeros(400, np.float32), key="w")
        assert (caught.value.rank, caught.value.index) == (0, 0)


def test_crossed_halves_are_told(comm):
    """Of a new key by the agreement, of a known one by its frames."""
    if comm.size == 1:
        pytest.skip("needs two ranks")
    with made("direct/qsgd(bits=4)", comm) as allreduce:
        mine = inputs(comm.size, (100,))[comm.rank]

        def call():
            if comm.rank:
                allreduce.reduce_scatter(mine.copy(), key="w")
            else:
                allreduce.allgather(None, out=mine.copy(), key="w")

        assert {kind for kind, _ in errors(comm, call)} == {gq.MismatchError}
        allreduce.reduce_scatter(mine.copy(), key="w")
        allreduce.allgather(None, out=mine.copy(), key="w")
        assert {kind for kind, _ in errors(comm, call)} == {gq.MismatchError}


def test_bad_arguments_are_told(comm):
    with made("direct/qsgd(bits=4)", comm) as allreduce, made("direct/raw", comm, average=True) as averaging:
        mine = inputs(comm.size, (100,))[comm.rank]
        wrong = [np.zeros(100 + 1, np.float32), np.zeros(1, np.float64), [np.zeros(3, np.float32)] * 2]
        for shard in wrong:
            with pytest.raises(TypeError if isinstance(shard, list) else ValueError, match="shard"):
                allreduce.allgather(shard, out=mine.copy(), key="w")
        for counts in ([100] * (comm.size + 1), [99, *[0] * (comm.size - 1)], [101, *[-1] * (comm.size - 1)]):
            with pytest.raises(ValueError, match="counts"):
                allreduce.reduce_scatter(mine.copy(), key="w", counts=counts)
        with pytest.raises(ValueError, match="average"):
            averaging.allgather(None, out=mine.copy(), key="w")
        shard = averaging.reduce_scatter(mine.copy(), key="w")
        np.testing.assert_allclose(
            shards_of(comm, shard), np.add.reduce(inputs(comm.size, (100,))) / comm.size, atol=1e-5
        )
    for scheme, why in {
        "recursive_doubling/raw": "recursive_doubling",
        "auto/onebit(column=512)/ef": r"auto has no halves; name a schedule, as in direct/onebit\(column=512\)/ef$",
        "dense": "dense has no halves; name a schedule, as in direct/raw$",
        "dense/ef": "dense has no halves; name a schedule, as in direct/raw/ef$",
        "powersgd(rank=2)/ef": "sums other vectors",
    }.items():
        with made(scheme, comm) as allreduce, pytest.raises(ValueError, match=why):
            allreduce.reduce_scatter(mine.copy(), key="w")
    with made("direct/terngrad", comm) as allreduce, pytest.raises(ValueError, match="no allgather of its own"):
        allreduce.allgather(None, out=mine.copy(), key="w")


def test_one_rank_with_bad_arguments_does_not_leave_the_others(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    with made("direct/qsgd(bits=4)", comm) as allreduce:
        mine = inputs(comm.size, (100,))[comm.rank]
        counts = [100, *[0] * (comm.size - 1)]
        if comm.rank == 1:
            counts[0] = 5
        expected = ValueError if comm.rank == 1 else gq.MismatchError
        with pytest.raises(expected):
            allreduce.reduce_scatter(mine.copy(), key="new", counts=counts)
        counts = [100, *[0] * (comm.size - 1)][:: 1 if comm.rank else -1]
        with pytest.raises(gq.MismatchError) as caught:
            allreduce.reduce_scatter(mine.copy(), key="other", counts=counts)
        assert caught.value.field == "shape"


def test_a_checkpoint_between_the_two(comm):
    mine = inputs(comm.size, (900,))[comm.rank]
    with made("direct/qsgd(bits=2)/ef", comm) as first, made("direct/qsgd(bits=2)/ef", comm) as second:
        shard = first.reduce_scatter(mine.copy(), key="w")
        second.load_state_dict(first.state_dict())
        one, two = np.empty_like(mine), np.empty_like(mine)
        np.testing.assert_array_equal(
            first.allgather(shard, out=one, key="w"), second.allgather(shard, out=two, key="w")
        )
        np.testing.assert_array_equal(first(mine.copy(), key="w"), second(mine.copy(), key="w"))


def test_a_step_that_is_not_kept(comm):
    mine = inputs(comm.size, (900,))[comm.rank]
    with made("direct/onebit/ef", comm) as allreduce:
        shard = allreduce.reduce_scatter(mine.copy(), key="w").copy()
        before, expected = allreduce.residual("w"), np.empty_like(mine)

        def left():
            with allreduce.step():
                allreduce.allgather(shard, out=expected, key="w")
                raise RuntimeError("not kept")

        with pytest.raises(RuntimeError, match="not kept"):
            left()
        np.testing.assert_array_equal(allreduce.residual("w"), before)
        again = allreduce.allgather(shard, out=np.empty_like(mine), key="w")
        np.testing.assert_array_equal(again, expected)


def test_the_functions_keep_residuals_apart(comm):
    mine = inputs(comm.size, (300,))[comm.rank]
    scheme = "direct/onebit/ef"
    shard = gq.reduce_scatter(mine, scheme, key="w", comm=comm, average=True)
    out = gq.allgather(shard, scheme, key="w", comm=comm, out=np.empty_like(mine))
    assert alike(comm, out)
    scattered = gq.cached(comm, scheme, average=True, half="reduce_scatter")
    gathered = gq.cached(comm, scheme, half="allgather")
    assert scattered is not gathered
    assert gq.cached(comm, scheme) is None
    begin = sum(comm.allgather(shard.size)[: comm.rank])
    assert not scattered.residual("w")[begin : begin + shard.size].any()
    with pytest.raises(ValueError, match="half='both'"):
        gq.cached(comm, scheme, half="both")
    scattered.close()
    gathered.close()


def test_bytes_and_messages_are_half(comm, runtime):
    size = 8000
    with made("direct/qsgd(bits=4)", comm) as allreduce:
        allreduce(inputs(comm.size, (size,))[comm.rank], key="w")
        whole = allreduce.stats.last
        mine = inputs(comm.size, (size,))[comm.rank]
        shard = allreduce.reduce_scatter(mine, key="w")
        one = allreduce.stats.last
        allreduce.allgather(shard, out=mine, key="w")
        two = allreduce.stats.last
        assert one.ratio == pytest.approx(whole.ratio, rel=0.2)
        assert two.messages == whole.messages - (comm.size - 1)
        assert two.bytes_sent < 0.6 * whole.bytes_sent or comm.size == 1
    assert Form((size,), "C", "float32").counts is None


def late(comm):
    """The last rank comes later than the others."""
    if comm.rank == comm.size - 1:
        time.sleep(0.2)


def filled(comm, counts, values) -> np.ndarray:
    return np.repeat(np.asarray(values, np.float32), counts)


@pytest.mark.parametrize("check", ["first", "always"])
def test_a_shard_is_read_before_the_call_returns(comm, check):
    counts = [4] * comm.size
    expected = filled(comm, counts, range(comm.size))
    with made("direct/raw", comm, check=check) as allreduce:
        for _ in range(3):
            shard, out = np.full(4, comm.rank, np.float32), np.zeros(4 * comm.size, np.float32)
            late(comm)
            request = allreduce.start_allgather(shard, out=out, key="w", counts=counts)
            shard[:] = -1
            np.testing.assert_array_equal(request.wait(), expected)


def test_lists_may_change_while_a_dropped_request_is_finished(comm):
    counts, size = [4] * comm.size, 4 * comm.size
    with made("direct/raw", comm) as allreduce:
        outs = [np.zeros(size, np.float32) for _ in range(2)]
        allreduce.allgather(None, out=outs, key=["a", "b"], counts=[counts, None])
        for _ in range(3):
            late(comm)
            dropped = allreduce.start_reduce_scatter(np.ones(size, np.float32), key="a", counts=counts)
            del dropped
            shards, mine = [np.full(4, comm.rank, np.float32) for _ in range(2)], list(counts)
            request = allreduce.start_allgather(shards, out=outs, key=["a", "b"], counts=[mine, mine])
            shards[0][:], shards[1], mine[0] = -1, None, -1
            for out in request.wait():
                np.testing.assert_array_equal(out, filled(comm, counts, range(comm.size)))


class Matrix(np.ndarray):
    """Of two dimensions always, as np.matrix."""

    def reshape(self, *shape, **options):
        return np.atleast_2d(super().reshape(*shape, **options)).view(Matrix)


def test_kinds_of_arrays(comm):
    """A view of their memory, whatever they are."""
    size = 10 * comm.size
    expected = np.full(10, comm.size, np.float32)
    with made("direct/raw", comm) as allreduce:
        for given in (array.array("f", [1] * size), memoryview(np.ones(size, np.float32))):
            shard = allreduce.reduce_scatter(given, key="w")
            np.testing.assert_array_equal(shard, expected)
            np.testing.assert_array_equal(allreduce.shard(given), expected)
            assert np.shares_memory(shard, np.asarray(given))
        shard = allreduce.reduce_scatter(np.ones((comm.size, 10), np.float32).view(Matrix), key="m")
        np.testing.assert_array_equal(shard, expected)
        assert shard.shape == (10,)
        late(comm)
        reshaped = np.ones((size, 1), np.float32)
        request = allreduce.start_reduce_scatter(reshaped, key="r")
        reshaped.shape = (size,)
        np.testing.assert_array_equal(request.wait(), expected)
        with pytest.raises(ValueError, match="without gaps"):
            allreduce.shard(np.zeros((12, 40), np.float32)[:, :35])


def test_a_key_of_none_is_saved_between_the_two(comm):
    mine = inputs(comm.size, (900,))[comm.rank]
    with made("direct/qsgd(bits=2)", comm) as first, made("direct/qsgd(bits=2)", comm) as second:
        shard = first.reduce_scatter(mine.copy())
        second.load_state_dict(first.state_dict())
        one, two = (each.allgather(shard, out=np.empty_like(mine)) for each in (first, second))
        np.testing.assert_array_equal(one, two)
        broken = first.state_dict()
        broken["keys"][None]["halfway"] = 7
        with pytest.raises(ValueError, match="halfway 7"):
            second.load_state_dict(broken)


def test_ranks_that_load_states_of_other_halves_are_told(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    mine = inputs(comm.size, (90,))[comm.rank]
    with made("direct/onebit/ef", comm) as first, made("direct/onebit/ef", comm) as second:
        shard = first.reduce_scatter(mine.copy(), key="w")
        between = first.state_dict()
        first.allgather(shard, out=np.empty_like(mine), key="w")
        second.load_state_dict(first.state_dict() if comm.rank else between)
        assert {kind for kind, _ in errors(comm, second, mine.copy(), key="w")} == {gq.MismatchError}


def test_replicas_are_compared_among_what_ranks_have_alike(comm, monkeypatch):
    compared, compare = [], reduction.compare_replicas

    def spy(*given):
        compared.append(1)
        return (yield from compare(*given))

    monkeypatch.setattr(reduction, "compare_replicas", spy)
    mine = inputs(comm.size, (30,))[comm.rank]
    with made("direct/raw", comm, verify=2) as allreduce:
        allreduce.allgather(None, out=mine, key="p")
        for _ in range(5):
            shard = allreduce.reduce_scatter(mine.copy(), key="g")
            allreduce.allgather(shard, out=mine, key="p")
    assert len(compared) == 3


def test_shards_in_memory_that_is_written_are_refused(comm):
    counts, size = [2] * comm.size, 2 * comm.size
    with made("direct/raw", comm) as allreduce:
        one, two = np.zeros(size, np.float32), np.zeros(size, np.float32)
        with pytest.raises(ValueError, match="overlap"):
            allreduce.allgather([np.ones(2, np.float32), one[:2]], out=[one, two], key=["a", "b"], counts=[counts] * 2)
        allreduce.allgather(None, out=one, key="p", counts=counts)  # the key, and the array's form, are known then
        allreduce.reduce_scatter(one, key="g", counts=counts)
        late(comm)
        under_way = np.ones(size, np.float32)
        request = allreduce.start_reduce_scatter(under_way, key="g", counts=counts)
        with pytest.raises(ValueError, match="shard overlaps a buffer of the reduce-scatter of key 'g'"):
            allreduce.allgather(under_way[:2], out=one, key="p", counts=counts)
        request.wait()


def test_errors_say_which_argument(comm):
    counts = [2] * comm.size
    size = 2 * comm.size
    with made("direct/raw", comm) as allreduce:
        one, two = np.zeros(size, np.float32), np.zeros(size, np.float32)
        fixed = np.zeros(size, np.float32)
        fixed.flags.writeable = False
        shard = np.zeros(2, np.float32)
        cases = [
            ((None, fixed, "w", counts), ValueError, "^out is read-only$"),
            ((None, [one], "w", counts), TypeError, "^out is a list"),
            ((shard, [one, two], ["a", "b"], [counts] * 2), TypeError, "shard is a ndarray, expected a list of 2"),
            (([shard], [one, two], ["a", "b"], [counts] * 2), ValueError, "shard: got 1, expected one of each"),
            ((None, [one, two], ["a", "b"], counts[:1]), ValueError, "counts: got 1, expected one of each"),
            (
                (None, [one, two], ["a", "b"], [counts, [size + 1, *counts[1:]]]),
                ValueError,
                "key 'b' of the group: got",
            ),
            ((None, one, "w", 3), TypeError, "counts: got int"),
        ]
        for (shard_, out, key, cut), kind, text in cases:
            with pytest.raises(kind, match=text):
                allreduce.allgather(shard_, out=out, key=key, counts=cut)
        as_arrays = np.array([counts, counts])
        allreduce.allgather([shard, None], out=[one, two], key=["a", "b"], counts=as_arrays)
        assert allreduce.start_allgather(None, out=one, key="a").wait() is one

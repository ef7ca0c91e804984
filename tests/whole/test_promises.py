"""Promises 1, 2 and 4 on whole allreduces: identical replicas, nothing lost, the same bits every time."""

import itertools

import noisy
import numpy as np
import pytest
from reductions import DTYPES, LAYOUTS, arrays, copies, in_printed_order, nothing_lost, residuals, same_everywhere
from schemes import RANKS, SCHEDULE_NAMES, WHOLE, sizes, variants
from simd import LEVELS, simd, threads

from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import lanes, layout
from gqallreduce.coding.layout import Form
from gqallreduce.runtime.indirect import IndirectPlan
from gqallreduce.runtime.local import LocalAllreduce

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
every_codec = variants("text", [*WHOLE, "noisy"])


@pytest.fixture(autouse=True)
def _nasty():
    noisy.enter()
    yield
    noisy.leave()


@pytest.fixture
def small_pieces(monkeypatch):
    """Several lanes and blocks, as large vectors have them."""
    monkeypatch.setattr(lanes, "LANE_BYTES", 128)
    monkeypatch.setattr(layout, "BLOCK", 100)


def steps(local, shape, number=3, **form):
    """Reduce `number` times; check identity and conservation each time; yields the results."""
    for step in range(number):
        gradients = arrays(step, local.size, shape, **form)
        before = residuals(local)
        results = local(copies(gradients), key="w")
        same_everywhere(results)
        if local.scheme.feedback:
            nothing_lost(local, gradients, before, results)
        yield results


@every_codec
@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
def test_replicas_are_identical_and_nothing_is_lost(text, schedule, ranks):
    for size in sizes(ranks):
        for _ in steps(LocalAllreduce(f"{schedule}/{text}/ef", ranks, seed=size), (size,)):
            pass


@every_codec
@every_schedule
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_lanes_and_blocks_lose_nothing_either(text, schedule, ranks):
    local = LocalAllreduce(f"{schedule}/{text}/ef", ranks)
    for _ in steps(local, (67, 71), order="F", kind="wide"):
        pass


@pytest.mark.usefixtures("small_pieces")
def test_small_pieces_really_are_lanes_and_blocks():
    """Else what uses them would test nothing."""
    laned, blocked = set(), set()
    for text in WHOLE:
        local = LocalAllreduce(f"direct/{text}", 3)
        plan = local.plan(0, Buffer(np.zeros((67, 71), np.float32)))
        if isinstance(plan, IndirectPlan):
            codec, size = plan.tensors[0].summed[0]
            plan = plan.of_vectors(codec, (size,))
        laned |= {text} if plan.lanes > 1 else set()
        blocked |= {text} if len(plan.tensors[0].extents) > 3 * plan.lanes else set()
    assert len(laned) > 0.7 * len(WHOLE)  # not where next to nothing travels, or a bucket is half the vector
    assert len(blocked) > 0.7 * len(WHOLE)


@every_codec
@every_schedule
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("average", [False, True])
def test_every_dtype_and_memory_layout(text, schedule, dtype, average):
    for order, ranks in zip(LAYOUTS, (3, 4, 5, 1), strict=True):
        for shape in ((13, 37), (4, 3, 40)):
            local = LocalAllreduce(f"{schedule}/{text}/ef", ranks, average=average)
            for results in steps(local, shape, 2, dtype=dtype, order=order):
                assert results[0].dtype == DTYPES[dtype]


@every_codec
@every_schedule
def test_scalars_and_empty_arrays(text, schedule):
    for ranks, shape in itertools.product((1, 2, 3, 5), ((), (0,), (3, 0), (1, 1, 1))):
        for _ in steps(LocalAllreduce(f"{schedule}/{text}/ef", ranks), shape):
            pass


@every_codec
@every_schedule
@pytest.mark.parametrize("order", LAYOUTS)
def test_out_gets_what_the_buffer_would_have_and_the_buffer_stays(text, schedule, order):
    for ranks, dtype in ((1, "float32"), (3, "float32"), (4, "float16"), (2, "float64")):
        given = arrays(1, ranks, (13, 37), dtype, order)
        inside, outside = (LocalAllreduce(f"{schedule}/{text}/ef", ranks) for _ in range(2))
        for _ in range(2):
            expected = inside(copies(given), key="w")
            source, out = copies(given), arrays(9, ranks, (13, 37), dtype, order)
            returned = outside(source, key="w", out=out)
            assert returned is out
            for rank in range(ranks):
                np.testing.assert_array_equal(source[rank], given[rank])
                np.testing.assert_array_equal(out[rank], expected[rank])
                np.testing.assert_array_equal(residuals(outside)[rank], residuals(inside)[rank])


@every_schedule
@variants("text", WHOLE)
def test_a_leading_dimension_changes_no_bit_and_its_gaps_are_never_written(text, schedule):
    for order, dtype in itertools.product("CF", DTYPES):
        dense, wide = (LocalAllreduce(f"{schedule}/{text}/ef", 3) for _ in range(2))
        given = arrays(2, 3, (13, 37), dtype, order)
        gappy = arrays(2, 3, (13, 37), dtype, f"{order} with gaps")
        for view in gappy:
            view.base[...] = 77
        for view, values in zip(gappy, given, strict=True):
            view[...] = values
        expected, got = dense(given, key="w"), wide(gappy, key="w")
        np.testing.assert_array_equal(got[0], expected[0])
        assert (gappy[0].base == 77).sum() >= gappy[0].base.size - gappy[0].size


# --- raw: the oracle ---


@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_raw_is_the_sum_in_the_printed_order_bit_for_bit(schedule, ranks, dtype):
    for size in (*sizes(ranks), 70001):
        given = arrays(3, ranks, (size,), dtype, kind="wide")
        expected = in_printed_order(schedule, given)
        for feedback in ("", "/ef"):
            results = LocalAllreduce(f"{schedule}/raw{feedback}", ranks)(copies(given), key="w")
            assert all(each.tobytes() == expected.tobytes() for each in results)


@every_codec
@every_schedule
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_average_is_the_sum_times_one_over_p_and_residuals_are_the_same(text, schedule, dtype):
    for ranks in (1, 3, 4, 7):
        total, mean = (LocalAllreduce(f"{schedule}/{text}/ef", ranks, average=average) for average in (False, True))
        for step in range(2):
            given = arrays(step, ranks, (130,), dtype)
            summed, averaged = total(copies(given), key="w"), mean(copies(given), key="w")
            working = total.scheme.codec.bind(Form((7,), "C", dtype)).working.type
            np.testing.assert_array_equal(averaged[0], summed[0].astype(working) * working(1 / ranks))
            np.testing.assert_array_equal(residuals(total), residuals(mean))


# --- determinism ---


def outcome(text, schedule, ranks, order=None, seed=5):
    """Bytes of results and residuals after three steps."""
    local = LocalAllreduce(f"{schedule}/{text}/ef", ranks, seed=seed)
    local.order = order or local.order
    results = [results[0].tobytes() for results in steps(local, (61, 67), kind="wide")]
    return results, [each.tobytes() for each in residuals(local)]


@every_codec
@every_schedule
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_order_of_arrival_changes_no_bit(text, schedule, ranks):
    rng = np.random.default_rng(1)
    expected = outcome(text, schedule, ranks)
    assert outcome(text, schedule, ranks, lambda found: found[::-1]) == expected
    for _ in range(2):
        shuffled = outcome(text, schedule, ranks, lambda found: [found[at] for at in rng.permutation(len(found))])
        assert shuffled == expected


@variants("text", WHOLE)
@every_schedule
def test_neither_instruction_set_nor_threads_change_a_bit(text, schedule):
    made = []
    for level, count in [*((level, 1) for level in LEVELS), (LEVELS[-1], 2), (LEVELS[-1], 3)]:
        with simd(level), threads(count):
            local = LocalAllreduce(f"{schedule}/{text}/ef", 3)
            values = arrays(4, 3, (210001,))
            made.append((local(values, key="w")[0].tobytes(), [each.tobytes() for each in residuals(local)]))
    assert all(each == made[0] for each in made)


@every_codec
def test_seed_key_and_step_change_the_bits_of_random_codecs_only(text):
    def run(seed, key, warm_up):
        local = LocalAllreduce(f"direct/{text}", 3, seed=seed)
        for _ in range(warm_up):
            local(arrays(1, 3, (15, 20)), key=key)
        return local(arrays(1, 3, (15, 20)), key=key)[0].tobytes()

    made = {run(0, "w", 0), run(1, "w", 0), run(0, "b", 0), run(0, None, 0)}
    codec = LocalAllreduce(text, 1).scheme.codec
    if not (codec.deterministic and codec.learns):  # else what follows depends on what was learned
        made.add(run(0, "w", 1))
    assert len(made) == (1 if codec.deterministic else 5)
    assert run(0, "w", 1) == run(0, "w", 1)

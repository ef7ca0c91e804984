"""Promises 7 and 8 on whole allreduces: what is not finite is named alike on every rank, and nothing has changed."""

import contextlib
import itertools

import ml_dtypes
import noisy
import numpy as np
import pytest
from contract import same_bits
from reductions import DTYPES, arrays, copies, nothing_lost, placed, residuals, same_everywhere
from schemes import SCHEDULE_NAMES, WHOLE, variants

from gqallreduce import NonFiniteError, Scheme
from gqallreduce.coding import lanes, layout
from gqallreduce.runtime.local import LocalAllreduce

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
every_codec = variants("text", [*WHOLE, "noisy"])
lossy = variants("text", [text for text in [*WHOLE, "noisy"] if text != "raw"])
VALUES = (np.nan, -np.nan, np.inf, -np.inf)


@pytest.fixture(autouse=True)
def _nasty():
    noisy.enter()
    yield
    noisy.leave()


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(lanes, "LANE_BYTES", 128)
    monkeypatch.setattr(layout, "BLOCK", 100)


def most(text) -> float:
    """The largest number that a codec can send."""
    values = text if text in DTYPES else "float16" if "values=float16" in text else "float32"
    return float(ml_dtypes.finfo(DTYPES[values]).max)


def warm(text, schedule, ranks, shape, dtype="float32", order="C", **given) -> LocalAllreduce:
    """An object that has a residual already."""
    local = LocalAllreduce(f"{schedule}/{text}/ef", ranks, **given)
    local(arrays(1, ranks, shape, dtype, order), key="w")
    return local


def refused(local, values) -> NonFiniteError:
    """The error of a call that must fail; checks that residuals and counter are as before."""
    before, states = residuals(local), [memory.get("w") for memory in local.memory]
    with pytest.raises(NonFiniteError) as caught:
        local(values, key="w")
    assert caught.value.key == "w"
    assert all(np.array_equal(a, b) for a, b in zip(residuals(local), before, strict=True))
    assert all(memory.get("w") is state for memory, state in zip(local.memory, states, strict=True))
    return caught.value


@every_codec
@every_schedule
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_one_value_anywhere_is_named_with_its_rank_and_index(text, schedule, ranks):
    """In one's own chunk, in another's, at the ends: every (rank, chunk) once."""
    size = 3 * ranks + 1
    local = warm(text, schedule, ranks, (size,))
    places = {0, size - 1, *(chunk * size // ranks for chunk in range(ranks))}
    for number, (rank, index) in enumerate(itertools.product(range(ranks), places)):
        values = arrays(2, ranks, (size,))
        values[rank][index] = VALUES[number % 4]
        error = refused(local, values)
        assert (error.rank, error.index) == (rank, index)


@every_codec
@every_schedule
@pytest.mark.usefixtures("small_pieces")
def test_of_several_the_lowest_rank_and_its_first_index_are_named(text, schedule):
    shape, rng = (33, 37), np.random.default_rng(3)  # columns of 33: in Fortran order a later block may come first in C
    for ranks, order in itertools.product((2, 3, 4), "CF"):
        local = warm(text, schedule, ranks, shape, order=order)
        for _ in range(4):
            values = arrays(2, ranks, shape, order=order)
            concerned = np.sort(rng.choice(ranks, rng.integers(1, ranks + 1), replace=False))
            first = None
            for rank in concerned:
                places = rng.choice(33 * 37, 4, replace=False)
                first = int(places.min()) if first is None else first
                for place in places:
                    values[rank][divmod(int(place), 37)] = VALUES[rng.integers(4)]
            error = refused(local, values)
            assert (error.rank, error.index) == (concerned[0], first), order


@every_codec
@every_schedule
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_layout_names_the_c_order_index(text, schedule, dtype):
    for order, ranks in (("C", 3), ("F", 4), ("C with gaps", 2), ("F with gaps", 1)):
        local = warm(text, schedule, ranks, (11, 13), dtype, order)
        values = arrays(2, ranks, (11, 13), dtype, order)
        for place in ((7, 3), (5, 9)):
            values[ranks - 1][place] = np.nan
        error = refused(local, values)
        assert (error.rank, error.index) == (ranks - 1, 5 * 13 + 9), order


@every_codec
@every_schedule
def test_the_next_call_goes_on_as_if_nothing_had_happened(text, schedule):
    unlucky, lucky = (warm(text, schedule, 3, (40,)) for _ in range(2))
    broken = arrays(2, 3, (40,))
    broken[1][[3, 17]] = np.inf
    refused(unlucky, broken)
    given = arrays(3, 3, (40,))
    before = residuals(unlucky)
    results = unlucky(copies(given), key="w")
    nothing_lost(unlucky, given, before, results)
    np.testing.assert_array_equal(results, lucky(copies(given), key="w"))
    np.testing.assert_array_equal(residuals(unlucky), residuals(lucky))


@every_codec
@every_schedule
def test_a_value_that_is_not_finite_beside_a_large_residual_is_still_the_ranks_own(text, schedule):
    """But an infinity may come of two finite numbers there, and then no rank is named."""
    large = np.float32(2.0**104)
    for number, value in enumerate((np.nan, np.float32(3.4028234e38), -np.float32(3.4028234e38))):
        local = warm(text, schedule, 3, (40,))
        if "w" not in local.memory[2]:
            pytest.skip("this codec keeps no residual")
        local.memory[2].residual("w")[17] = large if number < 2 else -large
        values = arrays(2, 3, (40,))
        values[2][17] = value
        error = refused(local, values)
        assert (error.rank, error.index) == ((2, 17) if np.isnan(value) else (None, 17))


@lossy
@every_schedule
def test_a_float64_beyond_float32_counts_as_not_finite(text, schedule):
    local = warm(text, schedule, 3, (50,), "float64")
    values = arrays(2, 3, (50,), "float64")
    values[2][7] = -1e39
    error = refused(local, values)
    assert (error.rank, error.index) == (2, 7)


@every_schedule
def test_raw_carries_float64_beyond_float32(schedule):
    values = arrays(2, 3, (50,), "float64")
    values[2][7] = 1e300
    assert LocalAllreduce(f"{schedule}/raw/ef", 3)(values, key="w")[0][7] > 9e299


@every_codec
@every_schedule
@pytest.mark.parametrize("average", [False, True])
def test_a_sum_that_leaves_float32_names_no_rank(text, schedule, average):
    if text.startswith("threshold"):
        pytest.skip("no more than the threshold travels; of a large one see its own tests")
    for ranks in (2, 3, 4, 5):
        local = warm(text, schedule, ranks, (50,), average=average)
        values = [np.full(50, 0.5, np.float32) for _ in range(ranks)]
        for each in values[:2]:
            each[:] = 3.3e38
        assert refused(local, values).rank is None


@every_schedule
def test_an_overflow_of_the_raw_sum_names_its_first_index(schedule):
    for ranks, dtype in itertools.product((2, 3, 4, 5), ("float32", "float64", "float16")):
        local = warm("raw", schedule, ranks, (11, 13), dtype, "F")
        values = arrays(2, ranks, (11, 13), dtype, "F")
        top = np.finfo(DTYPES[dtype]).max
        for place in ((7, 3), (5, 9)):
            for each in values:
                each[place] = top
        error = refused(local, values)
        assert error.rank is None
        assert error.index == 5 * 13 + 9


@lossy
@every_schedule
def test_a_sum_that_leaves_only_the_buffers_format_names_no_rank(text, schedule):
    """16 bits: the range is tested after `average`."""
    if "pi=64" in text or text.startswith(("threshold", "topk(ratio=0.01)")):
        pytest.skip("one value of 50 travels, too few to meet; or no more than the threshold of each")
    if Scheme.parse(f"{text}/ef").codec.contracted:
        pytest.skip("its scale is smaller by chance")
    for ranks in (2, 4):  # two values that meet are enough: not all ranks need to choose the same
        total, mean = (warm(text, schedule, ranks, (50,), "float16", average=average) for average in (False, True))
        values = [placed(np.full(50, 40000.0), "float16") for _ in range(ranks)]
        assert refused(total, copies(values)).rank is None
        # by chance: the level above 40000 is 70711, or 65536
        overflows = text.startswith("natural(") or getattr(Scheme.parse(text).codec, "norm", "max") == "l2"
        if text != "noisy" and most(text) > 1e5:  # the sum travels before it is divided
            with contextlib.suppress(*[NonFiniteError] * overflows):
                same_everywhere(mean(values, key="w"))


@every_codec
@every_schedule
def test_values_near_the_end_of_the_range_are_refused_or_leave_finite_residuals(text, schedule):
    """Never an infinity in the memory: the next call would name a gradient that was fine."""
    rng = np.random.default_rng(7)
    done, named = 0, set()
    for ranks, part in itertools.product((1, 2, 3, 4), (0.003, 0.09, 0.47, 0.97)):
        local = LocalAllreduce(f"{schedule}/{text}/ef", ranks)
        for _ in range(4):
            values = [(rng.uniform(-1, 1, 90) * part * most(text)).astype(np.float32) for _ in range(ranks)]
            before = residuals(local)
            results = copies(values)
            try:
                local(results, key="w")
            except NonFiniteError as error:
                named.add(error.rank)
                continue
            same_everywhere(results)
            assert np.isfinite(results[0]).all()
            nothing_lost(local, values, before, results)
            done += 1
    assert done
    assert named <= {None}


@pytest.mark.parametrize("text", ["adaptive(pi=13, column=1)", "topk(k=7)", "topk(k=7, values=qsgd(bits=2))", "onebit"])
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_two_errors_of_one_value_leave_no_infinity_in_a_residual(text, ranks):
    """A rank's own values, and a sum that it encodes as others do."""
    rng, done = np.random.default_rng(1), 0
    for part in np.linspace(0.02, 0.99, 40):
        local = LocalAllreduce(f"recursive_doubling/{text}/ef", ranks)
        for _ in range(3):
            values = [(rng.uniform(-1, 1, 90) * part * most(text) / ranks).astype(np.float32) for _ in range(ranks)]
            with contextlib.suppress(NonFiniteError):
                local(values, key="w")
                assert all(np.isfinite(each).all() for each in residuals(local))
                done += 1
    assert done


def test_an_own_error_that_leaves_no_room_for_another_is_refused():
    """Of element 20 rank 0 keeps 3.2e38, and would share an error of 8e37 of the sum of four ranks."""
    values = np.zeros((8, 90), np.float32)
    values[0, :6], values[0, 50], values[0, 20] = 3.3e38, 3.25e38, 3.2e38
    values[1, :6], values[1, 50] = -3.3e38, -2.42e38
    values[2, 20], values[2, 30:36] = 8e37, 8.1e37
    local = LocalAllreduce("recursive_doubling/topk(k=7)/ef", 8)
    with pytest.raises(NonFiniteError) as error:
        local(list(values), key="w")
    assert error.value.rank is None


def test_a_shared_error_for_which_own_ones_leave_no_room_is_refused():
    """Of element 20 rank 1 keeps 8e37, and would keep the error of the sum of eight ranks, 3.04e38."""
    values = np.zeros((16, 90), np.float32)
    values[:4, :7], values[:4, 20], values[4:8, 20] = 8.2e37, 8e37, 7.6e37
    local = LocalAllreduce("recursive_doubling/topk(k=7)/ef", 16)
    with pytest.raises(NonFiniteError) as error:
        local(list(values), key="w")
    assert error.value.rank is None


@pytest.mark.parametrize("text", [text for text in WHOLE if text in DTYPES])
@every_schedule
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.usefixtures("small_pieces")
def test_a_value_beyond_the_codecs_range_is_an_overflow_that_is_named_by_its_first_index(text, schedule, dtype):
    """Like a sum's: at the owner of a chunk it may have been a sum that went out of range."""
    for ranks in (1, 2, 3, 5):
        local = warm(text, schedule, ranks, (11, 13), dtype, "F")
        values = arrays(2, ranks, (11, 13), dtype, "F")
        for place in ((7, 3), (5, 9)):
            values[ranks - 1][place] = -1.003 * most(text)
        error = refused(local, values)
        assert (error.rank, error.index) == (None, 5 * 13 + 9)


@every_codec
@every_schedule
@pytest.mark.parametrize("kind", ["zero", "denormal", "constant"])
def test_zeros_denormals_and_constants_pass(text, schedule, kind):
    fill = {"zero": -0.0, "denormal": 1e-42, "constant": 0.7}[kind]
    for ranks in (1, 3, 4):
        local = LocalAllreduce(f"{schedule}/{text}/ef", ranks)
        for _ in range(3):
            given = [np.full(300, fill, np.float32) for _ in range(ranks)]
            before = residuals(local)
            results = local(copies(given), key="w")
            same_everywhere(results)
            if kind == "denormal":  # a relative bound ends at the smallest denormal
                moved = results[0].astype(float) + sum(map(np.float64, residuals(local)))
                due = sum(map(np.float64, given)) + sum(map(np.float64, before)) if before[0].size else fill * ranks
                assert np.abs(moved - due).max() <= 4 * ranks * 1.5e-45
            else:
                nothing_lost(local, given, before, results)
            assert kind != "zero" or not results[0].any()


@pytest.mark.parametrize("codec", ["powersgd(rank=1)", "gradiveq(K=3, d=1, warmup=0, train=1)"])
def test_with_feedback_values_whose_projections_may_leave_float32_are_refused_on_all_ranks(codec):
    rng, local = np.random.default_rng(0), LocalAllreduce(f"direct/{codec}/ef", 2)
    local([rng.standard_normal((3, 9)).astype(np.float32) for _ in range(2)], key="w")
    before = [memory.residual("w").copy() for memory in local.memory]
    large = [rng.standard_normal((3, 9)).astype(np.float32) for _ in range(2)]
    large[1][1, 2] = 1.5e30
    with pytest.raises(NonFiniteError) as caught:
        local([each.copy() for each in large], key="w")
    assert (caught.value.rank, caught.value.index) == (None, 11)
    assert all(same_bits(memory.residual("w"), old) for memory, old in zip(local.memory, before, strict=True))
    large[1][1, 2] = 1.2e30
    local(large, key="w")
    assert all(np.isfinite(memory.residual("w")).all() for memory in local.memory)

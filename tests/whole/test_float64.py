"""What becomes of float64 values: codecs compute in float32, to which each is rounded first, and `raw` in float64."""

import numpy as np
import pytest
from reductions import arrays, copies, nothing_lost, placed, residuals, same_everywhere
from schemes import SCHEDULE_NAMES, WHOLE, variants

from gqallreduce.backends.buffer import Buffer
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.topology import Topology

TINY = 2.0**-150  # half of float32's smallest number
every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
every_lossy = variants("text", [text for text in WHOLE if not text.startswith("raw")])


def rounded(values) -> np.ndarray:
    y = np.empty(len(values), np.float32)
    Buffer(np.array(values, np.float64)).load(0, len(values), y)
    return y


def test_a_value_is_rounded_to_the_nearest_float32():
    rng = np.random.default_rng(0)
    normal = np.append(rng.uniform(1, 2, 10000) * np.exp2(rng.integers(-126, 127, 10000)), 1 + 2.0**-24)
    assert (np.abs(rounded(normal) - normal) <= 2.0**-24 * np.abs(normal)).all()
    denormal = rng.uniform(-1, 1, 10000) * 2.0**-126
    assert (np.abs(rounded(denormal) - denormal) <= TINY).all()
    np.testing.assert_array_equal(rounded([1e-60, -TINY, np.nextafter(TINY, 1)]), np.float32([0, 0, 2 * TINY]))


@every_schedule
@every_lossy
def test_result_and_residuals_are_those_of_the_rounded_values(text, schedule):
    """So what the rounding loses is nowhere."""
    double, single = (LocalAllreduce(f"{schedule}/{text}/ef", 3) for _ in range(2))
    for step in range(2):
        given = arrays(step, 3, (5, 130), "float64")
        results = double(copies(given), key="w")
        expected = single([each.astype(np.float32) for each in given], key="w")
        np.testing.assert_array_equal(results[0], expected[0].astype(np.float64))
        for ours, theirs in zip(residuals(double), residuals(single), strict=True):
            assert ours.tobytes() == theirs.tobytes()


@every_schedule
@variants("text", WHOLE)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_nothing_else_is_lost_of_values_within_float32(text, schedule, ranks):
    local = LocalAllreduce(f"{schedule}/{text}/ef", ranks)
    for step in range(3):
        given = arrays(step, ranks, (5, 130), "float64", kind="wide")
        before = residuals(local)
        results = local(copies(given), key="w")
        same_everywhere(results)
        nothing_lost(local, given, before, results)


@every_lossy
def test_values_below_float32_are_neither_in_the_result_nor_in_a_residual(text):
    local = LocalAllreduce(f"direct/{text}/ef", 3)
    results = local([np.full((5, 130), TINY) for _ in range(3)], key="w")
    assert not results[0].any()
    assert not np.any(residuals(local))


@every_schedule
def test_raw_keeps_them(schedule):
    results = LocalAllreduce(f"{schedule}/raw", 3)([np.full(100, 1e-60) for _ in range(3)])
    np.testing.assert_allclose(results[0], 3e-60, rtol=1e-15)


def of_two_calls(runtime, text, topology, average):
    """Results, residuals and what was sent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", runtime)
        local = LocalAllreduce(text, topology.size, average=average, topology=topology)
    keys, found, rng = [f"w{number}" for number in range(len(WIDE))], [], np.random.default_rng(0)
    for _ in range(2):
        given = [[placed(rng.standard_normal(shape), *how) for shape, *how in WIDE] for _ in topology.hosts]
        local(given, key=keys)
        found += [array.tobytes() for mine in given for array in mine]
        found += [(spent.messages, spent.bytes_sent, spent.bytes_received) for spent in local.spent]
    return found + [each.tobytes() for key in keys for each in residuals(local, key)]


WIDE = (
    ((5, 130), "float64", "C"), ((7,), "float32", "C"), ((33, 31), "float64", "F with gaps"), ((0,), "float64", "C"),
    ((1,), "float64", "C"), ((520, 700), "float64", "C with gaps"), ((40, 33), "float16", "C"),
)  # fmt: skip


@pytest.mark.parametrize("runtime", ["both"])
@every_schedule
@pytest.mark.parametrize("hosts", [(0,), (0, 1), (0, 1, 2), (0, 0, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 4, 4, 4, 4)])
@pytest.mark.parametrize(("text", "average"), [("raw", False), ("raw/ef", True)])
def test_raw_is_carried_out_in_cpp_with_the_same_bits(runtime, schedule, hosts, text, average):
    native, python = (
        of_two_calls(each, f"{schedule}/{text}", Topology(hosts), average) for each in ("native", "python")
    )
    assert native == python


@pytest.mark.parametrize("runtime", ["native"], indirect=True)
@every_schedule
def test_raw_has_a_program_for_the_runtime_in_cpp(runtime, schedule):
    plan = LocalAllreduce(f"{schedule}/raw", 4).plan(
        0, *(Buffer(placed(np.zeros(shape), *how)) for shape, *how in WIDE)
    )
    assert plan.native is not None


@pytest.mark.parametrize("runtime", ["native"], indirect=True)
def test_a_long_piece_is_summed_in_cpp(runtime):
    """Its lanes hold several extents."""
    given = [np.random.default_rng(rank).standard_normal((1 << 22) + 5) for rank in range(2)]
    results = LocalAllreduce("recursive_doubling/raw", 2)(copies(given))
    np.testing.assert_array_equal(results[0], given[0] + given[1])
    np.testing.assert_array_equal(results[1], results[0])

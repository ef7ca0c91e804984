"""A whole allreduce on a device's arrays gives the host's bits: results, residuals and messages; here on a serial grid
whose stream runs late, with every schedule, alone and beside ranks on the host."""

import numpy as np
import pytest
from serial import needs_compiler
from serial_runtime import OnDevice, SerialRuntime, use_serial_devices

from gqallreduce.cuda.device import Device
from gqallreduce.local import LocalAllreduce
from gqallreduce.processor import Host
from gqallreduce.registry import SCHEDULES

pytestmark = needs_compiler
TEXTS = [
    "raw", "float16", "bfloat16", "onebit", "qsgd(bits=4)", "qsgd(bits=3, bucket=33, norm=l2)", "adaptive(pi=7)",
    "adaptive(pi=3, scope=column)", "adaptive(pi=5, signs=separate)", "adaptive(pi=5, scope=column, signs=separate)",
    "threshold(tau=0.5)", "terngrad", "terngrad(clip=0)", "terngrad(shared=False)",
]  # fmt: skip
every_text = pytest.mark.parametrize("text", TEXTS)
every_schedule = pytest.mark.parametrize("schedule", sorted(SCHEDULES))


@pytest.fixture(autouse=True)
def devices():
    use_serial_devices()


def processors(ranks, mixed, aware):
    return [Host() if mixed and rank % 2 else Device(SerialRuntime(rank % 2), aware) for rank in range(ranks)]


def inputs(seed, ranks, shape, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(ranks)]


def as_given(array, processor):
    return array if isinstance(processor, Host) else OnDevice(array)


def compare(text, ranks, arrays_of, mixed=False, aware=False, steps=2, average=False):
    theirs = LocalAllreduce(text, ranks, average=average)
    ours = LocalAllreduce(text, ranks, average=average, processors=processors(ranks, mixed, aware))
    for step in range(steps):
        expected, got = arrays_of(step), arrays_of(step)
        theirs(expected, key="w")
        ours([as_given(*each) for each in zip(got, ours.processors, strict=True)], key="w")
        for rank in range(ranks):
            np.testing.assert_array_equal(bits(got[rank]), bits(expected[rank]))
            if theirs.scheme.feedback:
                owed = ours.processors[rank].on_host(ours.memory[rank].owed("w"))
                np.testing.assert_array_equal(bits(owed), bits(theirs.memory[rank].owed("w")))
            here, there = ours.spent[rank], theirs.spent[rank]
            assert (here.bytes_sent, here.messages, here.selected) == (there.bytes_sent, there.messages, there.selected)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


@every_schedule
@every_text
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_schedule_gives_the_hosts_bits(text, schedule, ranks):
    compare(f"{schedule}/{text}/ef", ranks, lambda step: inputs(step, ranks, 5003))


@every_schedule
@every_text
def test_without_feedback_and_with_average(text, schedule):
    compare(f"{schedule}/{text}", 3, lambda step: inputs(step, 3, (37, 41)), steps=1, average=True)


@every_schedule
@every_text
def test_beside_ranks_on_the_host(text, schedule):
    compare(f"{schedule}/{text}/ef", 3, lambda step: inputs(step, 3, 3001), mixed=True)


@every_schedule
@every_text
def test_messages_in_device_memory(text, schedule):
    compare(f"{schedule}/{text}/ef", 3, lambda step: inputs(step, 3, 3001), aware=True)


@every_text
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(text, dtype):
    compare(f"direct/{text}/ef", 2, lambda step: inputs(step, 2, 4099, dtype), average=True)


@every_text
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_small_sizes(text, size):
    compare(f"direct/{text}/ef", 2, lambda step: inputs(step, 2, size))


@pytest.mark.parametrize("text", ["raw", "onebit", "qsgd", "adaptive", "terngrad"])
def test_views_with_a_leading_dimension(text):
    def views(step):
        return [np.asfortranarray(each)[:30] for each in inputs(step, 2, (40, 50))]

    compare(f"direct/{text}/ef", 2, views)


@every_text
def test_several_lanes_and_regions(text):
    compare(f"direct/{text}/ef", 2, lambda step: inputs(step, 2, 1_300_001), steps=1)

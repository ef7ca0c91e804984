"""A whole allreduce on a device's arrays gives the host's bits: results, residuals and messages; on a serial
grid whose stream runs late or on a GPU, with every schedule, alone and beside ranks on the host."""

import numpy as np
import pytest
from devices import OnDevice, make_runtime, needs_device, use_devices
from schemes import variants
from serial_runtime import OnSerialDevice, SerialRuntime

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.cuda import adaptive, runtime
from gqallreduce.backends.cuda.device import Device
from gqallreduce.backends.processor import Host
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Grid, Region, Span
from gqallreduce.coding.preparing import Parts
from gqallreduce.errors import Error, NonFiniteError, WireError
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce

pytestmark = needs_device
TEXTS = [
    "raw", "float16", "bfloat16", "onebit", "qsgd(bits=4)", "qsgd(bits=3, bucket=33, norm=l2)", "adaptive(pi=7)",
    "adaptive(pi=3, scope=column)", "adaptive(pi=5, signs=separate)", "adaptive(pi=5, scope=column, signs=separate)",
    "threshold(tau=0.5)", "terngrad", "terngrad(clip=0)", "terngrad(shared=False)",
]  # fmt: skip
every_text = variants("text", TEXTS)
every_schedule = pytest.mark.parametrize("schedule", sorted(SCHEDULES))


@pytest.fixture(autouse=True)
def devices():
    use_devices()
    yield
    runtime.use()


def processors(ranks, mixed, aware):
    return [Host() if mixed and rank % 2 else Device(make_runtime(rank % 2), aware) for rank in range(ranks)]


def inputs(seed, ranks, shape, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(ranks)]


def as_given(array, processor):
    return array if isinstance(processor, Host) else OnDevice(array)


def content(given):
    return given.on_host() if isinstance(given, OnDevice) else given


def compare(text, ranks, arrays_of, mixed=False, aware=False, steps=2, average=False):
    theirs = LocalAllreduce(text, ranks, average=average)
    ours = LocalAllreduce(text, ranks, average=average, processors=processors(ranks, mixed, aware))
    for step in range(steps):
        expected = arrays_of(step)
        got = [as_given(*each) for each in zip(arrays_of(step), ours.processors, strict=True)]
        theirs(expected, key="w")
        ours(got, key="w")
        for rank in range(ranks):
            np.testing.assert_array_equal(bits(content(got[rank])), bits(expected[rank]))
            if theirs.scheme.feedback:
                residual = ours.processors[rank].on_host(ours.memory[rank].residual("w"))
                np.testing.assert_array_equal(bits(residual), bits(theirs.memory[rank].residual("w")))
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


@pytest.mark.parametrize("text", ["raw", "onebit", "qsgd", "adaptive", "terngrad"])
def test_other_orders_of_axes(text):
    for dtype in ("float32", "float16"):
        compare(f"direct/{text}/ef", 2, lambda step, dtype=dtype: channels_last(step, 2, dtype))


def channels_last(seed, ranks, dtype="float32"):
    return [each.transpose(0, 3, 1, 2) for each in inputs(seed, ranks, (4, 9, 7, 5), dtype)]


@every_text
def test_several_lanes_and_regions(text):
    compare(f"direct/{text}/ef", 2, lambda step: inputs(step, 2, 1_300_001), steps=1)


def two_places(arrays):
    arrays[0][900], arrays[1][3] = np.inf, np.inf


FLAWS = {
    "NaN": lambda arrays: arrays[-1].__setitem__(700, np.nan),
    "Inf in two places": two_places,
    "cancelling": lambda arrays: [arrays[0].__setitem__(5, np.inf), arrays[-1].__setitem__(5, -np.inf)],
    "overflow": lambda arrays: [each.fill(3e38) for each in arrays],
    "everything": lambda arrays: [each.fill(np.nan) for each in arrays],
}


@every_schedule
@every_text
@pytest.mark.parametrize("flaw", FLAWS)
def test_what_is_not_finite_is_named_alike(text, schedule, flaw):
    def spoiled(step):
        arrays = inputs(step, 3, 1003)
        FLAWS[flaw](arrays)
        return arrays

    def error(local, arrays):
        try:
            local(arrays, key="w")
        except NonFiniteError as flaw:
            return flaw.rank, flaw.key, flaw.index
        return None  # of a threshold large values are no overflow

    theirs, devices = LocalAllreduce(f"{schedule}/{text}/ef", 3), processors(3, False, False)
    ours = LocalAllreduce(f"{schedule}/{text}/ef", 3, processors=devices)
    theirs(inputs(0, 3, 1003), key="w")
    ours(list(map(OnDevice, inputs(0, 3, 1003))), key="w")
    before = [devices[rank].on_host(ours.memory[rank].residual("w")) for rank in range(3)]
    expected = error(theirs, spoiled(1))
    assert error(ours, list(map(OnDevice, spoiled(1)))) == expected
    assert expected or (flaw, text) == ("overflow", "threshold(tau=0.5)")
    for rank in range(3 if expected else 0):
        np.testing.assert_array_equal(devices[rank].on_host(ours.memory[rank].residual("w")), before[rank])


@pytest.mark.parametrize("text", ["raw", "float16", "bfloat16", "onebit", "qsgd(bits=4)"])
def test_groups(text):
    """Each tensor by itself: a device has no batches. (Others pass through the host: tests/mpi/test_devices.py.)"""
    shapes = [((20, 30), "float32"), ((7,), "float32"), ((0,), "float32"), ((5, 5), "float16"), ((3000,), "float32")]
    keys = [str(number) for number in range(len(shapes))]
    for mixed in (False, True):
        theirs = LocalAllreduce(f"direct/{text}/ef", 3)
        ours = LocalAllreduce(f"direct/{text}/ef", 3, processors=processors(3, mixed, False))
        for step in range(2):
            by_tensor = [inputs(step, 3, shape, dtype) for shape, dtype in shapes]
            expected = [[tensor[rank] for tensor in by_tensor] for rank in range(3)]
            got = [[as_given(array.copy(), ours.processors[rank]) for array in expected[rank]] for rank in range(3)]
            theirs(expected, key=keys)
            ours(got, key=keys)
            for rank in range(3):
                for number, key in enumerate(keys):
                    np.testing.assert_array_equal(bits(content(got[rank][number])), bits(expected[rank][number]))
                    residual = ours.processors[rank].on_host(ours.memory[rank].residual(key))
                    np.testing.assert_array_equal(bits(residual), bits(theirs.memory[rank].residual(key)))


@pytest.mark.parametrize("text", ["raw", "onebit", "qsgd", "adaptive", "threshold", "terngrad"])
def test_bytes_that_no_codec_wrote_are_a_wire_error(text):
    def spoil(source, to, lane, data):
        if len(data) > frame.SIZE:
            data[frame.SIZE : frame.SIZE + 16] = 0xFF
        return data

    ours = LocalAllreduce(f"direct/{text}", 2, processors=processors(2, False, False))
    ours.tap = spoil
    with pytest.raises(WireError):
        ours(list(map(OnDevice, inputs(0, 2, 3000))))


def test_a_fault_of_the_device_is_an_error_with_its_kernel_and_key():
    runtime.use(SerialRuntime)
    device = Device(SerialRuntime(), False)
    device.runtime.fail_at = 2
    located = Buffer(OnSerialDevice(np.zeros(3, np.float32))).located

    def work():
        with device.active(located, "w"):
            device.arithmetic.scale(device.zeros(4), 2.0)
            device.settle()
            device.finish()

    with pytest.raises(Error, match=r"Fault, key 'w' \(last kernel: frame_ship\): an illegal memory access"):
        work()


def test_work_on_no_callers_stream_is_done_when_the_next_may_begin():
    device = Device(SerialRuntime(), False)
    assert device.runtime.queue == []  # its own words are zeros, whatever stream comes first
    with device.active(None, "w"):
        residual = device.zeros(4)
    assert device.runtime.queue == []
    assert not residual.any()


def test_a_call_that_failed_leaves_nothing_for_the_next():
    device = Device(make_runtime(), False)
    located = Buffer(OnDevice(np.zeros(3, np.float32))).located
    regions = [Region(begin, 3000, Grid(1), 6000) for begin in (0, 3000)]
    x = device.adopt(np.full(3000, np.inf, np.float32))

    def load(span):
        if span.start:
            raise ZeroDivisionError
        return x, None, None

    def search():
        with device.active(located, "w"), device.arithmetic.search(0) as (search, table, listed):
            spans = [Span([region]) for region in regions]
            kept = [adaptive.Part(span, None, adaptive.Columns(None, None, None, 1), listed) for span in spans]
            parts = Parts(spans, load)
            adaptive.adaptive_search(device.launch, parts, kept, 7, search, table, device.arithmetic.status)

    with pytest.raises(ZeroDivisionError):
        search()
    for left in (device.arithmetic.status, device.arithmetic._histograms):
        assert not device.on_host(left).any()


@pytest.mark.parametrize("aware", [False, True])
def test_page_locked_memory_is_used_again(aware, monkeypatch):
    runtime.use(SerialRuntime)
    devices = [Device(SerialRuntime(rank), aware) for rank in range(3)]
    allreduce = LocalAllreduce("direct/onebit/ef", 3, processors=devices)
    asked = []
    for step in range(4):
        allreduce([OnSerialDevice(array) for array in inputs(step, 3, (21, 60))], key="w")
        if step == 1:
            for device in devices:
                pinned = device.runtime.empty
                monkeypatch.setattr(
                    device._outcomes, "_allocate", lambda nbytes, pinned=pinned: asked.append(nbytes) or pinned(nbytes)
                )
    assert asked == []

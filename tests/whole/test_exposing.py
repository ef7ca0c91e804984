"""Values that are read where they lie give the bits that messages with them give, and the same errors."""

import itertools
import random

import numpy as np
import pytest
from reductions import arrays, copies
from schemes import SCHEDULE_NAMES

from gqallreduce import NonFiniteError
from gqallreduce.coding import frame, lanes, layout
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime import exposing, native
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling import instructions as code
from gqallreduce.scheduling.topology import Topology, apart
from gqallreduce.transport.exchange import ANSWERS

RANKS = 2, 3, 4, 5, 8
every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
sizes = pytest.mark.parametrize("ranks", RANKS)


@pytest.fixture
def mixed(request, monkeypatch):
    """Every other rank is carried out by Python, whatever the others are carried out by."""
    usual = native.native_operation
    monkeypatch.setattr(
        native, "native_operation", lambda operation: None if operation.plan.rank % 2 else usual(operation)
    )


@pytest.fixture
def short(monkeypatch):
    """Many lanes, and many extents of each chunk."""
    monkeypatch.setattr(lanes, "LANE_BYTES", 1 << 12)
    monkeypatch.setattr(layout, "BLOCK", 300)


class Seen:
    """Counts the frames of each kind, and answers, as the tap of an object."""

    def __init__(self):
        self.kinds, self.answers = [], 0

    def __call__(self, source, to, lane, data):
        if lane == ANSWERS:
            self.answers += 1
        elif lane < lanes.LANES_MOST and len(data) >= frame.SIZE:
            self.kinds.append(frame.read(data).kind)
        return data


def made(scheme, ranks, exposed_from, shuffled=True, **given):
    local = LocalAllreduce(scheme, ranks, **given)
    local.exposed_from, local.tap = exposed_from, Seen()
    if shuffled:
        draw = random.Random(ranks)
        local.order = lambda found: draw.sample(list(found), len(found))
    return local


def both(scheme, ranks, values, **given):
    """Bits and bytes of two calls, exposed and sent; what the first one has sent."""
    found = []
    for exposed_from in (1, 0):
        local = made(scheme, ranks, exposed_from, **given)
        results = [local(copies(values), key="w") for _ in range(2)]
        bits = [np.ascontiguousarray(each).tobytes() for result in results for each in result]
        spent = [(each.messages, each.bytes_sent, each.bytes_received) for each in local.spent]
        kept = [memory.residual("w").tobytes() for memory in local.memory if local.scheme.feedback]
        found.append((bits, spent, kept))
        if exposed_from:
            seen = local.tap
        else:
            assert frame.EXPOSED not in local.tap.kinds
    return found, seen


def exposes(schedule, ranks, topology, average):
    """May anything be exposed in a call?"""
    scale = 1 / ranks if average else 1.0
    found = (code.instructions(SCHEDULES[schedule], rank, topology) for rank in range(ranks))
    return any(exposing.exposures(program, scale) for program in found)


@every_schedule
@sizes
@pytest.mark.parametrize("text", ["raw", "raw/ef"])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.usefixtures("short")
def test_the_same_bits_and_bytes(runtime, schedule, ranks, text, average):
    topology = Topology((0,) * ranks)
    for size in (0, 1, 8 * ranks + 1, 9001):
        given = {"average": average, "topology": topology}
        (exposed, sent), seen = both(f"{schedule}/{text}", ranks, arrays(3, ranks, (size,)), **given)
        assert exposed == sent
        # By the runtime in C++, where a message has room for 32 bytes of values or more, and there is no residual.
        could = runtime == "native" and size > 1 and exposes(schedule, ranks, topology, average)
        assert (frame.EXPOSED in seen.kinds) == (could and text == "raw")


@every_schedule
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["C", "F with gaps"])
def test_other_dtypes_and_layouts(runtime, schedule, dtype, order):
    (exposed, sent), seen = both(f"{schedule}/raw", 4, arrays(3, 4, (60, 41), dtype, order))
    assert exposed == sent
    # What lies in memory with gaps, or in 16 bits, is not what is sent.
    could = runtime == "native" and dtype == "float64" and exposes(schedule, 4, apart(4), False)
    assert order != "C" or (frame.EXPOSED in seen.kinds) == could


@every_schedule
@sizes
@pytest.mark.usefixtures("short", "mixed")
def test_the_two_runtimes_read_from_each_other(schedule, ranks):
    (exposed, sent), _ = both(f"{schedule}/raw", ranks, arrays(3, ranks, (9001,)))
    assert exposed == sent


@pytest.mark.parametrize("text", ["raw", "qsgd(bits=4)", "onebit", "onebit/ef", "topk(ratio=0.1)/ef"])
@pytest.mark.parametrize("leaders", ["one", "all"])
def test_exact_sums_within_hosts(runtime, text, leaders):
    topology = Topology((0, 0, 0, 3, 3))
    scheme = f"hierarchical(outer=direct, leaders={leaders})/{text}"
    (exposed, sent), seen = both(scheme, 5, arrays(3, 5, (4001,)), topology=topology)
    assert exposed == sent
    assert (frame.EXPOSED in seen.kinds) == (runtime == "native" and not text.endswith("/ef"))


def test_values_that_a_codec_encodes_are_sent():
    _, seen = both("direct/qsgd(bits=4)", 3, arrays(3, 3, (4001,)))
    assert frame.EXPOSED not in seen.kinds
    assert not seen.answers


def test_into_other_arrays():
    given = arrays(3, 4, (5000,))
    expected = LocalAllreduce("direct/raw", 4)(copies(given), key="w")
    local = made("direct/raw", 4, 1)
    before, out = copies(given), [np.full(5000, 7, np.float32) for _ in range(4)]
    local(given, key="w", out=out)
    assert all(np.array_equal(a, b) for a, b in zip(out, expected, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(given, before, strict=True))


def test_groups_with_small_tensors():
    random = np.random.default_rng(1)
    sizes = (3, 700, 0, 5000, 65)
    given = [[random.standard_normal(size).astype(np.float32) for size in sizes] for _ in range(3)]
    found = []
    for exposed_from in (1, 0):
        local = made("direct/raw", 3, exposed_from)
        groups = [copies(each) for each in given]
        local(groups, key=list("abcde"))
        found.append([each.tobytes() for group in groups for each in group])
    assert found[0] == found[1]


# --- what is not finite ---


def error_of(local, values):
    with pytest.raises(NonFiniteError) as caught:
        local(copies(values), key="w")
    return caught.value.rank, caught.value.index


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("which", ["all", "some"])
@pytest.mark.usefixtures("short")
def test_the_first_flaw_of_the_lowest_rank_is_named(request, schedule, ranks, which):
    if which == "some":
        request.getfixturevalue("mixed")
    draw = np.random.default_rng(ranks)
    local = made(f"{schedule}/raw", ranks, 1)
    for _ in range(8):
        values = arrays(4, ranks, (2001,))
        flaws = [(int(draw.integers(ranks)), int(draw.integers(2001))) for _ in range(draw.integers(1, 5))]
        for rank, index in flaws:
            values[rank][index] = draw.choice([np.nan, np.inf, -np.inf])
        assert error_of(local, values) == min(flaws)


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.usefixtures("short")
def test_a_sum_beyond_float32_is_named(schedule, ranks):
    local = made(f"{schedule}/raw", ranks, 1)
    for index in (0, 1000, 2000):
        values = arrays(4, ranks, (2001,))
        for each in values:
            each[[index, 2000]] = 3e38
        assert error_of(local, values) == (None, index)


# --- what a program may expose ---


def programs(ranks):
    for name, where in itertools.product(SCHEDULE_NAMES, (apart(ranks), Topology((0,) * ranks))):
        for rank in range(ranks):
            yield name, code.instructions(SCHEDULES[name], rank, where)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_nothing_that_is_exposed_in_place_is_written_while_it_may_be_read(ranks, scale):
    """Of every schedule's programs, by a second reading of them: no write follows but a result, of one reader's own."""
    kinds = set()
    for name, program in programs(ranks):
        for at, until in exposing.exposures(program, scale).items():
            encode = program[at]
            assert isinstance(encode, code.Encode)
            kinds.add(until)
            after = [each for each in program[at:] if getattr(each, "chunk", None) == encode.chunk]
            if not encode.own and scale == 1:  # a finished sum that is exposed is the result already
                after = [each for each in after if getattr(each, "part", (None,))[0] != encode.slot]
            writes = [each for each in after if isinstance(each, (code.BeginSum, code.Decode, code.Share))]
            writes += [each for each in after if isinstance(each, code.Finish) and scale != 1]
            readers = [each for each in program if isinstance(each, code.Transmit) and each.slot == encode.slot]
            if until == exposing.UNTIL_READ:
                assert not writes, name
            elif until == exposing.UNTIL_RESULT:
                assert writes[0].result, name
                assert len(readers) == 1, name
                assert encode.own, name
    assert exposing.UNTIL_RESULT in kinds
    assert (exposing.UNTIL_READ in kinds) == (scale == 1)


def test_direct_exposes_own_values_and_finished_sums_where_they_lie():
    program = code.instructions(SCHEDULES["direct"], 1, apart(4))
    found = exposing.exposures(program, 1.0)
    assert sorted(found.values()) == [exposing.UNTIL_READ, *[exposing.UNTIL_RESULT] * 3]
    assert exposing.forwarded(program) == set()
    ring = code.instructions(SCHEDULES["ring"], 1, apart(4))
    assert exposing.forwarded(ring)

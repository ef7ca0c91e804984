"""How many lanes keep the messages that a rank holds at a time below a limit."""

import pytest
from schemes import SCHEDULE_NAMES, WHOLE, variants

from gqallreduce import Scheme
from gqallreduce.backends.processor import Host
from gqallreduce.coding import frame, lanes
from gqallreduce.coding.layout import Form, columns
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.plan import Plan
from gqallreduce.scheduling.instructions import instructions, rounds
from gqallreduce.scheduling.topology import apart, in_hosts

RANKS = 1024


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
@pytest.mark.parametrize("topology", [*map(apart, [*range(1, 10), 17, 33]), in_hosts(6, 3), in_hosts(20, 4)])
def test_schedules_say_how_many_messages_a_rank_has_at_a_time(schedule, topology):
    """The same on all ranks, since the vector is cut by it; with 0 a rank holds at most twice the vector."""
    schedule = SCHEDULES[schedule]
    chunks, held = schedule.chunks(topology), schedule.held(topology)
    for rank in range(topology.size):
        program = instructions(schedule, rank, topology)
        most = max(sum(len(each.wires) for each in found if hasattr(each, "wires")) for found in rounds(program))
        assert most + 1 <= (held or 2 * chunks + 1), rank


@variants("text", WHOLE)
@pytest.mark.parametrize("size", [25 * 10**6, 3 * 10**5])
@pytest.mark.parametrize("schedule", ["allgather", "direct"])
def test_memory_for_messages_of_1024_ranks_is_bounded(text, schedule, size):
    """Twice the vector or 16 MiB, but for headers, units, borders that move, messages of 32 KiB, and 256 lanes."""
    codec = Scheme.parse(text).codec
    if codec.indirect:
        pytest.skip("sums other vectors than the buffers")
    form = Form((size,), "C", "float32")
    plan = Plan(schedule, codec, RANKS // 2, apart(RANKS), (form,), False, Host())
    most = max(2 * plan.tensors[0].codec.working.itemsize * size, 16 << 20, RANKS * 2 * lanes.HELD_MESSAGE)
    units = plan.tensors[0].codec.grid(columns((size,), "C")).count(0, size)
    assert plan.lanes_at_once == 1 or plan.lanes <= lanes.LANES_MOST
    if units < 2 * plan.lanes or codec.moves_borders or plan.lanes == lanes.LANES_IN_TURN:
        return
    assert plan.live <= 1.3 * most + 2 * RANKS * frame.SIZE


@pytest.mark.parametrize("ratio", ["0.001", "0.0001"])
@pytest.mark.parametrize("values", ["raw", "qsgd(bits=4)"])
@pytest.mark.parametrize("sizes", [[25 * 10**6], [3 * 10**6], [125 * 10**5] * 2])
def test_a_block_may_have_all_values_that_are_sent(ratio, values, sizes):
    """So the messages of a lane are bounded by its blocks."""
    forms = tuple(Form((size,), "C", "float32") for size in sizes)
    codec = Scheme.parse(f"topk(ratio={ratio}, values={values})").codec
    plan = Plan("allgather", codec, 0, apart(512), forms, False, Host())
    assert plan.live <= 1.3 * max(2 * 4 * sum(sizes), 16 << 20, 512 * 2 * lanes.HELD_MESSAGE)


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
@pytest.mark.parametrize("sizes", [[0], [0, 0], [50, 5, 0], [0, 50, 0, 0], [1, 0]])
def test_tensors_without_elements_make_no_lane(schedule, sizes):
    forms = tuple(Form((size,), "C", "float32") for size in sizes)
    assert Plan(schedule, Scheme.parse("raw").codec, 0, apart(3), forms, False, Host()).lanes == 1


@pytest.mark.parametrize("sizes", [[25 * 10**6], [15 * 10**6, 10**7]])
def test_an_allgather_of_4_bits_on_1024_ranks_has_twice_the_vector(sizes):
    """In eight lanes it had 16 times the vector."""
    forms = tuple(Form((size,), "C", "float32") for size in sizes)
    plan = Plan("allgather", Scheme.parse("qsgd(bits=4)").codec, 0, apart(RANKS), forms, False, Host())
    assert plan.live < 2.5 * 4 * 25 * 10**6
    assert plan.lanes_at_once == 1
    assert 60 < plan.lanes < 80
    assert sum(piece.size for lane in plan.pieces for chunk in lane for piece in chunk.pieces) == sum(sizes)

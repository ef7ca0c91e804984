"""What travels: its bytes are counted honestly, and bytes of another call, or none at all, are never taken."""

import numpy as np
import pytest
from reductions import arrays, copies, residuals
from schemes import SCHEDULE_NAMES, WHOLE, variants

from gqallreduce import WireError
from gqallreduce.backends.buffer import Buffer
from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.indirect import IndirectPlan
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling.schedule import Send
from gqallreduce.scheduling.topology import apart
from gqallreduce.transport.exchange import FIRST

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
every_text = variants("text", WHOLE)


@pytest.fixture
def sent(monkeypatch):
    """[(sender, receiver, lane, bytes)] of all messages; `sent.change(data) -> data` may spoil them."""

    class Sent(list):
        @staticmethod
        def change(data):
            return data

    found = Sent()

    def record(source, to, lane, data):
        if lane >= FIRST:  # a small exchange
            return data
        found.append((source, to, lane, data.tobytes()))
        return found.change(data)

    monkeypatch.setattr(LocalAllreduce, "tap", staticmethod(record))
    return found


@every_text
@every_schedule
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_bytes_and_messages_are_those_that_travel(text, schedule, ranks, sent):
    plan = LocalAllreduce(f"{schedule}/{text}", ranks).plan(0, Buffer(np.zeros(300, np.float32)))
    local = LocalAllreduce(f"{schedule}/{text}/ef", ranks)
    if isinstance(plan, IndirectPlan):
        ((codec, size),) = plan.tensors[0].summed
        plan = plan.of_vectors(codec, (size,))
    local(arrays(1, ranks, (300,)), key="w")
    for rank, spent in enumerate(local.spent):
        mine = [data for sender, _, _, data in sent if sender == rank]
        assert spent.bytes_sent == sum(map(len, mine))
        assert spent.bytes_received == sum(len(data) for _, receiver, _, data in sent if receiver == rank)
        moves = [
            move for moves in SCHEDULES[schedule].rounds(rank, apart(ranks)) for move in moves if isinstance(move, Send)
        ]
        assert spent.messages == len(mine) == len(moves)
        bounds = [sum(frame.SIZE + plan.pieces[0][wire.chunk].bound for wire in move.wires) for move in moves]
        lengths = list(map(len, mine))
        assert all(length <= bound for length, bound in zip(lengths, bounds, strict=True))
        assert lengths == bounds or not local.scheme.codec.fixed_size


@every_schedule
def test_one_bit_costs_one_bit(schedule):
    """64 columns of 4096: a bit per value, 8 bytes per column, 32 per frame."""
    size, ranks = 4096 * 64, 4
    local = LocalAllreduce(f"{schedule}/onebit", ranks)
    lanes = local.plan(0, Buffer(np.zeros(size, np.float32))).lanes
    local(arrays(1, ranks, (size,)))
    wires = sum(
        len(move.wires)
        for moves in SCHEDULES[schedule].rounds(0, apart(ranks))
        for move in moves
        if isinstance(move, Send)
    )
    chunks = SCHEDULES[schedule].chunks(apart(ranks))
    assert local.spent[0].bytes_sent == wires * (size // 8 + 64 * 8) // chunks + 32 * wires * lanes


SPOILED = {
    "magic": (0, ForeignFrame),
    "version": (2, ForeignFrame),
    "step": (4, ForeignFrame),
    "signature": (11, ForeignFrame),
    "length": (21, ForeignFrame),
    "author": (24, ForeignFrame),
    "lane": (30, ForeignFrame),
    "last byte": (31, ForeignFrame),
}


@every_schedule
@pytest.mark.parametrize("field", SPOILED)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_frame_of_another_call_is_never_taken(schedule, field, ranks, sent):
    at, error = SPOILED[field]
    local = LocalAllreduce(f"{schedule}/onebit/ef", ranks)
    local(arrays(1, ranks, (40,)), key="w")
    before = residuals(local)

    def spoil(data):
        data[at] ^= 0x41
        return data

    sent.change = spoil
    with pytest.raises(error):
        local(arrays(2, ranks, (40,)), key="w")
    np.testing.assert_array_equal(residuals(local), before)


@every_text
@every_schedule
def test_a_frame_whose_wire_is_too_short_or_too_long_is_refused(text, schedule, sent):
    for change in (-1, 1):

        def spoil(data, change=change):
            grown = np.zeros(len(data) + change, np.uint8)
            grown[: len(data)] = data[: len(grown)]
            if len(grown) >= frame.SIZE:
                header = frame.read(grown)
                header._replace(word=header.word + change).write(grown)
            return grown

        sent.change = spoil
        # Longer than its room: the transport refuses it; shorter than a header: no message of ours.
        with pytest.raises((WireError, AssertionError, ForeignFrame)):
            LocalAllreduce(f"{schedule}/{text}", 2)(arrays(2, 2, (40,)))


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_what_is_forwarded_is_unchanged(schedule, ranks, sent):
    """Equal (author, chunk, hop) means equal bytes, whichever rank sends them."""
    LocalAllreduce(f"{schedule}/qsgd(bits=2)/ef", ranks)(copies(arrays(1, ranks, (90,))), key="w")
    owner = {}
    for _, _, _, data in sent:
        at = 0
        while at < len(data):
            header = frame.read(data[at:])
            wire = data[at : at + frame.SIZE + header.word]
            known = owner.setdefault((header.rank, header.hop), [])
            if wire not in known:
                known.append(wire)
            at += len(wire)
    for wires in owner.values():
        assert len(wires) <= SCHEDULES[schedule].chunks(apart(ranks))

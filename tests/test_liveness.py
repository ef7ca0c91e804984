"""What a rank must remember of each move, worked out backwards from what comes after it."""

import pytest
from schemes import RANKS, SCHEDULE_NAMES

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.liveness import DROPPED, RESULT, VALUE, Encoding, live_rounds
from gqallreduce.scheduling.schedule import Encode, Recv, Send
from gqallreduce.scheduling.topology import apart

every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
every_size = pytest.mark.parametrize("size", RANKS)


@every_schedule
@every_size
def test_the_steps_are_the_rounds(schedule, size):
    for rank in range(size):
        rounds = SCHEDULES[schedule].rounds(rank, apart(size))
        steps = live_rounds(SCHEDULES[schedule], rank, apart(size))
        assert len(steps) == len(rounds)
        for step, moves in zip(steps, rounds, strict=True):
            outgoing = [move.move if isinstance(move, Encoding) else move for move in step.outgoing]
            assert outgoing == [move for move in moves if not isinstance(move, Recv)]
            assert [each.move for each in step.receivings] == [move for move in moves if isinstance(move, Recv)]
            received = [each for each in step.terms + step.replaces if each.move.source != rank]
            assert sorted(map(id, received)) == sorted(map(id, step.receivings))
            sources = [each.move.source for each in step.terms]
            assert sources == sorted(sources)
            assert all(each.move.reduce for each in step.terms)
            assert not any(each.move.reduce for each in step.replaces)


@every_schedule
@every_size
def test_every_wire_is_sent_as_often_as_is_remembered(schedule, size):
    """Else a buffer would be given back too early, or never."""
    for rank in range(size):
        left, wires_sent = {}, 0
        for step in live_rounds(SCHEDULES[schedule], rank, apart(size)):
            for move in step.outgoing:
                if isinstance(move, Encoding):
                    left[move.move.wire] = move.sends
                else:
                    for wire in move.wires:
                        left[wire] -= 1
                        wires_sent += 1
            for receiving in step.terms + step.replaces:
                for arrival in receiving.arrivals:
                    if receiving.move.source == rank:  # own bytes, decoded at their place in the order
                        left[arrival.wire] -= 1
                    elif arrival.sends:
                        left[arrival.wire] = arrival.sends
        assert not any(left.values())
        moves = [move for moves in SCHEDULES[schedule].rounds(rank, apart(size)) for move in moves]
        assert wires_sent == sum(len(move.wires) for move in moves if isinstance(move, Send))


@every_schedule
@every_size
def test_what_is_kept_is_what_is_needed_later(schedule, size):
    """What is encoded or added to later is a running value; what is replaced is dropped; the rest is the result."""
    for rank in range(size):
        later = {}
        for step in reversed(live_rounds(SCHEDULES[schedule], rank, apart(size))):
            applied = [(each, arrival) for each in step.terms + step.replaces for arrival in each.arrivals]
            for number, (each, arrival) in reversed(list(enumerate(applied))):
                chunk = arrival.wire.chunk
                first = all(before.wire.chunk != chunk for _, before in applied[:number])
                own = any(term.move.source == rank and term.arrivals[0].wire.chunk == chunk for term in step.terms)
                assert arrival.adds == (not first or (each.move.reduce and not own))
                assert arrival.kept == (VALUE if arrival.adds else later.get(chunk, RESULT))
                later[chunk] = VALUE if arrival.adds else DROPPED
            for move in reversed(step.outgoing):
                if isinstance(move, Encoding):
                    assert isinstance(move.move, Encode)
                    assert move.kept == later.get(move.move.chunk, RESULT)
                    later[move.move.chunk] = VALUE


def test_a_program_is_worked_out_once():
    ring = SCHEDULES["ring"]
    assert live_rounds(ring, 1, apart(4)) is live_rounds(ring, 1, apart(4))

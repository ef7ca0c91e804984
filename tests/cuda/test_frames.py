"""The end of a message: header, bytes and what was found, at the place that MPI takes them from."""

import numpy as np
import pytest
from devices import both_orders, launcher, needs_device
from serial import shifted, status

from gqallreduce.backends.cuda import frames
from gqallreduce.coding import frame

pytestmark = [needs_device, pytest.mark.races]
SIZES = [0, 1, 15, 16, 17, 4095, 4096, 4097, 1 << 16, 300007]
AROUND = 9  # bytes behind the message, not to be written
HEADER = frame.SIZE
GIVEN = frame.Header(kind=1, step=2**32 - 1, signature=0x1122334455667788, word=0, rank=3, hop=4, lane=5)


def expected(nbytes, wire):
    header = bytearray(HEADER)
    GIVEN._replace(word=nbytes).write(header)
    return bytes(header) + wire[:nbytes].tobytes()


def ship(device, wire, nbytes, target, header=GIVEN, found=5):
    flaws, outcome = status(), np.full(2, 99, np.uint64)
    flaws[0] = found
    frames.frame_ship(device, header, wire, nbytes, target, flaws, outcome.view(np.uint8))
    assert flaws[0] == 0
    return [int(word) for word in outcome]


@both_orders
@pytest.mark.parametrize("n", SIZES)
def test_a_message_gets_its_header_and_moves(n, descending):
    wire = shifted(np.random.default_rng(n).integers(0, 256, n + AROUND, np.uint8), 4)
    for most, nbytes in ((n, n), (n, frames.Length(np.array([n], np.uint64)))):
        target = np.full(HEADER + n + AROUND, 0xEE, np.uint8)
        assert ship(launcher(descending), wire[:most], nbytes, target) == [5, n]
        assert target[: HEADER + n].tobytes() == expected(n, wire)
        assert (target[HEADER + n :] == 0xEE).all()


@pytest.mark.parametrize("n", [1, 4097])
def test_a_message_may_be_shorter_than_its_room_but_is_never_longer(n):
    wire = np.arange(5000).astype(np.uint8)
    target = np.full(HEADER + 5000 + AROUND, 0xEE, np.uint8)
    assert ship(launcher(), wire, frames.Length(np.array([n], np.uint64)), target, found=0) == [0, n]
    assert target[: HEADER + n].tobytes() == expected(n, wire)
    assert (target[HEADER + n :] == 0xEE).all()
    assert ship(launcher(), wire, frames.Length(np.array([2**40], np.uint64)), target) == [5, 5000]
    assert (target[HEADER + 5000 :] == 0xEE).all()


def test_a_message_that_lies_behind_its_header_stays_there():
    room = np.arange(HEADER + 4097 + AROUND).astype(np.uint8)
    wire = room[HEADER : HEADER + 4097]
    before = room.copy()
    assert ship(launcher(), wire, 4097, room[: HEADER + 4097]) == [5, 4097]
    assert room[: HEADER + 4097].tobytes() == expected(4097, before[HEADER:])
    assert (room[HEADER:] == before[HEADER:]).all()


def test_without_a_target_only_the_outcome_is_written():
    assert ship(launcher(), None, 77, None, header=None) == [5, 77]

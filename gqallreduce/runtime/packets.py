"""Messages that all ranks get in a call: each rank's in a packet with a header, of one size on all ranks."""

from __future__ import annotations

import numpy as np

from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import WireError
from gqallreduce.transport.exchange import PACKETS, Gather


def gather(operation, message: np.ndarray):
    """A stage; returns the messages of all ranks, a row each. What is not finite at any rank is noted.

    operation
        an IndirectOperation.
    """
    plan = operation.plan
    packet = np.empty(frame.SIZE + message.size, np.uint8)
    packet[frame.SIZE :] = message
    _header(operation, message.size).write(packet)
    if plan.size == 1:
        return packet[None, frame.SIZE :]
    asked = Gather(plan.rank, plan.size, PACKETS, packet, operation.signature)
    asked.spent = operation.spent
    yield asked
    everyone = asked.found
    for rank, each in enumerate(everyone):
        _accept(operation, rank, each)
    return everyone[:, frame.SIZE :]


def _header(operation, nbytes: int) -> frame.Header:
    rank, flaw = operation.plan.rank, operation.flaws.first
    if flaw is None:
        return frame.Header(frame.DATA, operation.step, operation.signature, nbytes, rank)
    return frame.Header(frame.NOT_FINITE, operation.step, operation.signature, flaw[1], flaw[0])


def _accept(operation, rank: int, packet: np.ndarray) -> None:
    """ForeignFrame unless it is of this call; its flaw is noted."""
    try:
        header = frame.read(packet)
    except WireError:
        raise ForeignFrame(rank) from None
    if (header.signature, header.step) != (operation.signature, operation.step):
        raise ForeignFrame(rank)
    if header.kind == frame.NOT_FINITE:
        operation.flaws.note((0, 0), (header.rank, header.word))
    elif (header.kind, header.rank, header.word) != (frame.DATA, rank, packet.size - frame.SIZE):
        raise ForeignFrame(rank)

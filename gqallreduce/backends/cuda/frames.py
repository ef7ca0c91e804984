"""Launches of frames.cu: the end of every message."""

from __future__ import annotations

import struct

import numpy as np

from gqallreduce.backends.cuda.launching import THREADS
from gqallreduce.coding import frame

OUTCOME = 16  # bytes: what the kernels found, the message's bytes (uint64 each)
_BLOCKS = 64  # at most: the link to the host is full long before
_WORDS = struct.Struct("<4Q")


class Length:
    """Bytes of a message that only the device knows: `array`, uint64[1]."""

    def __init__(self, array):
        self.array = array


def frame_ship(launch, header, wire, nbytes, target, status, outcome) -> None:
    """Write to `outcome` what the kernels since the last call found (and forget it), and `nbytes`.

    With a target, which may be page-locked host memory, also the header, for `nbytes` bytes, and behind it the wire,
    unless it lies there already. `nbytes` is a number or a Length; then `wire` is as long as it can be.
    """
    known = not isinstance(nbytes, Length)
    most = np.uint64(nbytes if known else wire.size)
    words = _WORDS.unpack(bytes(frame.SIZE)) if header is None else _words(header)
    blocks = 1 if target is None else min(-(-int(most) // (16 * THREADS)), _BLOCKS) or 1
    length = None if known else nbytes.array
    given = *(np.uint64(word) for word in words), wire, length, most, target, status, outcome
    launch("frames", "frame_ship", blocks, THREADS, *given)


def _words(header: frame.Header) -> tuple:
    packed = bytearray(frame.SIZE)
    header.write(packed)
    return _WORDS.unpack(packed)

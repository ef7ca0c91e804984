"""The header of every frame: 32 bytes that say to which call it belongs, or what its sender reports.

offset  size  field
0       2     magic "GQ"
2       1     version of the wire format
3       1     kind: 0 data, 1 not finite, 8 exposed; on the control channel 2 abort, 3 present, 4 absent, 5 meeting,
              6 go, 7 object
4       4     step of the key, modulo 2^32; control: number of the call given up, or of calls made
8       8     signature of the call (one hash over key, scheme, shape, dtype, order, average, seed, version, object);
              control: which duplicate of the communicator
16      8     data: bytes that follow; exposed: bytes where the sender keeps them; not finite: C-order index; abort:
              reason + 2^8 * rank that caused it + 2^40 * number of calls after that one which are given up too; object:
              its number; control else: attempt to meet + 2^32 if the sender could go on with the duplicate
24      4     data: author of the wire; not finite: rank concerned, 2^32 - 1 for an overflow; control: sender
28      2     hop of the encoding
30      1     lane
31      1     zero

Behind the header of exposed values:

32      8     address of the values in the sender's process
40      8     address of their mark there
48      8     the mark, not 0
56      8     flags: 1 the sender waits for an answer; values that were not checked to be finite: 2 own ones of the
              author, 4 of a sum

All integers are little-endian and unsigned. The header says *what*; the MPI tag says *when*. Frames of the control
channel (control.py) are a header alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gqallreduce.errors import WireError

VERSION = 1
SIZE = 32
DATA, NOT_FINITE, ABORT, PRESENT, ABSENT, MEETING, GO, OBJECT, EXPOSED = range(9)
EXPOSURE = 32  # bytes behind the header of exposed values
LARGEST_STEP = 2**32 - 1
NO_RANK = 2**32 - 1
REASONS = REASON_MISMATCH, REASON_TIMEOUT, REASON_ARGUMENTS, REASON_FAILURE, REASON_ENDED = 1, 2, 3, 4, 5

_LAYOUT = struct.Struct("<2sBBIQQIHBB")
_MAGIC = b"GQ"


class Header(NamedTuple):
    kind: int
    step: int
    signature: int
    word: int
    rank: int
    hop: int = 0
    lane: int = 0

    def write(self, buffer) -> None:
        """Into the first 32 bytes of a writable buffer."""
        kind, step, signature, word, rank, hop, lane = self
        _LAYOUT.pack_into(buffer, 0, _MAGIC, VERSION, kind, step & LARGEST_STEP, signature, word, rank, hop, lane, 0)


def read(buffer, any_version: bool = False) -> Header:
    """The header at the start of a buffer; WireError if it is none, or of another version of the wire format."""
    if len(buffer) < SIZE:
        raise WireError(f"a message of {len(buffer)} bytes is shorter than its {SIZE}-byte header")
    magic, version, kind, step, signature, word, rank, hop, lane, zero = _LAYOUT.unpack_from(buffer, 0)
    if magic != _MAGIC or (version != VERSION and not any_version) or kind > EXPOSED or zero:
        raise WireError(
            f"no frame of version {VERSION}: magic {magic!r}, version {version}, kind {kind}, last byte {zero}"
        )
    return Header(kind, step, signature, word, rank, hop, lane)


def is_before(step: int, other: int) -> bool:
    """Does one count come before another, both modulo 2^32 and less than 2^31 apart?"""
    return (step - other) & LARGEST_STEP >= 1 << 31


def abort_word(reason: int, concerned: int, more: int) -> int:
    """The word of an abort: why, which rank caused it, how many calls after that one are given up too."""
    return reason | concerned << 8 | min(more, 2**24 - 1) << 40


def abort_of(header: Header) -> tuple[int, int, int]:
    """(reason, rank that caused it, number of calls after that one which are given up too)."""
    return header.word & 0xFF, header.word >> 8 & 0xFFFFFFFF, header.word >> 40

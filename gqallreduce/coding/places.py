"""The places of chosen elements as bytes: per block of 65536 elements offsets of 16 bits, or a bit per element.

A block begins with a uint16: how many offsets (uint16, ascending) follow; or 0xFFFF, and a bit per element, low bits
first. The shorter form is written, offsets where both are alike.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.errors import WireError

BLOCK = 1 << 16
_BITS = 0xFFFF


def places_bound(elements: int, most: int) -> int:
    """The most bytes for at most so many of the elements."""
    blocks = -(-elements // BLOCK)
    return 2 * blocks + min(2 * most, elements // 8 + blocks)


def write_places(index, elements: int, out) -> int:
    """The places of `index` (ascending, below `elements`) in uint8 `out`; returns the bytes."""
    ends = np.searchsorted(index, np.arange(BLOCK, elements, BLOCK)).tolist()
    at = begin = 0
    for number, end in enumerate([*ends, len(index)] if elements else []):
        offsets = (index[begin:end] & (BLOCK - 1)).astype("<u2")
        size = min(BLOCK, elements - number * BLOCK)
        header, body = len(offsets), offsets.view(np.uint8)
        if len(body) > -(-size // 8):
            chosen = np.zeros(size, bool)
            chosen[offsets] = True
            header, body = _BITS, np.packbits(chosen, bitorder="little")
        out[at], out[at + 1] = header & 0xFF, header >> 8
        out[at + 2 : at + 2 + len(body)] = body
        at, begin = at + 2 + len(body), end
    return at


def read_places(data, elements: int) -> tuple[np.ndarray, int]:
    """(int64 places, ascending, the bytes that they take); WireError for what is none."""
    found, at = [np.empty(0, np.int64)], 0
    for first in range(0, elements, BLOCK):
        size, header = min(BLOCK, elements - first), _uint16(data, at, 1)[0]
        at += 2
        if header == _BITS:
            nbytes = -(-size // 8)
            if len(data) - at < nbytes:
                raise WireError(f"{len(data) - at} bytes of places, expected {nbytes}")
            bits = np.unpackbits(data[at : at + nbytes], bitorder="little")
            offsets = np.flatnonzero(bits)
        else:
            nbytes = 2 * int(header)
            offsets = _uint16(data, at, header).astype(np.int64)
        at += nbytes
        if offsets.size and (offsets[-1] >= size or (offsets[1:] <= offsets[:-1]).any()):
            raise WireError(f"places of a block do not ascend, or are not below {size}")
        found.append(offsets + first)
    return np.concatenate(found), at


def _uint16(data, at: int, count: int) -> np.ndarray:
    if len(data) - at < 2 * count:
        raise WireError(f"{len(data) - at} bytes of places, expected {2 * int(count)}")
    return data[at : at + 2 * int(count)].copy().view("<u2")

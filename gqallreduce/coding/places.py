"""The places of chosen elements as bytes: per block of 65536 elements offsets of 16 bits, or a bit per element.

A block begins with a uint16: how many offsets (uint16, ascending) follow; or 0xFFFF, and a bit per element, low bits
first. The shorter form is written, offsets where both are alike. The kernels `places_write` and `places_read` do it.
"""

from __future__ import annotations

BLOCK = 1 << 16


def places_bound(elements: int, most: int) -> int:
    """The most bytes for at most so many of the elements."""
    blocks = -(-elements // BLOCK)
    return 2 * blocks + min(2 * most, elements // 8 + blocks)

"""64-bit hashes that are alike on every machine (Python's `hash` is not)."""

from __future__ import annotations

import hashlib


def hash64(*parts) -> int:
    """Of objects, by their repr, which must be alike on all ranks."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def checksum(data) -> int:
    """Of the bytes of a buffer."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")

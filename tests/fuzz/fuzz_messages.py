#!/usr/bin/env python3
"""Whole messages of every codec, and headers of frames, on any bytes: a target of Atheris, which `make fuzz` runs.

libFuzzer chooses the bytes by what they reach in the code that is in Python. A message is refused, or yields finite
values; a header is refused, or is written as it was read.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

IS_TARGET = __name__ == "__main__" and sys.argv[1:] != ["--seeds"]
if IS_TARGET:
    import atheris

sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("codecs", "kernels")]

with atheris.instrument_imports(include=["gqallreduce"]) if IS_TARGET else contextlib.nullcontext():
    import schemes

    import gqallreduce as gq
    from gqallreduce.coding import frame

# What is decoded like a vector, and like a matrix: gradiveq, isgq and powersgd send more of one.
LIKE = (1, 7, 40, (3, 4), (5, 7))
SCHEMES = [gq.Scheme.parse(text) for text in schemes.TEXTS]


def with_header(scheme: gq.Scheme, payload: bytes) -> bytes:
    found = bytearray(frame.SIZE)
    frame.Header(frame.DATA, 0, scheme._signature(), len(payload), 0).write(found)
    return bytes(found) + payload


def whole_message(scheme: gq.Scheme, like, data: bytes, header: bool) -> None:
    try:
        y = scheme.decode(with_header(scheme, data) if header else data, like)
    except gq.WireError:
        return
    assert y.shape == (np.prod(like),), (scheme, like, y.shape)
    assert np.isfinite(y).all(), (scheme, like)


def one_header(data: bytes) -> None:
    try:
        header = frame.read(data)
    except gq.WireError:
        return
    again = bytearray(frame.SIZE)
    header.write(again)
    assert bytes(again) == data[: frame.SIZE], header


def one_input(data: bytes) -> None:
    """A byte says which scheme; one whether a good header is put first (bit 0) and which array (bits 2 to 7)."""
    if len(data) < 2:
        return
    number, how = data[0] % (len(SCHEMES) + 1), data[1]
    if number == len(SCHEMES):
        one_header(data[2:])
    else:
        whole_message(SCHEMES[number], LIKE[how // 4 % len(LIKE)], data[2:], bool(how & 1))


def seeds() -> list[bytes]:
    """A good message of every scheme, for every array, and a good header."""
    found = []
    for number, scheme in enumerate(SCHEMES):
        for kind, like in enumerate(LIKE):
            values = np.arange(np.prod(like), dtype=np.float32).reshape(like) - 3
            found.append(bytes([number, 4 * kind + 1]) + scheme.encode(values)[frame.SIZE :])
    header = bytearray(frame.SIZE)
    frame.Header(frame.DATA, 7, 2**63 + 1, 40, 3, 1, 2).write(header)
    return [*found, bytes([len(SCHEMES), 0]) + header]


if IS_TARGET:
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
elif __name__ == "__main__":
    print("\n".join(each.hex() for each in seeds()))

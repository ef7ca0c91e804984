"""Messages that never change: tests/golden/*.bin, made on purpose only by `python tests/codecs/golden.py --write`.

The inputs are integers turned into floats by exact steps, so that no library's random generator is part of the format.
"""

import math
import sys
from pathlib import Path

import numpy as np

from gqallreduce import Outer, Scheme

FOLDER = Path(__file__).resolve().parent.parent / "golden"
SIZES = (0, 1, 31, 1000, 4099)
# Of gradients given as products; numbers that are fitted depend on LAPACK, and have none.
OUTER = ("isgq(bits=2, send=factors)", "isgq(bits=3, x_bits=1, scale=matrix, send=factors)")


def values(size: int) -> np.ndarray:
    """float32 values of many magnitudes, both signs, with zeros and ties."""
    state = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(29)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(32)
    mantissa = (state & np.uint64(0xFF)).astype(np.float32) - np.float32(128)
    return np.ldexp(mantissa, (state >> np.uint64(60)).astype(np.int32) - 12).astype(np.float32)


def file(text: str) -> Path:
    return FOLDER / ("".join(letter if letter.isalnum() else "_" for letter in text).strip("_") + ".bin")


def messages(text: str) -> bytes:
    """All sizes end to end; seed and step follow from the size."""
    scheme = Scheme.parse(text)
    return b"".join(
        scheme.encode(values(size).reshape(shape(scheme, size)), seed=size, step=size + 1) for size in SIZES
    )


def outer_file(text: str) -> Path:
    return FOLDER / "outer" / file(text).name


def outer_messages(text: str) -> bytes:
    """Of a dense layer and of a convolution."""
    scheme, padded = Scheme.parse(text), {"kernel": (3, 5), "padding": (1, 1)}
    found = b""
    for x, delta, options in [((3, 5), (3, 4), {}), ((2, 2, 4, 4), (2, 3, 4, 2), padded)]:
        both = [values(2 * math.prod(each))[math.prod(each) :].reshape(each) for each in (x, delta)]
        found += scheme.encode(Outer(np.abs(both[0]), both[1], **options), seed=5, step=7)
    return found


def shape(scheme: Scheme, size: int) -> tuple[int, ...]:
    """A matrix too, where codecs look at that."""
    return (25, 40) if size == 1000 and scheme.codec.indirect else (size,)


def check_golden(text: str) -> None:
    """The bytes on file are what is made today, and decode."""
    assert file(text).read_bytes() == messages(text), f"{text}: the wire format has changed; see {__file__}"
    data = file(text).read_bytes()
    scheme, at = Scheme.parse(text), 0
    for size in SIZES:
        nbytes = 32 + int.from_bytes(data[at + 16 : at + 24], "little")
        y = scheme.decode(data[at : at + nbytes], shape(scheme, size))
        assert y.shape == (size,)
        assert np.isfinite(y).all()
        at += nbytes
    assert at == len(data)


def write() -> None:
    from schemes import TEXTS

    FOLDER.mkdir(exist_ok=True)
    for text in TEXTS:
        file(text).write_bytes(messages(text))
    (FOLDER / "outer").mkdir(exist_ok=True)
    for text in OUTER:
        outer_file(text).write_bytes(outer_messages(text))


if __name__ == "__main__" and "--write" in sys.argv:
    write()

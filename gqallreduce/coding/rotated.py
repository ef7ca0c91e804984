"""Codecs that rotate the values first: at random, so that each of them becomes about normal, whatever they were.

A rotation is the product of random signs and the orthonormal Walsh-Hadamard transform, bucket by bucket. EdenCodec
rotates each message by itself; Rotation does it once for all ranks, and the sum is that of rotated values.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.codec import FixedSizeCodec, Region, integer
from gqallreduce.coding.layout import BLOCK, Form, Grid
from gqallreduce.coding.transform import Transform

BUCKET_MOST = 1 << 20  # of an EdenCodec
ROTATED_MOST = 1 << 16  # of a Rotation; blocks are whole buckets then
assert BLOCK % ROTATED_MOST == 0


class EdenCodec(FixedSizeCodec):
    """A subclass has `bits`, 1 to 4, and the option `bucket`."""

    unbiased = batches = host_only = True
    bits: ClassVar[int]

    def __post_init__(self):
        integer(self, "bucket", 1, BUCKET_MOST)

    def grid(self, columns: Grid) -> Grid:
        return Grid(self.bucket)

    def nbytes(self, region: Region) -> int:
        return _kernels.eden_nbytes(region.table, self.bits)

    def write(self, x, residual, new_residual, payload, region, stream):
        return self.arithmetic.eden_encode(x, residual, new_residual, payload, self.bits, region, stream)

    def read(self, payload, y, region, scale, streaming):
        self.arithmetic.eden_decode(payload, y, self.bits, region, scale, add=False)

    def read_add(self, payload, y, region):
        self.arithmetic.eden_decode(payload, y, self.bits, region, 1.0, add=True)


class Rotation(Transform):
    """Buckets rotated, each by one round of signs and Hadamard transform. What is drawn is a key of 64 bits.

    A vector of n values becomes one of as many; `bucket` is a power of two, at most ROTATED_MOST.
    """

    def __init__(self, n: int, bucket: int):
        self.bucket, self.form = bucket, Form((n,), "C", "float32")

    def draw(self, stream) -> int:
        words = np.empty(4, np.uint16)
        _kernels.random16(stream, 0, words)
        return int(words.view(np.uint64)[0])

    def shorten(self, drawn, begin, v, coefficients):
        _kernels.rotate(v, coefficients[begin : begin + v.size], begin, self.bucket, drawn)

    def leave(self, drawn, begin, v, coefficients):
        v[:] = 0

    def lengthen(self, drawn, begin, coefficients, y, add):
        here = np.asarray(coefficients[begin : begin + y.size], np.float32)
        values = np.empty(y.size, np.float32)
        _kernels.rotate(here, values, begin, self.bucket, drawn, back=True)
        if add:
            y += values
        else:
            y[:] = values

    def origin(self, drawn, numbers):
        """A bucket by its first value."""
        return numbers // self.bucket * self.bucket

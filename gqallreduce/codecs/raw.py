"""No compression: the values in the buffer's own dtype, little-endian, one after the other.

float32 and float64 travel exactly. float16 and bfloat16 are added in float32 and rounded (to nearest even) when sent.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.codec import Codec, FixedSizeCodec, Region, register
from gqallreduce.layout import Grid

assert sys.byteorder == "little", "the wire formats are little-endian"


@register
class Raw(FixedSizeCodec):
    """The exact allreduce on our own schedules; the oracle of the others.

    Error: none, but the addition's own, in the order that `simulate` prints (and the rounding of 16-bit buffers).
    Source: the contract of MPI_Allreduce; differs: the order of additions is fixed.
    """

    name = "raw"
    source = "baseline: MPI_Allreduce, with a fixed order of additions"
    example = "ring/raw"
    unbiased = True
    deterministic = True
    linear = True
    dtype: ClassVar[str] = "float32"
    itemsize: ClassVar[int] = 4

    def bind(self, dtype: str) -> Codec:
        return _IN[dtype]()

    def grid(self, columns: Grid) -> Grid:
        return Grid(1)

    def nbytes(self, region: Region) -> int:
        return self.itemsize * region.size

    def write(self, x, owed, owing, payload, region, stream):
        return _kernels.cast_encode(x, owed, owing, payload, self.dtype)

    def read(self, payload, y, region, scale):
        _kernels.cast_decode(payload, y, scale, self.dtype)

    def read_add(self, payload, y, region):
        _kernels.cast_decode_add(payload, y, self.dtype)


class _RawFloat64(Raw):
    dtype = "float64"
    itemsize = 8
    working = np.dtype(np.float64)


class _RawFloat16(Raw):
    dtype = "float16"
    itemsize = 2


class _RawBfloat16(Raw):
    dtype = "bfloat16"
    itemsize = 2


_IN = {cls.dtype: cls for cls in (Raw, _RawFloat64, _RawFloat16, _RawBfloat16)}

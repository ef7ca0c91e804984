"""No compression: the values in the buffer's own dtype, little-endian, one after the other.

float32 and float64 travel exactly. float16 and bfloat16 are added in float32 and rounded (to nearest even) when sent.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import numpy as np

from gqallreduce import _kernels
from gqallreduce.codec import Codec, FixedSizeCodec, Region, register
from gqallreduce.errors import WireError
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
    format: ClassVar[int] = 3
    itemsize: ClassVar[int] = 4

    def bind(self, dtype: str) -> Codec:
        return _IN[dtype]()

    def grid(self, columns: Grid) -> Grid:
        return Grid(1)

    def nbytes(self, region: Region) -> int:
        return self.itemsize * region.size

    def write(self, x, owed, owing, payload, region, stream):
        return _kernels.plain_encode(x, owed, owing, payload, self.format)

    def read(self, payload, y, region, scale, streaming):
        _kernels.plain_decode(payload, y, self.format, scale, False, streaming)

    def read_add(self, payload, y, region):
        _kernels.plain_decode(payload, y, self.format, 1.0, True)


class _RawFloat16(Raw):
    format = 0
    itemsize = 2


class _RawBfloat16(Raw):
    format = 1
    itemsize = 2


class _RawFloat64(Raw):
    """In float64 throughout; nothing is lost, so nothing is owed."""

    itemsize = 8
    working = np.dtype(np.float64)

    def write(self, x, owed, owing, payload, region, stream):
        sent = payload.view(np.float64)
        np.copyto(sent, x)
        if owed is not None:
            sent += owed
        if owing is not None:
            owing[:] = 0
        return not np.isfinite(sent).all()

    def read(self, payload, y, region, scale, streaming):
        np.multiply(self._finite(payload), scale, out=y)

    def read_add(self, payload, y, region):
        y += self._finite(payload)

    def _finite(self, payload) -> np.ndarray:
        values = payload.view(np.float64)
        if not np.isfinite(values).all():
            raise WireError("a value on the wire is not finite")
        return values


_IN = {"float32": Raw, "float16": _RawFloat16, "bfloat16": _RawBfloat16, "float64": _RawFloat64}

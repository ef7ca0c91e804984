"""No compression: the values in the buffer's own dtype.

float32 and float64 travel exactly; on float16 and bfloat16 buffers `raw` is the codec of that name.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.codec import Codec, register
from gqallreduce.errors import WireError
from gqallreduce.plain import PlainCodec
from gqallreduce.registry import CODECS


@register
class Raw(PlainCodec):
    """The exact allreduce on our own schedules; the oracle of the others.

    Error: none, but the addition's own, in the order that `simulate` prints (and the rounding of 16-bit buffers).
    Source: the contract of MPI_Allreduce; differs: the order of additions is fixed.
    """

    name = "raw"
    source = "baseline: MPI_Allreduce, with a fixed order of additions"
    example = "ring/raw"
    unbiased = True
    linear = True

    def bind(self, dtype: str, terms: int = 1) -> Codec:
        if dtype == "float32":
            return self
        return _RawFloat64() if dtype == "float64" else CODECS[dtype]()


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

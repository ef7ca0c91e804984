"""No compression: the values in the buffer's own dtype.

float32 and float64 travel exactly; on float16 and bfloat16 buffers `raw` is the codec of that name.
"""

from __future__ import annotations

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding import arithmetic
from gqallreduce.coding.codec import RegionCodec, register
from gqallreduce.coding.layout import Form
from gqallreduce.coding.plain import PlainCodec
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
    omega = 0.0
    linear = True

    def bind(self, form: Form, size: int = 1, arithmetic=arithmetic) -> RegionCodec:
        codec = self
        if form.dtype != "float32":
            codec = _RawFloat64() if form.dtype == "float64" else CODECS[form.dtype]()
        return codec.knowing(arithmetic=arithmetic)


class _RawFloat64(Raw):
    """In float64 throughout; nothing is lost, so the new residual is zero."""

    itemsize = 8
    batches = False
    working = np.dtype(np.float64)

    def coder(self):
        return _kernels.wide_coder()

    def write(self, x, residual, new_residual, payload, region, stream):
        if new_residual is not None:
            self.arithmetic.clear(new_residual)
        return self.arithmetic.wide_encode(x, residual, payload)

    def read(self, payload, y, region, scale, streaming):
        self.arithmetic.wide_decode(payload, y, scale, add=False)

    def read_add(self, payload, y, region):
        self.arithmetic.wide_decode(payload, y, 1.0, add=True)

"""The types of elements that are taken, and the names of others for messages."""

from __future__ import annotations

import numpy as np

ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
FLOATS = tuple(ITEMSIZE)
FORMATS = {"float16": 0, "bfloat16": 1, "float64": 2}  # as the kernels number them


def name_of(dtype: np.dtype) -> str:
    """As NumPy prints it, with the byte order where that is not the machine's (x86-64: little-endian)."""
    if dtype.names:
        return str(dtype)
    return dtype.name if dtype.isnative else f"big-endian {dtype.name}"


def require_float(name: str, where: str = "") -> str:
    """The name, if it is one of FLOATS; else TypeError."""
    if name not in FLOATS:
        raise TypeError(f"got dtype {name}{where}, expected native {', '.join(FLOATS)}")
    return name

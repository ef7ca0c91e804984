"""Products of two thin matrices, block by block of rows, with one order of additions (csrc/gq/factors.hpp)."""

from __future__ import annotations

from functools import partial

import numpy as np

from gqallreduce import _kernels

_FEW = 16  # ranks, up to which the second matrix is read as it is


def multiplier(q: np.ndarray, rank: int):
    """A function (p, y, first row, subtract=False, add=False): y := rows of the transposed P times Q, or y -=, y +=.

    q
        float32, rank rows end to end, not to be changed meanwhile. With many ranks a copy is laid out for the kernel.
    """
    if rank <= _FEW:
        return partial(_by, q, rank)
    return partial(_by_packed, _kernels.pack_factors(q, rank), q.size // rank, rank)


def _by(q, rank, p, y, first, **how):
    _kernels.product_of_factors(p, q, y, rank, first, **how)


def _by_packed(packed, columns, rank, p, y, first, **how):
    _kernels.product_of_packed(p, packed, y, columns, rank, first, **how)

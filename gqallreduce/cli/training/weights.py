"""A weight and its gradient as LBANN holds them: column-major matrices with a leading dimension.

Columns begin at multiples of `align` elements, so a matrix whose rows are no such multiple has gaps between its
columns. The gaps hold zeros and stay zero: an element-wise update of the memory leaves them so.
"""

import hashlib

import numpy as np


class Weight:
    """A named parameter.

    value, gradient
        views in Fortran order: (rows, columns), or (rows,) for a bias.
    value_memory, gradient_memory
        the memory under them as vectors, gaps included.
    factors
        of a layer's weight: (input, delta), a row per sample, of which `gradient` was made by this rank: the
        transposed delta times the input. None of a bias.
    """

    def __init__(self, name, shape, align, dtype):
        self.name = name
        self.value_memory, self.value = fortran(shape, align, dtype)
        self.gradient_memory, self.gradient = fortran(shape, align, dtype)
        self.factors = None

    def digest(self):
        """8 bytes that tell one value from another."""
        return hashlib.blake2b(self.value_memory, digest_size=8).digest()


def fortran(shape, align, dtype):
    """(memory, view) of a zero matrix whose leading dimension is a multiple of `align`; a vector has no gaps."""
    rows, columns = shape if len(shape) == 2 else (*shape, 1)
    leading = -(-rows // align) * align if len(shape) == 2 else rows
    memory = np.zeros(leading * columns, dtype)
    view = memory.reshape(columns, leading).T[:rows]
    return memory, view if len(shape) == 2 else view[:, 0]

"""A basis of principal components, and what a key remembers of how it is learned (codecs/gradiveq.py).

calls, since
    how many calls the key has had; in which its training begins, or began.
gathered, total
    float64, while training: products of the values of a slice, summed over slices and calls; sums of all values over
    calls, None if means are not wanted.
basis, mean, told
    after it: float32 of (d, K) and of all values, None if means are not wanted; 63 bits of the basis, for headers.
"""

from __future__ import annotations

import numpy as np

from gqallreduce.coding.preparing import mark_of

EMPTY = {"calls": 0, "since": 0, "gathered": None, "total": None, "basis": None, "mean": None, "told": 0}


def principal(products: np.ndarray, kept: int, left: float) -> np.ndarray:
    """The leading eigenvectors of a symmetric matrix, float32, a row each: `kept`, or as few as leave this share of the
    sum of eigenvalues; none if all are 0.
    """
    values, vectors = np.linalg.eigh(products)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1].T
    total = values.sum()
    if not total > 0:
        return np.zeros((0, len(products)), np.float32)
    enough = int(np.searchsorted(np.cumsum(values), (1 - left) * total)) + 1
    return np.ascontiguousarray(vectors[: kept or min(enough, len(products))], np.float32)


def checked(learned: dict, length: int, size: int) -> dict:
    """What a key has learned, from a checkpoint; ValueError if it is unfit."""
    found = {name: learned[name] for name in EMPTY}
    for name in ("calls", "since"):
        value = found[name]
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**62:
            raise ValueError(f"got {name}={value!r}, expected a number of calls")
        found[name] = int(value)
    shapes = {"gathered": (length, length), "total": (size,), "basis": (None, length), "mean": (size,)}
    for name, shape in shapes.items():
        if found[name] is not None:
            found[name] = _array(name, found[name], shape, np.float64 if name in ("gathered", "total") else np.float32)
    basis = found["basis"]
    if basis is not None and (found["gathered"] is not None or not 0 < len(basis) <= length):
        raise ValueError(f"got a basis of {len(basis)} vectors, and products: {found['gathered'] is not None}")
    found["told"] = 0 if basis is None else mark_of(len(basis), basis) >> 1
    return found


def _array(name: str, value, shape: tuple, dtype) -> np.ndarray:
    array = np.array(value)
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if array.dtype.kind != "f" or not fits or not np.isfinite(array).all():
        raise ValueError(f"got {name} of shape {array.shape}, expected finite numbers of {shape}")
    return array.astype(dtype)

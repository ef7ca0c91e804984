"""Codecs whose levels are powers of two, as their docstrings say them: levels, variance, spread. In float64."""

import itertools

import numpy as np
from contract import cuts


def magnitudes(codec) -> np.ndarray:
    """The levels that are not negative, ascending."""
    if codec.zero_level:
        return np.array([0.0, *(2.0**-j for j in reversed(range(2 ** (codec.bits - 1) - 1)))])
    return np.array([2.0**-j for j in reversed(range(2 ** (codec.bits - 1)))])


def levels(codec) -> np.ndarray:
    """All of them, ascending, each once."""
    positive = magnitudes(codec)
    return np.unique(np.concatenate([-positive, positive]))


def norms(codec, v, found) -> np.ndarray:
    """Per element, the norm of its bucket."""
    made, v = np.empty(v.size), v.astype(np.float64)
    for begin, end in itertools.pairwise(cuts(found)):
        part = v[begin:end]
        made[begin:end] = np.sqrt((part**2).sum()) if codec.norm == "l2" else np.abs(part).max(initial=0)
    return made


def neighbours(codec, v, found) -> tuple[np.ndarray, np.ndarray]:
    """The level below each value and the one above, times the norm."""
    norm, known = norms(codec, v, found), levels(codec)
    ratio = np.divide(v, norm, out=np.zeros(v.size), where=norm > 0)
    low = np.clip(np.searchsorted(known, ratio, side="right") - 1, 0, known.size - 2)
    return known[low] * norm, known[low + 1] * norm


def variance(codec, v, found) -> np.ndarray:
    below, above = neighbours(codec, v, found)
    return np.maximum((v - below) * (above - v), 0)


def spread(codec, v, found) -> np.ndarray:
    below, above = neighbours(codec, v, found)
    return above - below

"""Level codecs other than qsgd, as their docstrings say them: levels, scales, variance, spread. In float64."""

import itertools

import numpy as np
from contract import cuts

from gqallreduce import _kernels

# mantissa bits, exponent of the smallest normal number, largest: OCP MX 1.0, tables 1 to 6; OCP FP8, table 1
FORMATS = {
    "fp4": (1, 0, 6.0),
    "fp6_e3m2": (2, -2, 28.0),
    "fp6_e2m3": (3, 0, 7.5),
    "fp8_e4m3": (3, -6, 448.0),
    "fp8_e5m2": (2, -14, 57344.0),
    "int8": (6, 0, 127 / 64),
}


def of_format(name: str) -> list[float]:
    """The numbers of a format that are not negative, ascending."""
    mantissa, lowest, largest = FORMATS[name]
    numbers = [number * 2.0 ** (lowest - mantissa) for number in range(2**mantissa)]
    for exponent in itertools.count(lowest):
        for part in range(2**mantissa):
            numbers.append((1 + part / 2**mantissa) * 2.0**exponent)
            if numbers[-1] == largest:
                return numbers


def magnitudes(codec) -> np.ndarray:
    """The levels that are not negative, ascending, in units of the scale."""
    if codec.name in ("fp8", "mx"):
        return np.array(of_format("fp8_" * (codec.name == "fp8") + codec.format))
    zero = codec.name == "natural" or codec.zero_level
    powers = [2.0**-j for j in reversed(range(2 ** (codec.bits - 1) - zero))]
    return np.array([0.0] * zero + powers)


def levels(codec) -> np.ndarray:
    """All of them, ascending, each once."""
    if codec.learns:  # test_alq.py says which they must be
        return np.unique(codec.levels.values.astype(np.float64))
    positive = magnitudes(codec)
    return np.unique(np.concatenate([-positive, positive]))


def scale(codec, part: np.ndarray) -> float:
    """Of one bucket."""
    if codec.learns or codec.name in ("nuqsgd", "natural_dithering"):
        return np.sqrt((part**2).sum()) if codec.norm == "l2" else np.abs(part).max(initial=0)
    largest, norm = magnitudes(codec)[-1], np.abs(part).max(initial=0)
    if codec.name == "fp8":
        return norm / largest
    if norm == 0:
        return 2.0**-127
    exponent = np.floor(np.log2(norm)) - np.floor(np.log2(largest))
    if (codec.name == "natural" or codec.rounding == "stochastic") and largest * 2.0**exponent < norm:
        exponent += 1
    return 2.0 ** max(exponent, -127)


def scales(codec, v, found) -> np.ndarray:
    """Per element, the scale of its bucket."""
    made, v = np.empty(v.size), v.astype(np.float64)
    for begin, end in itertools.pairwise(cuts(found)):
        made[begin:end] = scale(codec, v[begin:end])
    return made


def neighbours(codec, v, found) -> tuple[np.ndarray, np.ndarray]:
    """The level below each value and the one above, times the scale."""
    unit, known = scales(codec, v, found), levels(codec)
    ratio = np.divide(v, unit, out=np.zeros(v.size), where=unit > 0)
    low = np.clip(np.searchsorted(known, ratio, side="right") - 1, 0, known.size - 2)
    return known[low] * unit, known[low + 1] * unit


def heights(found) -> np.ndarray:
    """Per element, how many values its bucket has."""
    edges = cuts(found)
    return np.repeat(np.diff(edges), np.diff(edges))


def over_rotations(stated, v, found) -> np.ndarray:
    """What a bucket's stated variance is on average over rotations, in equal parts for its values."""
    summed, edges = np.zeros(v.size), cuts(found)
    for key in range(200):
        turned = np.empty(v.size, np.float32)
        _kernels.rotate(v.astype(np.float32), turned, found.start, found.grid.run, key)
        summed += stated(turned)
    sums = np.add.reduceat(summed / 200, edges[:-1])
    return np.repeat(sums / np.diff(edges), np.diff(edges))


def variance(codec, v, found) -> np.ndarray:
    below, above = neighbours(codec, v, found)
    return np.maximum((v - below) * (above - v), 0)


def spread(codec, v, found) -> np.ndarray:
    below, above = neighbours(codec, v, found)
    return above - below

"""What the kernel tests share: plain NumPy versions of the geometry and the sum rule, awkward inputs, the levels."""

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from gqallreduce import _kernels


def available(level):
    before = _kernels.simd_level()
    try:
        _kernels.use_simd_level(level)
    except ValueError:
        return False
    _kernels.use_simd_level(before)
    return True


LEVELS = [level for level in ("scalar", "avx2", "avx512") if available(level)]
every_level = pytest.mark.parametrize("level", LEVELS)


@contextlib.contextmanager
def using(level="scalar", threads=1):
    before = _kernels.simd_level(), _kernels.threads()
    _kernels.use_simd_level(level)
    _kernels.set_threads(threads)
    try:
        yield
    finally:
        _kernels.use_simd_level(before[0])
        _kernels.set_threads(before[1])


def units(n, start, run, parts):
    """[(begin, end)] relative to the region, by walking over all boundaries."""
    cuts = {0, n} if n else {0}
    for number in range(start // run, (start + n) // run + 1):
        boundaries = {number * run + part * run // parts - start for part in range(parts + 1)}
        cuts |= {cut for cut in boundaries if 0 < cut < n}
    ordered = sorted(cuts)
    return list(itertools.pairwise(ordered))


def sum_rule(values):
    """The sum of one unit, element by element as sum.hpp says it; `values` are float64, +0.0 outside the sum."""
    total = 0.0
    for begin in range(0, len(values), 4096):
        block = values[begin : begin + 4096]
        rows = np.zeros((1 + -(-len(block) // 32), 32))
        rows.flat[32 : 32 + len(block)] = block
        lanes = np.add.accumulate(rows, axis=0)[-1]  # row by row, beginning with zeros
        width = 16
        while width:
            lanes = lanes[:width] + lanes[width:]
            width //= 2
        total = total + lanes[0]
    return total


def mean(values, mask):
    """The float32 mean of values[mask] by the sum rule, 0 if there is none."""
    count = int(mask.sum())
    return np.float32(sum_rule(np.where(mask, values, np.float32(0)).astype(np.float64)) / count if count else 0.0)


def largest(v, k, separate):
    """The places of the k largest nonzero values of a column, or of a region, by sorting."""
    places = np.flatnonzero(v != 0)
    order = places[np.argsort(-np.abs(v[places]), kind="stable")]
    if not separate or places.size <= k:
        return np.sort(order[:k])
    positive, negative = order[v[order] > 0], order[v[order] < 0]
    up, down = k * positive.size // places.size, k * negative.size // places.size
    chosen = [*positive[:up], *negative[:down]]
    rest = [place for place in order if place not in set(chosen)]
    return np.sort([*chosen, *rest[: k - up - down]]).astype(np.int64)


def floats(seed, n, kind="normal"):
    """n float32s; `kind` says how awkward they are. The array starts at an odd float of its buffer."""
    rng = np.random.default_rng(seed)
    x = np.empty(n + 1, np.float32)[1:]
    x[:] = rng.standard_normal(n)
    if kind == "denormal":
        x *= np.float32(1e-39)
    elif kind == "huge":
        x[:] = np.clip(x, -1, 1) * np.float32(1.5e38)
    elif kind == "steps":  # many ties and zeros of both signs
        x[:] = np.round(x)
    elif kind == "wide":
        x *= np.exp2(rng.integers(-120, 120, n)).astype(np.float32)
    return x


KINDS = ["normal", "denormal", "huge", "steps", "wide"]
SIZES = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 65, 255, 1000, 4095, 4096, 4097, 10007]


def table(n, start, run, parts=1):
    """A table of one region."""
    return _kernels.Regions([(n, start, run, parts, 0)])


@st.composite
def regions(draw, most=400):
    """(n, start, run, parts)"""
    run = draw(st.integers(1, 120))
    return draw(st.integers(0, most)), draw(st.integers(0, 300)), run, draw(st.integers(1, run))


def same_bits(a, b):
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()

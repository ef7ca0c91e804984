"""Launches of casts.cu: numbers of one format, buffers cast, values added and scaled."""

from __future__ import annotations

import numpy as np

from gqallreduce.backends.cuda.launching import by_fours


def plain_encode(launch, x, e, r, wire, number_format: int, status) -> None:
    by_fours(launch, "casts", "plain_encode", x.size, x, e, r, wire, np.uint64(x.size), np.int32(number_format), status)


def plain_decode(launch, wire, y, number_format: int, scale: float, add: bool, status) -> None:
    how = np.int32(number_format), np.float32(scale), np.int32(add)
    by_fours(launch, "casts", "plain_decode", y.size, wire, y, np.uint64(y.size), *how, status)


def buffer_widen(launch, source, y, number_format: int, status) -> None:
    """y = source, the bytes of as many numbers of a format."""
    by_fours(launch, "casts", "buffer_widen", y.size, source, y, np.uint64(y.size), np.int32(number_format), status)


def buffer_narrow(launch, x, target, number_format: int, status) -> None:
    by_fours(launch, "casts", "buffer_narrow", x.size, x, target, np.uint64(x.size), np.int32(number_format), status)


def buffer_add(launch, x, e, y, status) -> None:
    """y = x + e; y may be x."""
    by_fours(launch, "casts", "buffer_add", x.size, x, e, y, np.uint64(x.size), status)


def buffer_scale(launch, x, factor: float, y, status) -> None:
    """y = x * factor; y may be x."""
    by_fours(launch, "casts", "buffer_scale", y.size, x, np.float32(factor), y, np.uint64(y.size), status)


def buffer_subtract(launch, a, b, y) -> None:
    """y = a - b; y may be a or b."""
    by_fours(launch, "casts", "buffer_subtract", y.size, a, b, y, np.uint64(y.size))


def wide_add(launch, x, e, y, status) -> None:
    """y = x + e, where x and y are float64."""
    by_fours(launch, "casts", "wide_add", x.size, x, e, y, np.uint64(x.size), status)


def wide_scale(launch, x, factor: float, y, add: bool, flag: int, status) -> None:
    """y = x * factor, or y += x, all float64; `flag` is reported where x is not finite, or the result."""
    how = np.float64(factor), np.int32(add), np.uint32(flag)
    by_fours(launch, "casts", "wide_scale", y.size, x, y, np.uint64(y.size), *how, status)

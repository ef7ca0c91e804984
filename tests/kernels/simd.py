"""The instruction sets of this machine, and running a call on each of them."""

import contextlib

from gqallreduce import _kernels


def available_levels():
    best = _kernels.simd_level()
    found = []
    for level in ("scalar", "avx2", "avx512"):
        with contextlib.suppress(ValueError):
            _kernels.use_simd_level(level)
            found.append(level)
    _kernels.use_simd_level(best)
    return found


LEVELS = available_levels()


@contextlib.contextmanager
def simd(level):
    before = _kernels.simd_level()
    _kernels.use_simd_level(level)
    try:
        yield
    finally:
        _kernels.use_simd_level(before)


@contextlib.contextmanager
def threads(count):
    before = _kernels.threads()
    _kernels.set_threads(count)
    try:
        yield
    finally:
        _kernels.set_threads(before)


def on_every_level(call):
    """The results of call() by instruction set."""
    results = {}
    for level in LEVELS:
        with simd(level):
            results[level] = call()
    return results

"""Floating-point environments that a library may leave behind in its thread."""

import contextlib
import platform

from gqallreduce import _kernels

ARM = platform.machine() == "aarch64"
STATUS = 0 if ARM else 0x3F  # bits that say what has happened, not what to do
FLUSH, UPWARDS = (1 << 24, 1 << 22) if ARM else (0x8040, 0x4000)
WORDS = {
    "denormals are zero": _kernels.USUAL_FLOAT_CONTROL | FLUSH,
    "rounding upwards": _kernels.USUAL_FLOAT_CONTROL | UPWARDS,
}


def control():
    """The thread's control word without what has happened."""
    return _kernels.float_control() & ~STATUS


@contextlib.contextmanager
def set_in_this_thread(word):
    """Within it the thread has this control word, and at the end still has it."""
    before = _kernels.float_control()
    _kernels.set_float_control(word)
    try:
        yield
        assert control() == word & ~STATUS
    finally:
        _kernels.set_float_control(before)

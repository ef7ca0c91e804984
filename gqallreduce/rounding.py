"""One floating-point environment for the steps that NumPy computes, whatever the caller has set in its thread.

The kernels set theirs at each call (csrc/gq/door.hpp). Without this one a library that flushes denormals to zero on one
rank would make its replica differ, and np.errstate(all="raise") would end a call half-way at an overflow, which is
reported as a NonFiniteError at the end of the call.
"""

from __future__ import annotations

from functools import wraps

import numpy as np

from gqallreduce import _kernels

USUAL = _kernels.USUAL_FLOAT_CONTROL


class usual_arithmetic:
    """Within it this thread rounds to nearest and keeps denormals, and NumPy is silent about overflow and NaN.

    A context manager, entered once per object, or a decorator, of functions that may run in several threads and call
    themselves. What the caller had set is back afterwards, also after an exception. Cost: less than 1 us.
    """

    def __call__(self, function):
        silent = _silent(function)

        @wraps(function)
        def within(*args, **kwargs):
            control = _kernels.float_control()
            try:
                if control != USUAL:
                    _kernels.set_float_control(USUAL)
                return silent(*args, **kwargs)
            finally:
                if control != USUAL:
                    _kernels.set_float_control(control)

        return within

    def __enter__(self) -> None:
        self._errors = np.errstate(all="ignore")
        self._errors.__enter__()
        self._control = _kernels.float_control()
        if self._control != USUAL:
            _kernels.set_float_control(USUAL)

    def __exit__(self, *raised) -> None:
        if self._control != USUAL:
            _kernels.set_float_control(self._control)
        self._errors.__exit__(*raised)


def _silent(function):
    """The function, within which NumPy is silent."""
    if int(np.__version__.partition(".")[0]) >= 2:  # whose errstate may decorate what calls itself, at half the cost
        return np.errstate(all="ignore")(function)

    def silent(*args, **kwargs):
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return silent

"""One floating-point environment for the steps that NumPy computes, whatever the caller has set in its thread.

The kernels set theirs at each call (csrc/gq/door.hpp). Without this one a library that flushes denormals to zero on one
rank would make its replica differ, and np.errstate(all="raise") would end a call half-way at an overflow, which is
reported as a NonFiniteError at the end of the call.
"""

from __future__ import annotations

from contextlib import ContextDecorator

import numpy as np

from gqallreduce import _kernels

USUAL = _kernels.USUAL_FLOAT_CONTROL


class usual_arithmetic(ContextDecorator):
    """Within it this thread rounds to nearest and keeps denormals, and NumPy is silent about overflow and NaN.

    A context manager, entered once per object, or a decorator. What the caller had set is back afterwards, also after
    an exception. Cost: about 1 us.
    """

    def _recreate_cm(self) -> usual_arithmetic:
        """A decorated function may run in several threads, or call itself."""
        return usual_arithmetic()

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

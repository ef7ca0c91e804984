"""What tests on a GPU share: `needs_gpu` skips them with the name of what is missing."""

import pytest

from gqallreduce.backends.cuda import runtime
from gqallreduce.errors import Error


def _missing() -> str:
    try:
        runtime.CupyRuntime(0)
    except Error as problem:
        return str(problem)
    return ""


MISSING = _missing()
needs_gpu = pytest.mark.skipif(bool(MISSING), reason=MISSING)

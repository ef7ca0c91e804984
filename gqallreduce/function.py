"""The function: an Allreduce per communicator, scheme and average, made at the first call and kept."""

from __future__ import annotations

from gqallreduce.allreduce import Allreduce
from gqallreduce.communicator import require_intracommunicator
from gqallreduce.home import home
from gqallreduce.scheme import Scheme


def quantized_allreduce(buf, scheme, *, key=None, comm=None, average=False, out=None):
    """Sum (or average) `buf` over the ranks of `comm`, compressed by `scheme`; returns the object it wrote.

    See Allreduce for arguments and errors. The Allreduce is reused; `cached` finds it, for statistics and residuals.
    """
    comm = require_intracommunicator(comm)
    scheme = Scheme.parse(scheme)
    objects = home(comm).cached
    name = scheme, bool(average)
    if name not in objects:
        objects[name] = Allreduce(scheme, comm=comm, average=average)
    return objects[name](buf, key=key, out=out)


def cached(comm=None, scheme=None, average=False) -> Allreduce | None:
    """The Allreduce that `quantized_allreduce` uses for these arguments, None if there is none yet. Local."""
    found = home(require_intracommunicator(comm), create=False)
    return None if found is None else found.cached.get((Scheme.parse(scheme), bool(average)))

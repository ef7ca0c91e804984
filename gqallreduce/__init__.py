"""Quantized allreduce for data-parallel training over MPI.

    import gqallreduce as gq

    gq.quantized_allreduce(buf, "qsgd(bits=4)")
    allreduce = gq.Allreduce("direct/adaptive(pi=64)/ef", average=True)
    allreduce(grad, key="fc1.weight")

What needs no MPI (Scheme, schemes, Outer and the errors) imports none; Allreduce and what it needs are loaded when
asked for.
"""

from __future__ import annotations

try:
    from gqallreduce import _kernels  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"the compiled part of gqallreduce in {__path__[0]} is missing or does not fit this Python: build it there "
        f"with `make`, or leave the folder to import an installed gqallreduce ({error})"
    ) from error

from gqallreduce import registry, threads
from gqallreduce.errors import (
    Error,
    MismatchError,
    NonFiniteError,
    ReplicaError,
    TimeoutError,
    WireError,
)

threads.require_lock()
registry.CODECS.load()
registry.SCHEDULES.load()
threads.configure()

from gqallreduce.backends.product import Outer  # noqa: E402
from gqallreduce.catalog import schemes  # noqa: E402
from gqallreduce.scheme import Scheme  # noqa: E402

__version__ = "0.1.0"
__all__ = [
    "Allreduce",
    "Error",
    "MismatchError",
    "NonFiniteError",
    "Outer",
    "Reducer",
    "ReplicaError",
    "Request",
    "Scheme",
    "TimeoutError",
    "WireError",
    "allgather",
    "cached",
    "load",
    "outer_allreduce",
    "quantized_allreduce",
    "reduce_scatter",
    "save",
    "schemes",
    "wait_all",
]

_NEEDS_MPI = {
    "Allreduce": "allreduce",
    "Reducer": "models.reducer",
    "save": "models.files",
    "load": "models.files",
    "quantized_allreduce": "function",
    "outer_allreduce": "function",
    "reduce_scatter": "function",
    "allgather": "function",
    "cached": "function",
    "Request": "request",
    "wait_all": "request",
}


def __dir__() -> list[str]:
    """What is public. Modules are attributes too, once they are imported, and may change from release to release."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str):
    if name in _NEEDS_MPI:
        from importlib import import_module

        return getattr(import_module(f"gqallreduce.{_NEEDS_MPI[name]}"), name)
    raise AttributeError(f"module 'gqallreduce' has no attribute {name!r}")

"""The functions: an Allreduce per communicator, scheme and average, made at the first call and kept."""

from __future__ import annotations

import contextlib
import itertools

from gqallreduce.allreduce import Allreduce
from gqallreduce.backends.product import Outer
from gqallreduce.errors import Error
from gqallreduce.runtime.arguments import truth
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.scheduling.schedule import ALLGATHER, REDUCE_SCATTER
from gqallreduce.scheme import Scheme
from gqallreduce.transport.communicator import require_intracommunicator
from gqallreduce.transport.home import home

OBJECTS_MOST = 64


def quantized_allreduce(buf, scheme, *, key=None, comm=None, average=False, out=None):
    """Sum (or average) `buf` over the ranks of `comm`, compressed by `scheme`; returns the object it wrote.

    `buf` may be a gq.Outer, a gradient that is given as a product: the result is a new array then, or `out`.

    See Allreduce for arguments and errors. The Allreduce is reused; `cached` finds it, for statistics and residuals.
    At most 64 are kept per communicator; if there are more, the oldest without /ef is closed. After an error in the
    middle of a call the Allreduce is dropped, and the next call begins with residuals of zero: keep `cached(...)`, or
    use an Allreduce, to save its state.
    """
    return _object(scheme, comm, average, None)(buf, key=key, out=out)


def reduce_scatter(buf, scheme, *, key=None, comm=None, average=False, out=None, counts=None):
    """Sum (or average) `buf` over the ranks of `comm`, of which each gets its part alone; returns this rank's part.

    As `Allreduce.reduce_scatter`, of an Allreduce that is kept for these calls alone, as for `quantized_allreduce`.
    """
    found = _object(scheme, comm, average, REDUCE_SCATTER)
    return found.reduce_scatter(buf, key=key, out=out, counts=counts)


def allgather(shard, scheme, *, out, key=None, comm=None, counts=None):
    """Give all ranks of `comm` the shards of all in `out`, compressed by `scheme`; returns `out`.

    As `Allreduce.allgather`, of an Allreduce that is kept for these calls alone: its residuals are not those of
    `reduce_scatter`, so that parameters may have the keys of their gradients.
    """
    return _object(scheme, comm, False, ALLGATHER).allgather(shard, out=out, key=key, counts=counts)


def _object(scheme, comm, average, half: str | None) -> Allreduce:
    """The Allreduce of a communicator, a scheme, an average and what is called."""
    comm = require_intracommunicator(comm)
    objects = home(comm).cached
    try:
        scheme = Scheme.parse(scheme)
        name = _name(scheme, truth("average", average), half)
    except Exception as error:
        _tell_others(comm, objects, error)
        raise
    if name not in objects:
        _make_room(objects)
        objects[name] = Allreduce(scheme, comm=comm, average=average)
    return objects[name]


def _name(scheme: Scheme, average: bool, half: str | None) -> tuple:
    if half not in (None, REDUCE_SCATTER, ALLGATHER):
        raise ValueError(f"half={half!r}, expected None, {REDUCE_SCATTER!r} or {ALLGATHER!r}")
    return (scheme, average) if half is None else (scheme, average, half)


def outer_allreduce(x, delta, scheme, *, key=None, comm=None, average=False, out=None):
    """The sum (or average) over ranks of the gradients of dense layers, given as products; returns what it wrote.

    x, delta
        a layer's input and the derivative of the loss by its output, as of `gq.Outer`: the gradient is the transposed x
        times delta. Or lists of as many; `key` is a list of as many strings then, and `out` None or a list.
    Scheme `isgq` sends quantized factors where they are shorter than the gradient; any other scheme sums the gradients.
    For convolutions, and for layers with biases, give `gq.Outer` to `quantized_allreduce`, alone or in a list beside
    arrays. Else as that.
    """
    both = isinstance(x, (list, tuple)) and isinstance(delta, (list, tuple))
    # What does not fit is found in the call, which tells the other ranks.
    given = [Outer(*each) for each in itertools.zip_longest(x, delta)] if both else Outer(x, delta)
    return quantized_allreduce(given, scheme, key=key, comm=comm, average=average, out=out)


def _tell_others(comm, objects: dict, error: Exception) -> None:
    """This rank's arguments are invalid: the other ranks raise MismatchError in their call."""
    with contextlib.suppress(Exception):
        some = next(iter(objects.values()), None) or Allreduce("raw", comm=comm)
        some.perform("an invalid call", join_invalid, some, error)


def _make_room(objects: dict) -> None:
    if len(objects) < OBJECTS_MOST:
        return
    oldest = next((each for each in objects.values() if not each.scheme.feedback), None)
    if oldest is None:
        raise Error(
            f"{OBJECTS_MOST} schemes with /ef are in use on this communicator, each with residuals; close some: "
            "gq.cached(comm, scheme).close(), or use gq.Allreduce objects"
        )
    oldest.close()


def cached(comm=None, scheme=None, average=False, half=None) -> Allreduce | None:
    """The Allreduce that `quantized_allreduce` uses for these arguments, None if there is none yet. Local.

    scheme
        must be given: TypeError without one.
    half
        "reduce_scatter" or "allgather": the one that the function of this name uses.
    """
    found, name = home(require_intracommunicator(comm), create=False), _name(Scheme.parse(scheme), bool(average), half)
    return None if found is None else found.cached.get(name)

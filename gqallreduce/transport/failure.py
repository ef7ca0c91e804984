"""How a call that cannot end well ends: what the other ranks are told, and which error this rank raises."""

from __future__ import annotations

from mpi4py import MPI

from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import Error, MismatchError, NonFiniteError, ReplicaError, TimeoutError
from gqallreduce.transport.link import Link

_INVALID = "its own call was invalid, or it left a step by an error"
# All ranks whose own calls are valid raise these together: the link stays usable.
ALIKE = (NonFiniteError, MismatchError, ReplicaError)


def give_up(link: Link, error: BaseException, timeout: float, call: str) -> BaseException:
    """Break the link and tell the others, unless the error came from them; returns what this rank raises.

    call
        in words, what this rank was doing.
    """
    if isinstance(error, ForeignFrame):
        if error.header is not None:  # the rank that gave up has told all
            link.broken = True
        else:
            link.abort(frame.REASON_ARGUMENTS if error.invalid else frame.REASON_MISMATCH, error.source)
        return explain(error, link.rank, timeout, call)
    if isinstance(error, TimeoutError):
        link.abort(frame.REASON_TIMEOUT, min(error.ranks, default=link.rank))
        return error
    link.abort(frame.REASON_FAILURE)
    return named(error, call)


def named(error: BaseException, call: str) -> BaseException:
    """The error itself, or for one of MPI's one of ours."""
    if not isinstance(error, MPI.Exception):
        return error
    failed = Error(f"MPI failed in {call}: {error}")
    failed.__cause__ = error
    return failed


def explain(foreign: ForeignFrame, rank: int, timeout: float, call: str) -> Error:
    """The error that a rank raises which met a foreign message or an abort."""
    header, source, here = foreign.header, foreign.source, f"this rank was in {call}"
    if header is None:
        if foreign.invalid:
            return MismatchError("arguments", [source], f"{_INVALID}; {here}")
        return MismatchError("frame", [source], f"rank {source} made another call, or an Allreduce object; {here}")
    reason, concerned = header.word & 0xFF, header.word >> 8
    if reason == frame.REASON_TIMEOUT:
        return TimeoutError(timeout, foreign.due or {source if concerned == rank else concerned}, told_by=source)
    if reason == frame.REASON_ARGUMENTS:
        return MismatchError("arguments", [concerned], f"{_INVALID}; {here}")
    if reason == frame.REASON_MISMATCH:
        return MismatchError("frame", [concerned], f"rank {concerned} made another call than rank {source}; {here}")
    return Error(f"rank {source} failed in the middle of a call; {here}")

"""How calls that cannot end well end: what the other ranks are told, and which error each of them raises."""

from __future__ import annotations

import contextlib

from mpi4py import MPI

from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import Error, MismatchError, TimeoutError
from gqallreduce.transport.call import Call
from gqallreduce.transport.ended import ended_after, ended_ranks
from gqallreduce.transport.link import Link

_INVALID = "its own call was invalid, or it left a step by an error"


def give_up(link: Link, error: BaseException, call: Call, timeout: float) -> BaseException:
    """End all calls under way, and tell the other ranks; returns what this rank raises in this call.

    A call that has taken effect is not given up, so if all have, nothing is: the error is then this rank's alone. The
    objects of those that are given up here, or elsewhere from the same one on, refuse further calls on all ranks.
    """
    link.progress.take_back()
    error = named(error, call.name, link.comm)
    if isinstance(error, ForeignFrame):
        error.due |= link.progress.silent()
    calls = link.progress.clear()
    if call not in calls and not call.done:
        calls.append(call)
    lost = [each for each in calls if not each.took_effect()]
    for each in calls:
        if each not in lost:
            each.end()
    if not lost:
        return error
    link.numbers.calls = max(link.calls, 1 + max(each.number for each in lost))  # one that has not begun yet counts
    given_up, raised = _objects(link, error, lost), error
    try:
        raised = _tell(link, error, min(each.number for each in lost), call, timeout)
    finally:
        link.broken = True
        link.requests.give_up(calls)
        for owner in given_up:
            owner.fail(raised)
        for each in lost:
            each.held = None
            each.end(_of_one(raised, call, each))
    return _of_one(raised, call, call)


def _of_one(raised: BaseException, failed: Call, call: Call) -> BaseException:
    """What a call raises that was under way when one failed, the same or another."""
    if call.invalid is not None and isinstance(raised, Exception):
        return call.invalid
    if call is failed or isinstance(raised, Error):
        return raised
    made = Error(f"{call.name} was given up since {failed.name} failed: {type(raised).__name__} {raised}".rstrip())
    made.__cause__ = raised
    return made


def _objects(link: Link, error: BaseException, lost: list[Call]) -> set:
    """The objects that refuse further calls: those of calls which may have taken effect on another rank.

    If a peer told of it, calls that it has not begun have taken effect nowhere; those that it has begun end here too,
    where they may not have begun yet.
    """
    first = min(each.number for each in lost)
    header = error.header if isinstance(error, ForeignFrame) else None
    if header is None:
        found = link.owners_of(first, link.calls - first) | {each.owner for each in lost}
    else:
        more = frame.abort_of(header)[2]
        link.disown({each.number for each in lost}, header)
        found = link.given_up_by(header)
        begun = link.owners_of(first, (header.step - first + more) & frame.LARGEST_STEP)
        found |= begun if frame.is_before(first, header.step) else set()
    return found - {None}


def _tell(link: Link, error: BaseException, first: int, call: Call, timeout: float) -> BaseException:
    """Tell the others, unless the error came from them and this rank had nothing earlier under way."""
    more = link.calls - 1 - first
    if isinstance(error, ForeignFrame):
        header = error.header
        if header is None:
            link.abort(frame.REASON_ARGUMENTS if error.invalid else frame.REASON_MISMATCH, first, more, error.source)
        elif frame.is_before(first, header.step):
            reason, concerned, beyond = frame.abort_of(header)
            link.abort(reason, first, (header.step - first + beyond) & frame.LARGEST_STEP, concerned)
        return explain(error, link.comm, timeout, call.name)
    if isinstance(error, TimeoutError):
        reason = frame.REASON_ENDED if error.ended else frame.REASON_TIMEOUT
        link.abort(reason, first, more, min(error.ranks, default=link.rank))
        return error
    link.abort(frame.REASON_FAILURE, first, more)
    return error


def named(error: BaseException, call: str, comm) -> BaseException:
    """The error itself, or for one of MPI's on a communicator one of ours."""
    if not isinstance(error, MPI.Exception):
        return error
    return _of_mpi(error, call, comm, [error.Get_error_code()])


def _of_mpi(error: Exception, call: str, comm, codes: list[int]) -> Error:
    """One of ours for an error of MPI's, or of what it gave."""
    ended = ended_after(comm, codes)
    failed = TimeoutError(None, ended) if ended else Error(f"MPI failed in {call}: {error}")
    failed.__cause__ = error
    return failed


@contextlib.contextmanager
def naming_errors(call: str, comm):
    """Around collective operations of MPI on a user's communicator: what goes wrong becomes an error of ours.

    TimeoutError where a process has ended, whatever has come: Open MPI then gives some ranks any bytes, and no error.
    """
    try:
        yield
    except Error:
        raise
    except MPI.Exception as error:
        raise named(error, call, comm) from error
    except Exception as error:
        raise _of_mpi(error, f"{call}: {type(error).__name__}", comm, []) from error
    if ended := ended_ranks(comm):
        raise TimeoutError(None, ended)


def explain(foreign: ForeignFrame, comm, timeout: float, call: str) -> Error:
    """The error that a rank of a communicator raises which met a foreign message or an abort."""
    header, source, here = foreign.header, foreign.source, f"this rank was in {call}"
    if header is None:
        if foreign.invalid:
            return MismatchError("arguments", [source], f"{_INVALID}; {here}")
        return MismatchError("frame", [source], f"rank {source} made another call, or an Allreduce object; {here}")
    reason, concerned, _ = frame.abort_of(header)
    if reason == frame.REASON_TIMEOUT:
        return TimeoutError(timeout, foreign.due or {source if concerned == comm.rank else concerned}, told_by=source)
    if reason == frame.REASON_ARGUMENTS:
        return MismatchError("arguments", [concerned], f"{_INVALID}; {here}")
    if reason == frame.REASON_MISMATCH:
        return MismatchError("frame", [concerned], f"rank {concerned} made another call than rank {source}; {here}")
    ended = ended_ranks(comm) | ({concerned} if reason == frame.REASON_ENDED else set())
    if ended:
        return TimeoutError(None, ended, told_by=source)
    return Error(f"rank {source} failed in the middle of a call; {here}")


def raise_from(raised: BaseException, error: BaseException):
    """Raise what `give_up` returned for an error."""
    if raised is error:
        raise
    raise raised from raised.__cause__

"""Several calls as one: what they leave behind takes effect together, on all ranks alike, or not at all."""

from __future__ import annotations

import contextlib

from gqallreduce.errors import Error
from gqallreduce.transport.agreement import agree
from gqallreduce.transport.failure import give_up


@contextlib.contextmanager
def step(allreduce):
    """What `Allreduce.step` returns for its object."""
    if allreduce.memory.staging:
        raise ValueError("a step of this object is under way; steps cannot be nested")
    allreduce.require_usable()
    allreduce.failures_in_step = 0
    try:
        allreduce.memory.stage()
        yield allreduce
        allreduce.guarded("the end of a step", _end, allreduce)
    except BaseException as error:
        if not allreduce.failures_in_step and allreduce.unusable is None:
            _tell_others(allreduce, error)
        raise
    finally:
        if allreduce.memory.staging:
            allreduce.memory.unstage(keep=False)


def _end(call, allreduce) -> None:
    """Take effect, if no rank has left the block by an error."""
    if allreduce.failures_in_step:
        allreduce.join_invalid(call)
        raise Error("a call of this step failed: nothing of the step is kept")
    memory = allreduce.memory
    if allreduce.size > 1:
        hashes = allreduce.making.hashes(("end of step", *memory.staged_steps), allreduce.seed)
        agree(call.link, hashes, allreduce.number, 0, allreduce.timeout)
    call.states, call.for_good = memory.staged, True
    memory.unstage(keep=True)


def _tell_others(allreduce, error: BaseException) -> None:
    """This rank leaves the block by an error of its own: the others get one in their next call, or at the end.

    Nothing that goes wrong here replaces the error. A rank that is interrupted does not wait for the others.
    """
    with contextlib.suppress(Exception):
        if isinstance(error, Exception):
            allreduce.guarded("the end of a step", allreduce.join_invalid)
            return
        home = allreduce.home
        home.notice(allreduce.timeout)
        allreduce.fail(error)
        if not home.freed and not home.link.broken:
            home.link.begin(allreduce)
            give_up(home.link, error, allreduce.timeout, "the end of a step")

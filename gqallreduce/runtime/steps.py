"""Several calls as one: what they leave behind takes effect together, on all ranks alike, or not at all."""

from __future__ import annotations

import contextlib

from gqallreduce.errors import Error
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.transport.agreement import agree
from gqallreduce.transport.call import Call
from gqallreduce.transport.failure import give_up

_NAME = "the end of a step"


@contextlib.contextmanager
def step(allreduce):
    """What `Allreduce.step` returns for its object."""
    if allreduce.memory.staging:
        raise ValueError("a step of this object is under way; steps cannot be nested")
    allreduce.require_usable()
    allreduce.finish()
    allreduce.failures_in_step, allreduce.raised_in_step = 0, False
    try:
        allreduce.memory.stage()
        yield allreduce
        allreduce.finish()
        allreduce.perform(_NAME, _end, allreduce)
    except BaseException as error:
        alike = allreduce.raised_in_step  # the other ranks leave the block by the same error
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):
                allreduce.finish()  # what is under way is part of the step
        if allreduce.memory.staging and (not alike or allreduce.under_way()) and allreduce.unusable is None:
            _tell_others(allreduce, error)
        raise
    finally:
        if allreduce.memory.staging:
            allreduce.memory.unstage(keep=False)


def _end(call, allreduce):
    """Stages: take effect, if no rank has left the block by an error."""
    if allreduce.failures_in_step:
        failed = Error("a call of this step failed: nothing of the step is kept")
        yield from join_invalid(call, allreduce, failed)
    memory = allreduce.memory
    if allreduce.size > 1:
        hashes = allreduce.plans.hashes(("end of step", *memory.staged_steps), allreduce.seed)
        yield from agree(call.link, hashes, allreduce.number, 0)
    call.states, call.for_good = memory.staged, True
    memory.unstage(keep=True)


def _tell_others(allreduce, error: BaseException) -> None:
    """This rank leaves the block by an error of its own: the others get one in their next call, or at the end.

    Nothing that goes wrong here replaces the error. A rank that is interrupted does not wait for the others.
    """
    with contextlib.suppress(Exception):
        if isinstance(error, Exception):
            allreduce.perform(_NAME, join_invalid, allreduce, error)
            return
        home = allreduce.home
        home.notice(allreduce.timeout)
        allreduce.fail(error)
        if not home.freed and not home.link.broken:
            call = Call(_NAME, allreduce)
            home.link.begin(call)
            give_up(home.link, error, call, allreduce.timeout)

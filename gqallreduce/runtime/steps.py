"""Several calls as one: what they leave behind takes effect together, on all ranks alike, or not at all."""

from __future__ import annotations

import contextlib

from gqallreduce.errors import Error
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.transport.agreement import agree
from gqallreduce.transport.call import Call
from gqallreduce.transport.failure import give_up

_NAME = "the end of a step"
_FAILED = "a call of this step failed: nothing of the step is kept"


class Together:
    """What `Allreduce.step` returns for its object; also for several objects of one communicator together.

    No generator: one that is dropped half-way would be closed whenever the garbage collector finds it, in the middle of
    another call, and tell the other ranks then.

    compare
        False: ranks have told each other by themselves that no call has failed.
    """

    def __init__(self, *allreduces, compare: bool = True):
        self._allreduces, self._compare = allreduces, compare

    def __enter__(self):
        allreduces = self._allreduces
        if any(each.memory.staging for each in allreduces):
            raise ValueError("a step of this object is under way; steps cannot be nested")
        for each in allreduces:
            each.require_usable()
            each.finish()
            each.failures_in_step, each.raised_in_step = 0, False
        try:
            for each in allreduces:
                each.memory.stage()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return allreduces[0]

    def __exit__(self, kind, error: BaseException | None, traceback) -> None:
        try:
            if error is not None:
                self._leave(error)
                return
            try:
                _finish(self._allreduces)
                if self._compare:
                    self._allreduces[0].perform(_NAME, _end, self._allreduces)
                else:
                    _keep(self._allreduces)
            except BaseException as raised:
                self._leave(raised)
                raise
        finally:
            for each in self._allreduces:
                if each.memory.staging:
                    each.memory.unstage(keep=False)

    def _leave(self, error: BaseException) -> None:
        """The block is left by an error, or ends by one: tell the others, unless they leave it by the same."""
        allreduces = self._allreduces
        alike = any(each.raised_in_step for each in allreduces)
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):
                _finish(allreduces)  # what is under way is part of the step
        left = any(each.memory.staging for each in allreduces)
        under_way = any(each.under_way() for each in allreduces)
        if left and (not alike or under_way) and all(each.unusable is None for each in allreduces):
            _tell_others(allreduces[0], error)


def _finish(allreduces) -> None:
    for each in allreduces:
        each.finish()


def _end(call, allreduces):
    """Stages: take effect, if no rank has left the block by an error."""
    first = allreduces[0]
    if any(each.failures_in_step for each in allreduces):
        yield from join_invalid(call, first, Error(_FAILED))
    if first.size > 1:
        hashes = first.plans.hashes(("end of step", *[each.memory.staged_steps for each in allreduces]), first.seed)
        yield from agree(call.link, hashes, tuple(each.number for each in allreduces), 0)
    call.states, call.for_good = first.memory.staged, True
    for each in allreduces:
        each.memory.unstage(keep=True)


def _keep(allreduces) -> None:
    """Take effect where ranks have told each other already: no call, which would wait for one that is gone."""
    if any(each.failures_in_step for each in allreduces):
        raise Error(_FAILED)
    for each in allreduces:
        each.memory.unstage(keep=True)


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

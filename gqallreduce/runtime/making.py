"""The making of an object, which is collective: what is wrong with the arguments of one rank, all ranks learn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gqallreduce.runtime.calls import Calls
from gqallreduce.runtime.memory import Memory
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.transport.agreement import COMPARED, agree
from gqallreduce.transport.communicator import require_intracommunicator
from gqallreduce.transport.home import home

SECONDS = 600  # the timeout, unless given
_NAME = "the making of an object"


@contextlib.contextmanager
def told(comm, timeout: float = SECONDS) -> Iterator[None]:
    """What is wrong with the arguments of an object is found inside, before it is made.

    The error is raised when the other ranks have come to make theirs, or after `timeout` seconds without any; they
    raise MismatchError.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception), entered(_Refused(comm, timeout)):
            raise error
        raise


@contextlib.contextmanager
def entered(owner: Calls) -> Iterator[None]:
    """Inside all ranks have come to make an object, which has its number then. What is wrong there is told too.

    MismatchError if something is wrong on another rank.
    """
    claim = owner.home.claim()
    try:
        owner.home.finish(owner.timeout)
        owner.number = owner.home.enter(owner, owner.timeout)
    finally:
        owner.home.release(claim)
    try:
        yield
    except Exception as error:
        if owner.home.size > 1:
            with contextlib.suppress(Exception):
                owner.perform(_NAME, join_invalid, owner, error)
        raise
    if owner.home.size > 1:
        owner.perform(_NAME, _agreed, owner)


def _agreed(call, owner: Calls):
    """The stages. Ranks compare their arguments in their calls."""
    yield from agree(call.link, [0] * (len(COMPARED) - 1), owner.number, 0)


class _Refused(Calls):
    """In place of an object whose arguments are invalid."""

    def __init__(self, comm, timeout):
        lawful = isinstance(timeout, (int, float)) and timeout > 0
        super().__init__(home(require_intracommunicator(comm)), float(timeout) if lawful else SECONDS)
        self.size, self.memory = self.home.size, Memory()

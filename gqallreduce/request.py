"""What `Allreduce.start` returns: a call under way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gqallreduce.stats import Spent


class Request:
    """A call under way: `wait` for it, or `test` whether it is done.

    Until then the key and the buffers belong to the call. If the request is dropped, the next call of its object
    finishes that call first, and raises the error by which it ended, if any.
    """

    def __init__(self, allreduce, call):
        self._allreduce, self._call = allreduce, call
        allreduce.claim(call, self)

    def __repr__(self) -> str:
        state = "under way" if not self._call.done else "done" if self._call.error is None else "failed"
        return f"<Request of {self._call.name}: {state}>"

    @property
    def communicator(self) -> int:
        """Which one: equal for requests that advance together."""
        return id(self._allreduce.home)

    def advance(self) -> bool:
        """Advance all calls on the communicator by what can be done without waiting; is this one done?"""
        try:
            return self._allreduce.advance(self._call)
        except Exception:  # `wait` raises it
            return self._call.done

    def test(self) -> bool:
        """Is it done? Advances all calls on the communicator by what can be done without waiting.

        Raises what `wait` raises. After True the buffers belong to the caller again.
        """
        if not self._allreduce.advance(self._call):
            return False
        self._allreduce.result(self._call)
        return True

    @property
    def stats(self) -> Spent | None:
        """What the call cost, as `stats.last` says it; None until it has succeeded."""
        return self._call.spent

    def wait(self):
        """Wait until it is done; returns the object that it wrote. Raises what the call would have raised."""
        return self._allreduce.complete(self._call)


def wait_all(requests) -> list:
    """Wait for all of them, in whatever order they end; returns what they wrote, in the order given.

    Raises the first error among them, in that order, when all are done.
    """
    requests = list(requests)
    if len({request.communicator for request in requests}) > 1:  # other ranks may wait for those of another one first
        while sum(request.advance() for request in requests) < len(requests):
            os.sched_yield()
    results, errors = [], []
    for request in requests:
        try:
            results.append(request.wait())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results

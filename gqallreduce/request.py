"""What `Allreduce.start` returns: a call under way."""

from __future__ import annotations


class Request:
    """A call under way: `wait` for it, or `test` whether it is done.

    Until then its key and its buffers belong to it. If it is dropped, the next call of its object finishes that call
    first, and raises the error by which it ended, if any.
    """

    def __init__(self, allreduce, call):
        self._allreduce, self._call = allreduce, call
        allreduce.claim(call, self)

    def __repr__(self) -> str:
        state = "under way" if not self._call.done else "done" if self._call.error is None else "failed"
        return f"<Request of {self._call.name}: {state}>"

    def test(self) -> bool:
        """Is it done? Advances all calls on the communicator by what can be done without waiting.

        Raises what `wait` raises. After True the buffers belong to the caller again.
        """
        if not self._allreduce.advance(self._call):
            return False
        self._allreduce.result(self._call)
        return True

    def wait(self):
        """Wait until it is done; returns the object that it wrote. Raises what the call would have raised."""
        return self._allreduce.complete(self._call)


def wait_all(requests) -> list:
    """Wait for all of them, in whatever order they end; returns what they wrote, in the order given.

    Raises the first error among them, in that order, when all are done.
    """
    results, errors = [], []
    for request in list(requests):
        try:
            results.append(request.wait())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results

"""Waiting for requests under a timeout, and what is left of them after an error."""

from __future__ import annotations

import os
import time

from mpi4py import MPI

from gqallreduce.errors import TimeoutError
from gqallreduce.message import ForeignFrame

SPIN = 100e-6
LISTEN = 2e-3
abandoned: list[tuple] = []  # (requests, buffers): MPI may still look at them


class Deadline:
    """How long a wait may go on without anything that arrives."""

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.began = self.heard = self.listened = time.perf_counter()

    def restart(self) -> None:
        """Something arrived: the timeout begins anew."""
        self.heard = time.perf_counter()

    def pause(self, due, listen=None) -> None:
        """Spin at first, then let another process have the core; TimeoutError that names the ranks in `due`.

        listen
            called now and then; may raise.
        """
        now = time.perf_counter()
        if now - self.began > SPIN:
            os.sched_yield()
        if listen is not None and now - self.listened > LISTEN:
            self.listened = now
            listen()
        if now - self.heard > self.timeout:
            raise TimeoutError(self.timeout, due)


def finish(requests: list, deadline: Deadline, due, listen=None, buffers=(), receives=()) -> None:
    """Wait for all requests. After an error those in `receives` are cancelled and the rest is left to MPI."""
    try:
        while not MPI.Request.Testall(requests):
            deadline.pause(due, listen)
    except BaseException as error:
        if isinstance(error, ForeignFrame):
            error.due |= set(due)
        for request in receives:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
        abandon(requests, buffers)
        raise


def abandon(requests: list, buffers) -> None:
    """Keep buffers alive until MPI is done with them."""
    abandoned.append((requests, buffers))


def tidy() -> None:
    """Forget what has been completed since, well or with an error: a call that was given up wants neither."""
    abandoned[:] = [each for each in abandoned if not _completed(each[0])]


def _completed(requests: list) -> bool:
    try:
        return MPI.Request.Testall(requests)
    except MPI.Exception:  # of some of them
        return all(request == MPI.REQUEST_NULL for request in requests)

"""Waiting for requests under a timeout, and what is left of them after an error."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import time

from mpi4py import MPI

from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import TimeoutError
from gqallreduce.transport.progress import LISTEN, SPIN

abandoned: list[tuple] = []  # (requests, buffers): MPI may still look at them


class Deadline:
    """The time limit of a wait, which begins anew whenever something arrives."""

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


def begin(requests: list, operation, *arguments) -> None:
    """Start an operation of MPI's and add its request to a list.

    Nothing that a signal handler raises can come between the two: no Python code runs there.
    """
    requests.extend(itertools.starmap(operation, [arguments]))


def wait(requests: list, deadline: Deadline, due, listen=None) -> None:
    """Until all requests are complete, or `listen` raises, or the ranks in `due` are late."""
    try:
        while not MPI.Request.Testall(requests):
            deadline.pause(due, listen)
    except ForeignFrame as foreign:
        foreign.due |= set(due)
        raise


def abandon(requests: list, buffers, receives=()) -> None:
    """Keep buffers alive until MPI is done with them; those requests that are receives are cancelled."""
    abandoned.append((requests, buffers))
    for request in receives:
        if request != MPI.REQUEST_NULL:
            request.Cancel()


@atexit.register
def _keep_until_finalize() -> None:
    """MPI_Finalize comes after Python has freed its objects: what MPI may still look at is never freed."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(abandoned))


def tidy() -> None:
    """Drop abandoned requests that have completed since, with success or with an error."""
    abandoned[:] = [each for each in abandoned if not _completed(each[0])]


def _completed(requests: list) -> bool:
    try:
        return MPI.Request.Testall(requests)
    except MPI.Exception:  # of some of them
        return all(request == MPI.REQUEST_NULL for request in requests)

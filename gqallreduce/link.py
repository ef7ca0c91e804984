"""A communicator of our own: the count of calls made on it, their tags, collectives under a timeout, abort frames.

A tag says when (the call's place in their order, and the lane) and, in what bits are left, what (the call's signature).
So a message of another call never matches a receive: MPIs have been seen to write past a room that is too small for
what arrives. It is found by looking at what has come but was not asked for. Abort frames have a tag of their own.
"""

from __future__ import annotations

import os
import time

import numpy as np
from mpi4py import MPI

from gqallreduce import frame
from gqallreduce.errors import TimeoutError
from gqallreduce.hashing import hash64
from gqallreduce.message import ForeignFrame

REQUESTS = 64
SPIN = 100e-6
LISTEN = 2e-3
_LANES = 16
_ABORTS = _LANES - 1  # no lane has this number
_CALLS = 1024
abandoned: list = []  # requests and buffers of broken calls: MPI may still look at them


class Link:
    """A duplicate of a communicator that only this package talks on.

    broken
        a call on it was given up half-way.
    near
        the ranks on this rank's host.
    began
        when (by time.perf_counter) the last call on it began.
    """

    def __init__(self, comm, timeout: float):
        self.rank, self.size = comm.rank, comm.size
        self.calls, self.began = 0, time.perf_counter()
        self.broken = False
        self.statuses = [MPI.Status() for _ in range(REQUESTS)]
        self.comm, request = comm.Idup()
        self._signatures = (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1) // (_CALLS * _LANES)
        wait(request, timeout, self)
        self.near = self._same_host(timeout)

    def _same_host(self, timeout: float) -> frozenset[int]:
        """The ranks on this rank's host."""
        mine = np.array([hash64(MPI.Get_processor_name())], np.uint64)
        everyone = np.empty(self.size, np.uint64)
        wait(self.comm.Iallgather([mine, MPI.UINT64_T], [everyone, MPI.UINT64_T]), timeout, self)
        return frozenset(np.flatnonzero(everyone == mine).tolist())

    def next_call(self) -> int:
        """The lowest tag of the next call, which begins."""
        call = self.calls % _CALLS * _LANES
        self.calls, self.began = self.calls + 1, time.perf_counter()
        return call

    def tag(self, call: int, signature: int) -> int:
        """The tag of a call's lane 0: above the call, as much of its signature as fits."""
        return signature % self._signatures * _CALLS * _LANES + call

    def abort(self, call: int, reason: int) -> None:
        """An abort frame to every other rank, not waited for."""
        self.broken = True
        buffer = bytearray(frame.SIZE)
        frame.Header(frame.ABORT, 0, 0, reason, self.rank).write(buffer)
        peers = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self.comm.Isend([buffer, frame.SIZE, MPI.BYTE], to, call + _ABORTS) for to in peers]
        abandoned.append((buffer, requests))

    def listen(self, call: int, tag: int, sources) -> None:
        """ForeignFrame if a peer has aborted this call, or if what came from one of `sources` belongs to another.

        A peer's first message that nobody asked for tells enough: all that it sends in one call has one signature.
        """
        status = self.statuses[0]
        if self.comm.Iprobe(MPI.ANY_SOURCE, call + _ABORTS, status):
            source, buffer = status.Get_source(), bytearray(frame.SIZE)
            self.comm.Recv([buffer, frame.SIZE, MPI.BYTE], source, call + _ABORTS)
            raise ForeignFrame(source, frame.read(buffer))
        for source in sources:
            if self.comm.Iprobe(source, MPI.ANY_TAG, status):
                lane = status.Get_tag() % _LANES
                first = status.Get_tag() - lane
                if first != tag and first % (_CALLS * _LANES) == call and lane != _ABORTS:
                    raise ForeignFrame(source)


def wait(request, timeout: float, link: Link, look=None) -> None:
    """Poll a collective's request; TimeoutError naming all other ranks after `timeout` seconds.

    look
        called now and then; may raise, which gives the collective up.
    """
    began = looked = time.perf_counter()
    while not request.Test():
        pause(began)
        now = time.perf_counter()
        try:
            if look is not None and now - looked > LISTEN:
                looked = now
                look()
            if now - began > timeout:
                raise TimeoutError(timeout, set(range(link.size)) - {link.rank})
        except BaseException:
            link.broken = True
            abandoned.append(request)
            raise


def pause(since: float) -> None:
    """Spin at first, then let another process have the core."""
    if time.perf_counter() - since > SPIN:
        os.sched_yield()

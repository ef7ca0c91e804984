"""MPI's requests of all calls on a communicator: sends and receives point to point. The only file that posts them."""

from __future__ import annotations

import ctypes
import os

from mpi4py import MPI

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import TimeoutError
from gqallreduce.scheduling.topology import Topology
from gqallreduce.transport.ended import ended_after
from gqallreduce.transport.waiting import abandon, begin

MOST = 128
MESSAGE_MOST = 1 << 30
EAGER_MOST = 60 << 10


def message_most() -> int:
    """Bytes of the longest MPI message; longer ones are sent in parts. GQALLREDUCE_MAX_MESSAGE lowers it.

    Between hosts it is EAGER_MOST: what MPIs send over TCP without asking first whether the receiver is ready, so that
    no transfer stands still while a kernel runs.
    """
    most = int(os.environ.get("GQALLREDUCE_MAX_MESSAGE", MESSAGE_MOST))
    if not frame.SIZE <= most < 2**31:
        raise ValueError(f"GQALLREDUCE_MAX_MESSAGE={most}, expected {frame.SIZE} to 2^31 - 1")
    return most


def native_transport(comm) -> _kernels.MpiTransport | None:
    """MPI for the runtime in C++; None where a function cannot be found."""
    try:
        handles = [MPI._handleof(each) for each in (MPI.BYTE, MPI.REQUEST_NULL, MPI.SUM)]
        in_place = int(MPI.IN_PLACE) % 2**64
        sizes = [MPI._sizeof(each) for each in (MPI.Request, MPI.Status)]
        return _kernels.MpiTransport(MPI.__file__, *handles, in_place, *sizes, MPI._handleof(comm))
    except (AttributeError, LookupError):
        return None


class Requests:
    """Those under way on a communicator, each with the message (coding/message.py) that it is, or is a part of.

    native
        the same for the runtime in C++, which has requests of its own; None if it has no MPI.
    near
        the ranks on this rank's host.
    """

    def __init__(self, comm):
        self._comm, self._rank = comm, comm.rank
        self._under_way: tuple[list, list] = [], []  # requests and their messages, replaced as one
        self._statuses = [MPI.Status() for _ in range(MOST)]
        self._most = message_most()
        self.near = frozenset([comm.rank])
        self._far = comm.size > 1
        self.native = native_transport(comm)
        self._tell_native()

    @property
    def messages(self) -> list:
        return self._under_way[1]

    def set_topology(self, topology: Topology) -> None:
        """Where the ranks are."""
        hosts = topology.hosts
        self.near = frozenset(rank for rank in range(topology.size) if hosts[rank] == hosts[self._rank])
        self._far = len(self.near) < self._comm.size
        self._tell_native()

    def refresh(self) -> None:
        """Take note of GQALLREDUCE_MAX_MESSAGE, while nothing is under way."""
        self._most = message_most()
        self._tell_native()

    def _tell_native(self) -> None:
        if self.native is not None:
            near = [rank in self.near for rank in range(self._comm.size)]
            self.native.set_topology(near, self._most, min(self._most, EAGER_MOST))

    def limit(self, peer: int) -> int:
        """The most bytes of one MPI message to or from a peer; longer ones are sent in parts."""
        return self._most if peer in self.near else min(self._most, EAGER_MOST)

    @property
    def least_limit(self) -> int:
        """The least `limit` of any peer."""
        return min(self._most, EAGER_MOST) if self._far else self._most

    def send(self, data, peer: int, tag: int, message) -> None:
        self.post(message, self._comm.Isend, [data, len(data), MPI.BYTE], peer, tag)

    def receive(self, data, peer: int, tag: int, message) -> None:
        self.post(message, self._comm.Irecv, [data, len(data), MPI.BYTE], peer, tag)

    def post(self, message, operation, *arguments) -> None:
        """Start an operation. After an exception there may be a message without its request, never the reverse."""
        requests, messages = self._under_way
        messages.append(message)
        begin(requests, operation, *arguments)

    def poll(self) -> list[tuple]:
        """(message, bytes) of what has completed. ForeignFrame for a message that is longer than its room; TimeoutError
        if the MPI says that a process has ended."""
        requests, messages = self._under_way
        if not requests:
            return []
        try:
            done = MPI.Request.Testsome(requests, self._statuses)
        except MPI.Exception:
            raise self._error_of(self._statuses) from None
        if not done:
            return []
        completed = [(messages[index], self._nbytes(messages[index], at)) for at, index in enumerate(done)]
        if len(done) == len(requests):
            self._under_way = [], []
        else:
            keep = sorted(set(range(len(requests))).difference(done))
            self._under_way = [requests[index] for index in keep], [messages[index] for index in keep]
        return completed

    def _nbytes(self, message, at: int) -> int:
        return self._statuses[at].Get_count(MPI.BYTE) if message.counts else 0

    def failed(self, event: _kernels.Event):
        """Raises what the runtime in C++ was told by MPI."""
        if event.kind == "post":
            raise MPI.Exception(event.code)
        statuses = []
        for content in self.native.statuses:
            statuses.append(MPI.Status())
            ctypes.memmove(MPI._addressof(statuses[-1]), content, len(content))
        raise self._error_of(statuses)

    def _error_of(self, statuses: list) -> Exception:
        """What an error of MPI's tells, as messages were looked for."""
        ended = ended_after(self._comm, [status.Get_error() for status in statuses])
        return TimeoutError(None, ended) if ended else ForeignFrame(_truncated(statuses, self._rank))

    def give_up(self, calls) -> None:
        """After an error: what is under way stays behind, with the memory of its messages; receives are cancelled."""
        requests, messages = self._under_way
        self._under_way = [], []
        for message in messages:
            message.channel = None  # which has the call, and that the caller's buffers and the object
        kept = [call.running[0] for call in calls if call.running is not None]
        for running in kept:
            running.give_up()
        pairs = [(each, message.counts) for each, message in zip(requests, messages, strict=False)]
        if self.native is not None:
            pairs += [(MPI.Request.fromhandle(each), receives) for each, receives in self.native.abandon()]
        if pairs:
            abandon([each for each, _ in pairs], (messages, kept), [each for each, receives in pairs if receives])


def _truncated(statuses: list, rank: int) -> int:
    """The source of a message that was longer than its room; this rank if MPI does not say."""
    for status in statuses:
        if status.Get_error() not in (MPI.SUCCESS, MPI.ERR_PENDING):
            return status.Get_source()
    return rank

"""Carries a Worker's bytes over mpi4py, point to point: the only file that does.

Rules, each measured (docs/design.md): at most 64 requests outstanding, shared out among the lanes, sends and receives
apart, so that no lane can starve another; completions in batches; no kernel call between two polls takes long; a wait
spins for 100 us, then yields the core. The tag says when (call order and lane), the frame header says what.
"""

from __future__ import annotations

import os
import time
from collections import deque

from mpi4py import MPI

from gqallreduce import frame
from gqallreduce.errors import Error, MismatchError, TimeoutError, WireError
from gqallreduce.message import Expected, ForeignFrame, Parcel

REQUESTS = 64
SPIN = 100e-6
MESSAGE_MOST = 1 << 30
_LANES = 16
_CALLS = 1024
_abandoned: list = []  # requests and buffers of broken calls: MPI may still look at them


class Link:
    """A duplicate of a communicator that only this package talks on, and the count of calls made on it."""

    def __init__(self, comm, timeout: float):
        self.rank, self.size = comm.rank, comm.size
        self.calls = 0
        self.broken = False
        self.statuses = [MPI.Status() for _ in range(REQUESTS)]
        self.comm, request = comm.Idup()
        wait(request, timeout, range(self.size))

    def next_tag(self) -> int:
        tag = self.calls % _CALLS * _LANES
        self.calls += 1
        return tag


def wait(request, timeout: float, ranks) -> None:
    """Poll a collective's request; TimeoutError naming all `ranks` after `timeout` seconds."""
    began = time.perf_counter()
    while not request.Test():
        _pause(began)
        if time.perf_counter() - began > timeout:
            _abandoned.append(request)
            raise TimeoutError(timeout, ranks)


def _pause(since: float) -> None:
    """Spin at first, then let another process have the core."""
    if time.perf_counter() - since > SPIN:
        os.sched_yield()


def message_most() -> int:
    """Bytes of the longest MPI message; longer ones are sent in parts. GQALLREDUCE_MAX_MESSAGE lowers it."""
    most = int(os.environ.get("GQALLREDUCE_MAX_MESSAGE", MESSAGE_MOST))
    if not frame.SIZE <= most < 2**31:
        raise ValueError(f"GQALLREDUCE_MAX_MESSAGE={most}, expected {frame.SIZE} to 2^31 - 1")
    return most


class Engine:
    """One call's traffic: runs all lanes of a Worker, lowest ready lane first, polling between their steps."""

    def __init__(self, link: Link, worker, timeout: float):
        self.link, self.worker, self.timeout = link, worker, timeout
        self.tag = link.next_tag()
        self.most = message_most()
        share = max(1, REQUESTS // 2 // worker.lanes)
        self.lanes = [_Lane(self, lane, share) for lane in range(worker.lanes)]
        self.requests: list = []
        self.owners: list = []

    def run(self) -> None:
        """Carry the call out. Errors are raised after the peers have been told by abort frames."""
        try:
            self._run()
        except ForeignFrame as foreign:
            self._abort(frame.REASON_MISMATCH if foreign.header is None else _reason(foreign.header))
            raise self._foreign(foreign) from None
        except TimeoutError:
            self._abort(frame.REASON_TIMEOUT)
            raise
        except BaseException:
            self._abort(frame.REASON_FAILURE)
            raise

    def _run(self) -> None:
        running, spent = self.lanes, self.worker.spent
        heard = idle_since = waited = time.perf_counter()
        while running or self.requests:
            ready = next((lane for lane in running if lane.ready()), None)
            if ready is not None:
                ready.advance()
                if ready.finished:
                    running = [lane for lane in running if not lane.finished]
                idle_since = time.perf_counter()
            completed, received = self._poll()
            now = time.perf_counter()
            if received or not self.requests:
                heard = now
            if ready is None:
                if not completed:
                    _pause(idle_since)
                    if now - heard > self.timeout:
                        raise TimeoutError(self.timeout, self._silent())
                spent.wait += now - waited
            waited = now

    def _poll(self) -> tuple[bool, bool]:
        """Take note of what has completed: (anything, a receive)."""
        if not self.requests:
            return False, False
        try:
            done = MPI.Request.Testsome(self.requests, self.link.statuses)
        except MPI.Exception:
            raise ForeignFrame(self._truncated(), None) from None
        if not done:
            return False, False
        received = False
        for position, index in enumerate(done):
            received |= self.owners[index].complete(self.link.statuses[position])
        keep = set(range(len(self.requests))).difference(done)
        self.requests = [self.requests[index] for index in sorted(keep)]
        self.owners = [self.owners[index] for index in sorted(keep)]
        return True, received

    def _truncated(self) -> int:
        """The source of a message that was longer than its room."""
        for status in self.link.statuses:
            if status.Get_error() not in (MPI.SUCCESS, MPI.ERR_PENDING):
                return status.Get_source()
        return self.link.rank

    def post(self, request, owner) -> None:
        self.requests.append(request)
        self.owners.append(owner)

    # --- when something is wrong ---

    def _silent(self) -> set[int]:
        """Peers whose message is due here, or who do not take ours."""
        due = {owner.item.source for owner in self.owners if isinstance(owner, _Receiving)}
        return due or {owner.parcel.to for owner in self.owners if isinstance(owner, _Sending)}

    def _abort(self, reason: int) -> None:
        """Stand in for every message that will not be sent by an abort frame, and leave what is under way behind."""
        self.link.broken = True
        for lane in self.lanes:
            destinations = self.worker.destinations()[lane.sent :]
            send_aborts(self.link, self.worker, destinations, self.tag + lane.number, reason)
        for request, owner in zip(self.requests, self.owners, strict=True):
            if isinstance(owner, _Receiving):
                request.Cancel()
        _abandoned.append((self.requests, self.owners, self.worker.wires))

    def _foreign(self, foreign: ForeignFrame) -> Error:
        header, source = foreign.header, foreign.source
        if header is None or header.kind != frame.ABORT:
            return MismatchError("frame", [source], "a message in mid-call belongs to another call")
        if header.word == frame.REASON_TIMEOUT:
            return TimeoutError(self.timeout, [header.rank])
        if header.word == frame.REASON_ARGUMENTS:
            return MismatchError("arguments", [header.rank], "its own call was invalid")
        if header.word == frame.REASON_FAILURE:
            return Error(f"rank {header.rank} failed in mid-call; this object can no longer be used")
        return MismatchError("frame", [header.rank], f"rank {source} met a message of another call")


def _reason(header: frame.Header) -> int:
    return header.word if header.kind == frame.ABORT else frame.REASON_MISMATCH


def send_aborts(link: Link, worker, destinations, tag: int, reason: int) -> None:
    """Abort frames in place of messages to `destinations`, not waited for."""
    buffer = bytearray(frame.SIZE)
    frame.Header(frame.ABORT, worker.step, worker.signature, reason, link.rank).write(buffer)
    requests = [link.comm.Isend([buffer, frame.SIZE, MPI.BYTE], to, tag) for to in destinations]
    _abandoned.append((buffer, requests))


class _Sending:
    """One MPI message of a parcel."""

    __slots__ = ("lane", "parcel")

    def __init__(self, lane: _Lane, parcel: Parcel):
        self.lane, self.parcel = lane, parcel

    def complete(self, status) -> bool:
        self.lane.sends_free += 1
        self.parcel.parts_left -= 1
        if not self.parcel.parts_left:
            self.lane.engine.worker.sent(self.parcel)
        self.lane.post_sends()
        return False


class _Receiving:
    """One MPI message of an expected one."""

    __slots__ = ("item", "lane")

    def __init__(self, lane: _Lane, item: Expected):
        self.lane, self.item = lane, item

    def complete(self, status) -> bool:
        lane, item = self.lane, self.item
        got = status.Get_count(MPI.BYTE)
        lane.engine.worker.spent.bytes_received += got
        lane.receives_free += 1
        item.received += got
        item.parts_left -= 1
        if not item.parts_left or _is_abort(item):
            item.nbytes = item.received
        lane.post_receives()
        return True


def _is_abort(item: Expected) -> bool:
    """An abort frame comes in one part, however many were due."""
    try:
        return item.received == frame.SIZE and frame.read(item.room[: frame.SIZE]).kind == frame.ABORT
    except WireError:
        return False


class _Lane:
    """A lane of the Worker and its share of the requests."""

    def __init__(self, engine: Engine, number: int, share: int):
        self.engine, self.number = engine, number
        self.steps = engine.worker.lane(number)
        self.waiting: list[Expected] = []
        self.to_send: deque = deque()
        self.to_receive: deque = deque()
        self.sends_free = self.receives_free = share
        self.sent = 0
        self.finished = False

    def ready(self) -> bool:
        return not self.waiting or any(item.nbytes is not None for item in self.waiting)

    def advance(self) -> None:
        """One step: up to the next kernel call, or to where it must wait."""
        self.waiting = []
        for event in self.steps:
            if event is None:
                return
            if isinstance(event, Expected):
                parts = self._parts(event.room, event.bound, event)
                self.to_receive.extend((part, _Receiving(self, event)) for part in parts)
                self.post_receives()
            elif isinstance(event, Parcel):
                self.sent += 1
                spent = self.engine.worker.spent
                spent.messages += 1
                spent.bytes_sent += len(event.data)
                parts = self._parts(event.data, len(event.data), event)
                self.to_send.extend((part, _Sending(self, event)) for part in parts)
                self.post_sends()
            else:
                self.waiting = event
                return
        self.finished = True

    def _parts(self, data, nbytes: int, message: Parcel | Expected) -> list:
        """A message cut into MPI messages of at most `most` bytes: their number follows from the bound, known to both."""
        most = self.engine.most
        message.parts_left = max(1, -(-message.bound // most))
        if message.parts_left == 1:
            return [data[:nbytes]]
        return [data[part * most : min((part + 1) * most, nbytes)] for part in range(message.parts_left)]

    def post_sends(self) -> None:
        engine = self.engine
        while self.sends_free and self.to_send:
            data, owner = self.to_send.popleft()
            self.sends_free -= 1
            message = [data, len(data), MPI.BYTE]
            engine.post(engine.link.comm.Isend(message, owner.parcel.to, engine.tag + self.number), owner)

    def post_receives(self) -> None:
        engine = self.engine
        while self.receives_free and self.to_receive:
            data, owner = self.to_receive.popleft()
            self.receives_free -= 1
            message = [data, len(data), MPI.BYTE]
            engine.post(engine.link.comm.Irecv(message, owner.item.source, engine.tag + self.number), owner)

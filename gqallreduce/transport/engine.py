"""Carries a Worker's bytes over mpi4py, point to point: the only file that does.

Rules, each measured (docs/design.md): at most 64 requests outstanding, shared out among the lanes, sends and receives
apart, so that no lane can starve another; completions in batches; a poll after every 100 us of arithmetic, but not
before as long as the last one took, since it may have lent the core to another process; a wait spins for 100 us, then
yields. Abort frames are looked for where there is nothing else to do.
"""

from __future__ import annotations

import os
import time
from collections import deque

import numpy as np
from mpi4py import MPI

from gqallreduce.coding import frame
from gqallreduce.coding.message import Expected, ForeignFrame, Parcel, Receipt
from gqallreduce.errors import TimeoutError
from gqallreduce.transport.link import MEASURE, REQUESTS, Link
from gqallreduce.transport.waiting import LISTEN, SPIN, abandon, begin

POLL = 100e-6
LOOKS = 32
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


class Engine:
    """One call's traffic: runs all lanes of a Worker, lowest ready lane first, polling between their steps."""

    def __init__(self, link: Link, worker, timeout: float):
        self.link, self.worker, self.timeout = link, worker, timeout
        self.tag = link.tag(0, worker.signature)
        self.most = message_most()
        share = max(1, REQUESTS // 2 // min(worker.lanes, worker.lanes_at_once))
        self.lanes = [_Lane(self, lane, share) for lane in range(worker.lanes)]
        self.under_way: tuple[list, list] = [], []  # requests and their owners, replaced as one

    def run(self) -> None:
        """Carry the call out. ForeignFrame if a peer has given it up or makes another one."""
        try:
            self._measure()
            self._run()
        except ForeignFrame as foreign:
            foreign.due |= self._silent()
            raise
        finally:
            self._leave()

    def _measure(self) -> None:
        """The one number that some codecs need of all ranks before they begin."""
        number = self.worker.measure()
        if number is None:
            return
        began = time.perf_counter()
        largest = self.link.largest(self.tag + MEASURE, np.array([number]), self.timeout, self.tag)
        self.worker.spent.wait += time.perf_counter() - began
        self.worker.agreed(float(largest[0]))

    def _run(self) -> None:
        coming, running = deque(self.lanes), []
        worker, spent, now = self.worker, self.worker.spent, time.perf_counter
        heard = busy = polled = listened = now()
        worker.poll_at = polled + POLL
        while coming or running:
            while coming and len(running) < worker.lanes_at_once:
                running.append(coming.popleft())
            ready = next((lane for lane in running if lane.ready()), None)
            if ready is not None:
                ready.advance()
                busy = now()
                if busy < worker.poll_at and any(lane.ready() for lane in running):
                    continue
            before = now()
            completed, received = self._poll()
            if completed or ready is not None:
                running = [lane for lane in running if not lane.done()]
            after = now()
            worker.poll_at = after + max(POLL, after - before)
            if received or not self.under_way[0]:
                heard = after
            if ready is None:
                if not completed:
                    if after - busy > SPIN:
                        os.sched_yield()
                    if after - listened > LISTEN and self.link.size > 1:
                        self.link.listen(self.tag)
                        listened = after
                    if after - heard > self.timeout:
                        raise TimeoutError(self.timeout, self._silent())
                spent.wait += after - polled
            polled = after
        if polled - self.link.previous > self.timeout and self.link.size > 1:
            self._look_for_aborts()

    def _look_for_aborts(self) -> None:
        """A late rank may have all its data although its peers gave up. MPI may deliver their aborts one at a time."""
        for _ in range(min(4 + 2 * self.link.size, LOOKS)):
            self.link.listen()

    def _poll(self) -> tuple[bool, bool]:
        """Take note of what has completed: (anything, a receive)."""
        requests, owners = self.under_way
        if not requests:
            return False, False
        try:
            done = MPI.Request.Testsome(requests, self.link.statuses)
        except MPI.Exception:
            raise ForeignFrame(self._truncated()) from None
        if not done:
            return False, False
        received = False
        for position, index in enumerate(done):
            received |= owners[index].complete(self.link.statuses[position])
        if len(done) == len(requests):
            self.under_way = [], []
            return True, received
        keep = sorted(set(range(len(requests))).difference(done))
        self.under_way = [requests[index] for index in keep], [owners[index] for index in keep]
        return True, received

    def _truncated(self) -> int:
        """The source of a message that was longer than its room."""
        for status in self.link.statuses:
            if status.Get_error() not in (MPI.SUCCESS, MPI.ERR_PENDING):
                return status.Get_source()
        return self.link.rank

    def post(self, operation, data, peer: int, owner) -> None:
        """Start to send or receive. After an exception there may be an owner without its request, never the reverse."""
        requests, owners = self.under_way
        owners.append(owner)
        begin(requests, operation, [data, len(data), MPI.BYTE], peer, self.tag + owner.lane.number)

    # --- when something is wrong ---

    def _due(self) -> set[int]:
        return {owner.item.source for owner in self.under_way[1] if isinstance(owner, _Receiving)}

    def _silent(self) -> set[int]:
        """Peers whose message is due here, or who do not take ours."""
        return self._due() or {owner.parcel.to for owner in self.under_way[1] if isinstance(owner, _Sending)}

    def _leave(self) -> None:
        """After an error: what is under way stays behind, with the memory that it uses."""
        requests, owners = self.under_way
        if not requests:
            return
        pairs = zip(requests, owners, strict=False)
        abandon(requests, (owners, self.worker), [each for each, owner in pairs if isinstance(owner, _Receiving)])


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
        if not item.parts_left:
            item.nbytes = item.received
        lane.post_receives()
        return True


class _Lane:
    """A lane of the Worker and its share of the requests."""

    def __init__(self, engine: Engine, number: int, share: int):
        self.engine, self.number = engine, number
        self.steps = engine.worker.lane(number)
        self.waiting: list[Expected | Receipt] = []
        self.to_send: deque = deque()
        self.to_receive: deque = deque()
        self.share = self.sends_free = self.receives_free = share
        self.finished = False

    def ready(self) -> bool:
        if self.finished:
            return False
        return not self.waiting or any(item.ready for item in self.waiting)

    def done(self) -> bool:
        """Finished, and all its messages out."""
        return self.finished and self.sends_free == self.share and not self.to_send

    def advance(self) -> None:
        """One step: up to the next kernel call, or to where it must wait."""
        self.waiting = []
        for event in self.steps:
            if event is None:
                return
            if isinstance(event, Expected):
                parts = self._parts(event.room, event.bound, event, event.source)
                self.to_receive.extend((part, _Receiving(self, event)) for part in parts)
                self.post_receives()
            elif isinstance(event, Parcel):
                spent = self.engine.worker.spent
                spent.messages += 1
                spent.bytes_sent += len(event.data)
                parts = self._parts(event.data, len(event.data), event, event.to)
                self.to_send.extend((part, _Sending(self, event)) for part in parts)
                self.post_sends()
            else:
                self.waiting = event
                return
        self.finished = True

    def _parts(self, data, nbytes: int, message: Parcel | Expected, peer: int) -> list:
        """A message cut into MPI messages that are not too long: as many as its bound needs, which both ends know."""
        engine = self.engine
        most = engine.most if peer in engine.link.near else min(engine.most, EAGER_MOST)
        message.parts_left = max(1, -(-message.bound // most))
        if message.parts_left == 1:
            return [data[:nbytes]]
        return [data[part * most : min((part + 1) * most, nbytes)] for part in range(message.parts_left)]

    def post_sends(self) -> None:
        engine = self.engine
        while self.sends_free and self.to_send:
            data, owner = self.to_send.popleft()
            self.sends_free -= 1
            engine.post(engine.link.comm.Isend, data, owner.parcel.to, owner)

    def post_receives(self) -> None:
        engine = self.engine
        while self.receives_free and self.to_receive:
            data, owner = self.to_receive.popleft()
            self.receives_free -= 1
            engine.post(engine.link.comm.Irecv, data, owner.item.source, owner)

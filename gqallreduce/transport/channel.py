"""What a lane sends and receives by: messages cut into parts, and its share of the requests that may be outstanding."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import numpy as np

from gqallreduce.coding import frame
from gqallreduce.coding.lanes import LANES_MOST
from gqallreduce.coding.message import Collective, Incoming, Outgoing
from gqallreduce.transport.call import Call, Stage
from gqallreduce.transport.exchange import ANSWERS

REQUESTS = 64  # of all lanes, but for those of the first call


class Channel:
    """Of one lane of a call's stage.

    lane
        the stage's.
    share
        requests that it may have outstanding, sends and receives each.
    """

    def __init__(self, transport, link, call: Call, stage: Stage, number: int):
        self.transport, self.call, self.stage = transport, call, stage
        self.lane, self.spent = stage.lane(number), stage.spent
        self._link, self._number, self._tag = link, stage.first_lane + number % LANES_MOST, None
        self.to_send: deque = deque()
        self.to_receive: deque = deque()
        most = max(1, REQUESTS // 2 // min(stage.lanes, stage.lanes_at_once))
        self.share = min(most, 2 * stage.most_under_way(self.transport.least_limit))  # of this round and the next
        self.sends_free = self.receives_free = self.share

    @property
    def tag(self) -> int:
        if self._tag is None:
            self._tag = self._link.tag(self.call.number, self._number, self.stage.signature)
        return self._tag

    def ready(self) -> bool:
        return not self.lane.finished and self.lane.can_advance()

    def done(self) -> bool:
        """Finished, and all its messages out."""
        return self.lane.finished and self.sends_free == self.share and not self.to_send

    def send(self, message: Outgoing) -> None:
        if self.spent is not None:
            self.spent.messages += 1
            self.spent.bytes_sent += len(message.data)
        if self.stage.trace is not None:
            message.began = perf_counter()
        parts = self._parts(message, message.data, len(message.data), message.to)
        self.to_send.extend([(part, message) for part in parts])
        self._post_sends()

    def receive(self, message: Incoming) -> None:
        parts = self._parts(message, message.buffer, message.bound, message.source)
        self.to_receive.extend([(part, message) for part in parts])
        self._post_receives()

    def fetched(self, message: Incoming, nbytes: int) -> tuple[bool, bool] | None:
        """Values that a message says are exposed, so many bytes, become what follows its header; the owner is told.

        Returns whether they are own values, or those of a sum, unchecked; None if they cannot be read.
        """
        told, native = message.buffer[: message.nbytes].copy(), self.transport.native
        into = message.buffer[frame.SIZE : frame.SIZE + nbytes]
        found = None if native is None else native.fetch(message.source, told, into)
        if found is None:
            return None
        mark, own, summed = found
        if mark:
            data = np.frombuffer(mark.to_bytes(8, "little"), np.uint8)
            answer = Outgoing(message.source, data, len(data))
            answer.channel, answer.parts_left = self, 1
            self.sends_free -= 1
            self.transport.send(data, message.source, self._tag_of_answers, answer)
        if self.spent is not None:
            self.spent.bytes_received += nbytes - frame.EXPOSURE
        message.nbytes = frame.SIZE + nbytes
        return own, summed

    def never(self, source: int) -> Incoming:
        """A message that does not come, due from a rank whose values are not exposed any more: it has given the call up
        or is gone."""
        message = Incoming(source, np.empty(8, np.uint8), 8)
        message.channel, message.parts_left = self, 1
        self.receives_free -= 1
        self.transport.receive(message.buffer, source, self._tag_of_answers, message)
        return message

    @property
    def _tag_of_answers(self) -> int:
        return self._link.tag(self.call.number, ANSWERS, self.stage.signature)

    def start(self, message: Collective, operation, *arguments) -> None:
        """A collective operation."""
        message.channel = self
        self.transport.post(message, operation, *arguments)

    def complete(self, message: Incoming | Outgoing | Collective, nbytes: int) -> None:
        """What was under way of it has completed: it, or one of its parts. A message that has forgets its channel."""
        if message.counts:
            if self.spent is not None:
                self.spent.bytes_received += nbytes
            self.receives_free += 1
            message.part_received(nbytes)
            self._post_receives()
        elif message.receives:
            message.ready = True
        else:
            self.sends_free += 1
            message.parts_left -= 1
            if not message.parts_left and message.frame is not None:
                self._left(message)
            self._post_sends()
        if not message.parts_left:
            message.channel = None

    def _left(self, message: Outgoing) -> None:
        """All of a message has left."""
        trace, stage = self.stage.trace, self.stage
        if trace is not None:
            sent = {"to": message.to, "bytes": len(message.data)}
            trace.add("send", message.began, perf_counter(), repr(stage.key), self.lane.number, **sent)
        self.lane.sent(message.frame)

    def _parts(self, message: Outgoing | Incoming, data, nbytes: int, peer: int) -> list:
        """A message cut into parts that are not too long: as many as its bound needs, which both ends know."""
        limit, message.channel = self.transport.limit(peer), self
        message.parts_left = max(1, -(-message.bound // limit))
        if message.parts_left == 1:
            return [data[:nbytes]]
        return [data[part * limit : min((part + 1) * limit, nbytes)] for part in range(message.parts_left)]

    def _post_sends(self) -> None:
        while self.sends_free > 0 and self.to_send:
            data, message = self.to_send.popleft()
            self.sends_free -= 1
            self.transport.send(data, message.to, self.tag, message)

    def _post_receives(self) -> None:
        while self.receives_free > 0 and self.to_receive:
            data, message = self.to_receive.popleft()
            self.receives_free -= 1
            self.transport.receive(data, message.source, self.tag, message)

"""The progress engine of a communicator: advances all calls under way, in the order in which they were started.

Rules, with their reasons in docs/design.md: at most 64 requests outstanding (and those of the first call), shared out
among the lanes, sends and receives apart, so that no lane can starve another; completions in batches; a poll after
every 100 us of arithmetic, but not before as long as the last one took, since it may have lent the core to another
process; a wait spins for 100 us, then yields. Abort frames are looked for where there is nothing else to do.

What the runtime in C++ can carry out of a call, its engine advances, by the same rules, but a wait spins for 5 us only
(csrc/gq/runtime/engine.hpp).

It knows no MPI: `transport` sends and receives (requests.py), or is another one (runtime/local.py).
"""

from __future__ import annotations

import math
import os
from time import perf_counter

from gqallreduce import _kernels
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.errors import TimeoutError
from gqallreduce.transport.call import Call
from gqallreduce.transport.channel import REQUESTS, Channel

POLL = 100e-6
SPIN = 100e-6
LISTEN = 2e-3
TEST_SECONDS = 1e-3


class Progress(_kernels.Progress):
    """Of one communicator. What every call asks for is in the class of C (kernels/progress.pxi).

    transport
        send(data, peer, tag, message), receive(data, peer, tag, message), of a message or a part of one; poll() ->
        [(message, bytes)] of what has completed; `messages`, what is under way; limit(peer), the most bytes that are
        not cut, and `least_limit`, the least of those; `native`, the same for the runtime in C++, or None;
        failed(event), which raises the error of a transport's event.
    link
        tag(call, lane, signature); listen(calls), which raises ForeignFrame if another rank has given up; alike(error):
        do all ranks raise it together? stage_ends(call), which may raise ForeignFrame.
    threaded
        does a thread of the runtime in C++ go on with what it carries out, from `hand_over` to `take_back`?
    poll_every
        seconds of arithmetic between two polls; 0 for a poll after every instruction.
    """

    def __init__(self, transport, link, poll_every: float = POLL, threaded: bool = False):
        super().__init__(None if transport.native is None else _kernels.Engine(transport.native, poll_every))
        self.transport, self.link, self._poll_every, self._threaded = transport, link, poll_every, threaded
        self._coming: list[Channel] = []  # of lanes that have not begun, in order of calls
        self._running: list[Channel] = []
        self._free = max(1, REQUESTS // 2)
        self._poll_at = perf_counter()
        self._listened, self._polled = self._poll_at, 0.0

    # --- calls ---

    def start(self, call: Call, stages) -> None:
        """Begin a call, whose stages these are."""
        call.stages = stages
        if not self.calls:
            self.since = self.looked = perf_counter()
            self._poll_at = self.since + self._poll_every
        self.calls.append(call)
        self._next_stage(call)

    def _next_stage(self, call: Call) -> None:
        try:
            stage = next(call.stages, None)
        except Exception as error:
            if not (call.known_to_all or self.link.alike(error)):
                raise
            self._end(call, error)
            call.forget_frames()
            return
        if stage is None:
            self._end(call)
            return
        if self.engine is not None and self._goes_on_natively(call, stage):
            return
        channels = [Channel(self.transport, self.link, call, stage, number) for number in range(stage.lanes)]
        call.lanes_left, call.live = len(channels), 0
        before = len(self._coming) and sum(each.call.number <= call.number for each in self._coming)
        self._coming[before:before] = channels

    def _goes_on_natively(self, call: Call, stage) -> bool:
        """Does the runtime in C++ carry the stage out?"""
        running = stage.native()
        if running is None:
            return False
        call.running = running, stage
        tag = self.link.tag(call.number, stage.first_lane, stage.signature)
        if not isinstance(running, _kernels.NativeExchange):
            self.engine.start(running, max(0, call.number), tag)
        elif not self.engine.exchange(running, tag):
            call.running = None
        return call.running is not None

    def _end(self, call: Call, error: BaseException | None = None) -> None:
        call.end(error)
        self.calls.remove(call)

    def clear(self) -> list[Call]:
        """Forget all calls under way, after an error; returns them."""
        self.take_back()
        calls, self.calls = self.calls, []
        self._coming.clear()
        self._running.clear()
        if self.engine is not None:
            self.engine.clear()
        self._free = max(1, REQUESTS // 2)
        return calls

    # --- a call that is carried out at once ---

    def take_up(self, call: Call) -> None:
        """A call that `run_at_once` has begun, as one of those under way."""
        self._poll_at = call.began + self._poll_every
        self.calls.append(call)

    # --- advancing ---

    def work(self) -> tuple[bool, bool]:
        """Let lanes go on until a poll is due, and poll: (whether one did, whether something completed)."""
        worked = False
        while self._advance():
            worked = True
            if perf_counter() >= self._poll_at:
                break
        before = perf_counter()
        completed, received = self._poll()
        after = perf_counter()
        self._polled = after - before
        self._poll_at = after + (self._poll_every and max(self._poll_every, self._polled))
        if self._works_natively():
            found = self.engine.work()
            worked, completed, received = (a or b for a, b in zip(found, (worked, completed, received), strict=True))
            self._take_note()
        if received or not self._something_is_under_way():
            self.since = after
        return worked, completed

    # --- the runtime in C++ ---

    def _works_natively(self) -> bool:
        return self.engine is not None and bool(self.engine.operations or self.engine.exchanges)

    def hand_over(self) -> None:
        """The caller leaves: nothing here is called until `take_back`."""
        if self._threaded and self._works_natively():
            self.handed_over = True  # first: an interrupt may come between
            self.engine.hand_over()

    def take_back(self, for_good: bool = False) -> None:
        """The caller is back. `for_good`: no thread works from now on."""
        if self.handed_over:
            if self.engine.take_back():
                self.since = perf_counter()
            self.handed_over = False
        self._threaded &= not for_good

    def _take_note(self) -> None:
        """Of what the runtime in C++ has to tell."""
        event = self.engine.event()
        if event is not None:
            if event.operation is None or event.kind == "post":
                self.transport.failed(event)
            _, stage = self._call_of(event.operation).running
            stage.answer(event.operation, event)
        for running in self.engine.take_done():
            call = self._call_of(running)
            _, stage = call.running
            stage.account(running)
            self.link.stage_ends(call)
            call.running = None
            self._next_stage(call)

    def _call_of(self, running) -> Call:
        return next(call for call in self.calls if call.running is not None and call.running[0] is running)

    def turn(self, seconds: float = math.inf) -> None:
        """Do what can be done without waiting, for about so many seconds at most."""
        until = perf_counter() + seconds
        while any(self.work()) and perf_counter() < until:
            pass

    def test(self, call: Call, timeout: float) -> None:
        """Do what can be done in about a millisecond; raises what `run` raises.

        Of the time since the last look at least most was the caller's own: a tenth of the timeout of it counts.
        """
        self.turn(TEST_SECONDS)
        if not call.done:
            now = perf_counter()
            self.since += max(0.0, now - self.looked - timeout / 10)
            self.looked = now
            self.nothing_came(call, timeout)

    def run(self, call: Call, timeout: float, waited: bool = False) -> None:
        """Until a call is done. ForeignFrame if a peer has given it up or makes another one; TimeoutError.

        waited
            the caller has done nothing but wait since the call began, so that this time counts towards the timeout.
        """
        idle = self._listened = perf_counter()
        if not waited:
            self.since = idle
        if self._works_natively():
            self._take_note()  # of what its thread has done
        while not call.done:
            if self._works_natively() and not self._coming and not self._running:
                seconds, received, nothing = self.engine.run(LISTEN)
                call.wait += seconds
                self._take_note()
                if received:
                    self.since = perf_counter()
                if nothing and not call.done:
                    self.nothing_came(call, timeout)
                continue
            before = perf_counter()
            worked, completed = self.work()
            if worked or completed:
                idle = perf_counter()
            lent = self._polled > SPIN  # in a poll that took longer than a spin, the MPI has lent the core
            if worked:
                call.wait += self._polled if lent else 0.0
                continue
            if not completed:
                if before - idle > SPIN and not lent:
                    os.sched_yield()
                self.nothing_came(call, timeout)
            call.wait += perf_counter() - before

    def nothing_came(self, call: Call, timeout: float) -> None:
        """A call is not done. ForeignFrame if a peer has given up; TimeoutError if nothing has come for so long."""
        now = perf_counter()
        if now - self._listened > LISTEN:
            self._listened = now
            try:
                self.link.listen(self.calls)
            except ForeignFrame:
                self.turn()  # a call for which all has come by now succeeds
                if not call.done:
                    raise
        if not self._something_is_under_way():
            self.since = now
        elif now - max(self.since, call.began) > timeout:
            raise TimeoutError(timeout, self.silent())

    def silent(self) -> set[int]:
        """Peers whose message is due here, or who do not take ours."""
        under_way = [(peer, message.receives) for message in self.transport.messages for peer in message.peers]
        for peer, receives in () if self.engine is None else self.engine.transport.pending:
            under_way += [(each, receives) for each in (self.link.others if peer < 0 else (peer,))]
        return {peer for peer, receives in under_way if receives} or {peer for peer, _ in under_way}

    def carries_values(self, call: Call) -> bool:
        """Are the values of a call under way here? What must be known before them is known then."""
        if call.running is not None:
            return call.running[1] is call.data
        return any(channel.stage is call.data for channel in (*self._running, *self._coming))

    def _something_is_under_way(self) -> bool:
        return bool(self.transport.messages) or (self.engine is not None and self.engine.transport.busy)

    def _advance(self) -> bool:
        """Let the first lane that can go on do so, up to the next poll; False if there is none."""
        if self._coming:
            self._admit()
        for channel in self._running:
            if channel.ready():
                break
        else:
            return False
        channel.stage.poll_at = self._poll_at
        channel.lane.advance(channel)
        if channel.lane.finished:
            self._leave(channel)
        return True

    def _admit(self) -> None:
        """Let lanes begin, in order. Those of the first call need not wait for others: so it goes on, on every rank."""
        while self._coming:
            channel = self._coming[0]
            first = channel.call is self.calls[0]
            if (channel.share > self._free and not first) or channel.call.live >= channel.stage.lanes_at_once:
                return
            self._free -= channel.share
            channel.call.live += 1
            self._running.append(channel)
            del self._coming[0]

    def _leave(self, channel: Channel) -> None:
        """If a lane is done, and all its messages are out: room for the next one, or the next stage."""
        if not channel.done():
            return
        call = channel.call
        self._running.remove(channel)
        self._free += channel.share
        call.live -= 1
        call.lanes_left -= 1
        if not call.lanes_left:
            self.link.stage_ends(call)
            self._next_stage(call)

    def _poll(self) -> tuple[bool, bool]:
        """Take note of what has completed: (anything, a receive)."""
        received, leaving = False, None
        completed = self.transport.poll()
        for message, nbytes in completed:
            channel = message.channel
            channel.complete(message, nbytes)
            received |= message.receives
            if channel.lane.finished:
                leaving = [*(leaving or ()), channel]
        for channel in leaving or ():
            if channel in self._running:
                self._leave(channel)
        return bool(completed), received

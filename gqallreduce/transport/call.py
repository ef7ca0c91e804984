"""One call under way: the stages that it goes through, and how it ended."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Protocol


class Stage(Protocol):
    """What a call does at one time: lanes that run side by side, and send and receive messages.

    A lane has `advance(messages)`, where `messages` has `send(Outgoing)` and `receive(Incoming)`; `can_advance()`, is
    there what it waits for; `finished`; and `sent(Frame)`, called when a message has left.

    native()
        what the runtime in C++ carries out in place of its lanes, or None; then `answer(running, event)` is called when
        that needs a decision, and `account(running)` when it is done.
    first_lane, signature
        what its tags are made of.
    lanes, lanes_at_once
        how many there are, and how many may be under way.
    spent, trace
        where bytes and messages are counted, and where is noted when they leave; None if they are not.
    """

    first_lane: int
    signature: int
    lanes: int
    lanes_at_once: int
    spent: object
    trace: object
    poll_at: float

    def lane(self, number: int): ...

    def native(self): ...

    def most_under_way(self, limit: int) -> int: ...


class Call:
    """From its start until all ranks' part in it is done.

    name
        in words, for errors.
    owner
        the Allreduce whose call it is; None in a process of its own (local.py).
    link, number
        where it runs, and as which call; None and -1 before the ranks are connected.
    stages
        a generator that yields Stage after Stage and returns when the call has taken effect; an error that it raises is
        known to all ranks, if it is one of link.ALIKE or `known_to_all` is set.
    data
        the Stage whose messages come now, once ranks have agreed on the call; then a message of another is an error.
    running
        (what the runtime in C++ carries out of it, the Stage), None if it does not. It is kept after an error, since
        MPI may still use its memory.
    result, error, spent
        how it ended, once it is `done`, and what it cost.
    states, for_good
        what its end replaces (memory.py); also where calls of a step are kept apart.
    invalid
        what is wrong with this rank's arguments, if anything: that is raised, whatever else goes wrong.
    counted
        the Trials (runtime/trials.py) that count it, unless it ends by an error; None if none do.
    held
        the Given (runtime/arguments.py), whose keys and buffers belong to it until its request has been waited for.
    request
        a weak reference to the caller's Request, None if there is none.
    wait
        seconds that this rank waited for it.
    """

    __slots__ = (
        "__weakref__", "began", "counted", "data", "done", "error", "for_good", "held", "invalid", "known_to_all",
        "lanes_left", "link", "live", "name", "number", "owner", "previous", "request", "result", "running", "spent",
        "stages", "states", "wait",
    )  # fmt: skip

    def __init__(self, name: str, owner=None):
        self.name, self.owner = name, owner
        self.number, self.link, self.stages = -1, None, None
        self.data = self.held = self.request = self.counted = None
        self.began = self.previous = perf_counter()
        self.done = self.known_to_all = self.for_good = False
        self.result = self.error = self.invalid = self.spent = self.running = None
        self.states: dict = {}
        self.lanes_left = self.live = 0
        self.wait = 0.0

    def took_effect(self) -> bool:
        """Have its States replaced the old ones?"""
        return self.done or (self.owner is not None and self.owner.memory.holds(self.states, self.for_good))

    def end(self, error: BaseException | None = None) -> None:
        """It is over. Its generator is closed, so that what it borrowed is given back."""
        self.done, self.error, self.data = True, error, None
        if error is not None and self.owner is not None:
            self.owner.call_failed(self)
        if self.stages is not None:
            self.stages.close()
            self.stages = None

    def forget_frames(self) -> None:
        """Its error is raised where its request is waited for, if it is. Frames that it has passed refer to those that
        called them, and so to what they have: a request that its caller has dropped would never go."""
        if self.error is not None and self.request is not None:
            self.error.__traceback__ = None


class OneLane:
    """A Stage of one lane, which is itself that lane; what it sends is not counted."""

    first_lane = signature = 0
    lanes = lanes_at_once = 1
    spent = trace = None
    poll_at = math.inf

    def lane(self, number: int) -> OneLane:
        return self

    def native(self) -> None:
        return None

    def most_under_way(self, limit: int) -> int:
        return 1


class Finished(OneLane):
    """A Stage that is over as soon as another call is done."""

    def __init__(self, call: Call):
        self._call, self.finished = call, False

    def can_advance(self) -> bool:
        return self._call.done

    def advance(self, messages) -> None:
        self.finished = True


def call_in_words(key, what: str = "call") -> str:
    """A call in words."""
    if isinstance(key, (list, tuple)):
        return f"the {what} of a group of {len(key)} keys" + (f", {key[0]!r} first" if len(key) else "")
    return f"the {what} of key {key!r}"

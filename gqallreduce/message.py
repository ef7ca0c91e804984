"""Messages on their way: what a Worker hands to whoever carries the bytes.

`parts_left` and `received` belong to the carrier, which may cut a long message into several.
"""

from __future__ import annotations

from gqallreduce import frame


class ForeignFrame(Exception):
    """A message of another call in place of the one that was due, or an abort: then with its header."""

    def __init__(self, source: int, header: frame.Header | None = None):
        self.source, self.header = source, header


class Frame:
    """A header and a wire in a lent buffer, which is free again when it has been sent `uses` times."""

    __slots__ = ("buffer", "nbytes", "uses")

    def __init__(self, buffer, nbytes: int, uses: int):
        self.buffer, self.nbytes, self.uses = buffer, nbytes, uses


class Parcel:
    """A message to send. `bound`: the receiver's room, from which both know in how many parts it travels."""

    __slots__ = ("bound", "data", "frame", "lane", "parts_left", "to")

    def __init__(self, to: int, lane: int, frame: Frame, bound: int):
        self.to, self.lane, self.frame, self.bound = to, lane, frame, bound
        self.data = frame.buffer[: frame.nbytes]


class Expected:
    """A message that is due, received into `room[:bound]`; `nbytes` is None until it is there."""

    __slots__ = ("bound", "lane", "nbytes", "parts_left", "received", "receiving", "room", "source")

    def __init__(self, source: int, lane: int, room, bound: int, receiving):
        self.source, self.lane, self.room, self.bound, self.receiving = source, lane, room, bound, receiving
        self.nbytes, self.received = None, 0

"""Messages on their way: what a Worker hands to the carrier of the bytes.

`parts_left` and `received` belong to the carrier, which may cut a long message into several.
"""

from __future__ import annotations

from gqallreduce.coding import frame


class ForeignFrame(Exception):
    """A message of another call in place of the one that was due, or an abort: then with its header.

    invalid
        the other call is one whose arguments were invalid.
    due
        the ranks for which this one waited when it came.
    """

    def __init__(self, source: int, header: frame.Header | None = None, invalid: bool = False):
        self.source, self.header, self.invalid = source, header, invalid
        self.due: set[int] = set()


class Receipt:
    """Something under way: a lane that has yielded [it] goes on when it is `ready`."""

    ready: bool


class Frame:
    """A header and a wire in a lent buffer, which is free again when it has been sent `uses` times.

    payload
        of a frame made here: where the arithmetic writes and reads the wire; on the host, a part of `buffer`.
    header
        of a frame made here, once it is known.
    receipt
        what must be ready before the frame is sent, or None.
    """

    __slots__ = ("buffer", "header", "nbytes", "payload", "receipt", "uses")

    def __init__(self, buffer, payload, uses: int, nbytes: int = 0, receipt: Receipt | None = None):
        self.buffer, self.payload, self.uses = buffer, payload, uses
        self.nbytes, self.receipt, self.header = nbytes, receipt, None

    def seal(self, header: frame.Header) -> None:
        self.header = header
        self.nbytes = frame.SIZE + (header.word if header.kind == frame.DATA else 0)

    @property
    def wire(self):
        """What of the payload is the message."""
        return self.payload[: self.nbytes - frame.SIZE]


class Parcel:
    """A message to send. `bound`: the receiver's room, from which both know in how many parts it travels."""

    __slots__ = ("bound", "data", "frame", "lane", "parts_left", "to")

    def __init__(self, to: int, lane: int, frame: Frame, bound: int):
        self.to, self.lane, self.frame, self.bound = to, lane, frame, bound
        self.data = frame.buffer[: frame.nbytes]


class Expected:
    """A message that is due, received into `room[:bound]`; `nbytes` is None until it is there, and it is ready."""

    __slots__ = ("bound", "lane", "nbytes", "parts_left", "received", "receiving", "room", "source")

    def __init__(self, source: int, lane: int, room, bound: int, receiving):
        self.source, self.lane, self.room, self.bound, self.receiving = source, lane, room, bound, receiving
        self.nbytes, self.received = None, 0

    @property
    def ready(self) -> bool:
        return self.nbytes is not None

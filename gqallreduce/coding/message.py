"""Messages on their way, and what a lane gives to the transport: outgoing and incoming ones, and collective operations.

Of these three the progress engine asks `receives`, does something come from their `peers`; and `counts`, is it a
receive of point to point. `channel`, `parts_left` and `received` belong to it: it may cut a long message into several.
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
    """Something under way: a lane that waits for it goes on when it is `ready`."""

    ready: bool


class Frame:
    """A message in a lent buffer: one wire made here, or several end to end.

    uses
        the program itself, and each send that is under way; without any the buffer is free.
    bound
        the most bytes that it could have had: the receiver's room.
    payload, header
        of a wire made here: where the arithmetic writes and reads it (on the host, a part of `buffer`); its header,
        once it is known.
    receipt
        what must be ready before it is sent, or None.
    """

    __slots__ = ("bound", "buffer", "header", "nbytes", "payload", "receipt", "uses")

    def __init__(self, buffer, payload, nbytes: int = 0, receipt: Receipt | None = None, bound: int = 0):
        self.buffer, self.payload, self.bound = buffer, payload, bound
        self.nbytes, self.receipt, self.header, self.uses = nbytes, receipt, None, 1

    def seal(self, header: frame.Header) -> None:
        self.header = header
        self.nbytes = frame.SIZE + (header.word if header.kind == frame.DATA else 0)

    @property
    def data(self):
        """The bytes that are sent."""
        return self.buffer[: self.nbytes]

    def header_of(self, number: int) -> frame.Header:
        return self.header

    def message(self, number: int):
        """The bytes of one of its wires, header included."""
        return self.data


class Outgoing:
    """A message to send. `bound`: the receiver's room, from which both know in how many parts it travels.

    frame
        what is told when it has left, or None.
    began
        when it was sent, if it is traced.
    """

    receives = counts = False
    __slots__ = ("began", "bound", "channel", "data", "frame", "parts_left", "to")

    def __init__(self, to: int, data, bound: int, frame: Frame | None = None):
        self.to, self.data, self.bound, self.frame = to, data, bound, frame

    @property
    def peers(self) -> tuple[int, ...]:
        return (self.to,)


class Incoming(Frame):
    """A message that is due, received into `buffer[:bound]`, of these wires; `ready` when it is there.

    heads
        (where, header) of each wire, as far as they have been read.
    """

    receives = counts = True
    __slots__ = ("channel", "heads", "parts_left", "ready", "received", "source", "wires")

    def __init__(self, source: int, buffer, bound: int, wires=()):
        super().__init__(buffer, None, bound=bound)
        self.source, self.wires = source, wires
        self.ready, self.received, self.heads = False, 0, []

    @property
    def peers(self) -> tuple[int, ...]:
        return (self.source,)

    def part_received(self, nbytes: int) -> None:
        """One of the parts is there."""
        self.received += nbytes
        self.parts_left -= 1
        if not self.parts_left:
            self.nbytes, self.ready = self.received, True

    def header_of(self, number: int) -> frame.Header:
        return self.heads[number][1]

    def message(self, number: int):
        at, header = self.heads[number]
        return self.buffer[at : at + frame.SIZE + (header.word if header.kind == frame.DATA else 0)]


class Collective:
    """A collective operation of MPI's with these peers on this memory, which it keeps; `ready` when it is over."""

    receives, counts = True, False
    parts_left = 0  # once it is complete
    __slots__ = ("channel", "memory", "peers", "ready")

    def __init__(self, peers: tuple[int, ...], memory):
        self.peers, self.memory, self.ready = peers, memory, False

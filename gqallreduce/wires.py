"""The frames of one call: made here or received, in lent buffers until all that will use them have done so."""

from __future__ import annotations

from gqallreduce.message import Frame, Parcel


class Wires:
    """Frames by (lane, chunk, author). A use is a send, or a decoding of the own bytes."""

    def __init__(self, workspace):
        self.workspace = workspace
        self._frames: dict[tuple[int, int, int], Frame] = {}

    def __getitem__(self, name: tuple[int, int, int]) -> Frame:
        return self._frames[name]

    def __setitem__(self, name: tuple[int, int, int], made: Frame) -> None:
        self._frames[name] = made

    def used(self, each: Frame) -> None:
        each.uses -= 1
        if not each.uses:
            self.workspace.give(each.buffer)

    def pack(self, to: int, lane: int, wires, bound: int) -> Parcel:
        """A message of these wires, end to end."""
        frames = [self._frames[(lane, *wire)] for wire in wires]
        if len(frames) == 1:
            return Parcel(to, lane, frames[0], bound)
        joined = Frame(self.workspace.take(bound), 0, 1)
        for each in frames:
            joined.buffer[joined.nbytes : joined.nbytes + each.nbytes] = each.buffer[: each.nbytes]
            joined.nbytes += each.nbytes
            self.used(each)
        return Parcel(to, lane, joined, bound)

    def forward(self, name, room, at: int, nbytes: int, sends: int, alone: bool) -> None:
        """Keep a received frame that is passed on unchanged: the room itself if nothing else is in it."""
        if alone:
            self._frames[name] = Frame(room, nbytes, sends)
            return
        copy = Frame(self.workspace.take(nbytes), nbytes, sends)
        copy.buffer[:nbytes] = room[at : at + nbytes]
        self._frames[name] = copy

"""The frames of one call: made here or received, in lent buffers until all that will use them have done so."""

from __future__ import annotations

from gqallreduce.coding.message import Frame, Parcel


class Wires:
    """Frames by (lane, chunk, author). A use is a send, or a decoding of the own bytes."""

    def __init__(self, processor):
        self.processor = processor
        self._frames: dict[tuple[int, int, int], Frame] = {}

    def __getitem__(self, name: tuple[int, int, int]) -> Frame:
        return self._frames[name]

    def __setitem__(self, name: tuple[int, int, int], made: Frame) -> None:
        self._frames[name] = made

    def used(self, each: Frame) -> None:
        each.uses -= 1
        if not each.uses:
            self.processor.give_frame(each)

    def pack(self, to: int, lane: int, wires, bound: int) -> Parcel:
        """A message of these wires, end to end."""
        frames = [self._frames[(lane, *wire)] for wire in wires]
        if len(frames) == 1:
            return Parcel(to, lane, frames[0], bound)
        buffer, nbytes, receipt = self.processor.join([each.buffer[: each.nbytes] for each in frames], bound)
        for each in frames:
            self.used(each)
        return Parcel(to, lane, Frame(buffer, None, 1, nbytes, receipt), bound)

    def forward(self, name, room, at: int, nbytes: int, sends: int, alone: bool) -> None:
        """Keep a received frame that is passed on unchanged: the room itself if nothing else is in it."""
        if alone:
            self._frames[name] = Frame(room, None, sends, nbytes)
            return
        buffer, nbytes, receipt = self.processor.join([room[at : at + nbytes]], nbytes)
        self._frames[name] = Frame(buffer, None, sends, nbytes, receipt)

"""A GPU as the processor of a call (processor.py): its memory, its kernels, and the way of messages to MPI and back.

All is put on the caller's stream, in order, and returns at once. One kernel ends every message that is made: it puts
the header before the payload, and leaves in page-locked memory what the kernels before it found and how long the
message is; so one wait for its event tells all. Messages lie in device memory where MPI takes that; else that kernel
writes them to page-locked memory, compressed as they are, and received ones are uploaded before they are decoded.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque

import numpy as np

from gqallreduce.backends.cuda import frames
from gqallreduce.backends.cuda.arithmetic import Arithmetic
from gqallreduce.backends.cuda.launching import MALFORMED, NOT_FINITE
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Span
from gqallreduce.coding.message import Frame, Receipt
from gqallreduce.errors import Error, WireError


class Device:
    """One GPU.

    runtime
        how it is reached (runtime.py).
    aware
        may MPI be given its memory?
    """

    batches, pool = False, None

    def __init__(self, runtime, aware: bool):
        self.runtime, self.aware = runtime, aware
        self.launched = None  # the last kernel, for errors
        self.workspace = Workspace(runtime.empty)
        self._messages = Returned(Workspace(runtime.empty if aware else runtime.pinned), runtime)
        self._outcomes = Workspace(runtime.pinned)
        self._lent: dict[int, tuple] = {}  # by id of what was lent: (its pool, the whole array)
        self.arithmetic = None
        with self.active(None, None):
            self.arithmetic = Arithmetic(self)

    @contextlib.contextmanager
    def active(self, located, key):
        """The device and the caller's stream are CUDA's current ones inside; Error for what CUDA or CuPy raise.

        Without a caller's array it is whatever stream CuPy works on. What comes next may be on another, so all that was
        asked for is done in the end. (A call has waited for its result.)
        """
        try:
            with self.runtime.active(None if located is None else located.stream):
                try:
                    yield
                    if located is None:
                        self.finish()
                except BaseException:
                    self._abandon()
                    raise
        except self.runtime.errors as problem:
            last = "" if self.launched is None else f" (last kernel: {self.launched})"
            call = "" if key is None else f", key {key!r}"
            raise Error(f"{type(problem).__name__}{call}{last}: {problem}") from problem

    def _abandon(self) -> None:
        """Let what is under way end, so that nothing of a call that failed reaches the next, on whatever stream."""
        with contextlib.suppress(*self.runtime.errors):
            if self.arithmetic is not None:
                self.arithmetic.forget()
            self.finish()
        self._lent.clear()

    def launch(self, family: str, kernel: str, blocks: int, threads: int, *arguments) -> None:
        self.launched = kernel
        self.runtime.launch(family, kernel, blocks, threads, *arguments)

    # --- values ---

    def extents(self, regions: list) -> list:
        return [Span(regions)] if regions else []

    def zeros(self, size: int):
        return self.runtime.zeros(size, np.float32)

    def adopt(self, array: np.ndarray):
        """A copy in device memory of a contiguous array; waits for it."""
        room, pinned = self.runtime.empty(array.nbytes), self.runtime.pinned(array.nbytes)
        pinned[:] = array.reshape(-1).view(np.uint8)
        self.runtime.upload(room, pinned)
        self.finish()
        return room.view(array.dtype).reshape(array.shape)

    def on_host(self, array) -> np.ndarray:
        with self.active(None, None):
            return self.runtime.fetch(array)

    def finish(self) -> None:
        """Wait until all that was asked for is done."""
        event = self.runtime.event()
        while not event.ready():
            os.sched_yield()

    def settle(self) -> Outcome:
        return self._report(None, None, None, 0)

    def _report(self, made: Frame | None, header, wire, nbytes) -> Outcome:
        outcome = self._outcomes.take(frames.OUTCOME)
        target = None if made is None else made.buffer
        frames.frame_ship(self.launch, header, wire, nbytes, target, self.arithmetic.status, outcome)
        return Outcome(self.runtime.event(), outcome, self._outcomes, made, header)

    # --- what is sent ---

    def make_frame(self, bound: int) -> Frame:
        buffer = self._messages.take(frame.SIZE + bound)
        payload = buffer[frame.SIZE : frame.SIZE + bound] if self.aware else self.lend(bound)
        return Frame(buffer, payload, bound=frame.SIZE + bound)

    def ship(self, made: Frame, header: frame.Header, nbytes) -> Outcome:
        """`nbytes`: a number, or a Length that the device knows."""
        return self._report(made, header._replace(word=0), made.payload, nbytes)

    def mark(self, made: Frame, header: frame.Header) -> None:
        made.seal(header)
        if not self.aware:
            header.write(made.buffer)
            return
        packed = np.zeros(frame.SIZE, np.uint8)
        header.write(packed)
        self.runtime.copy(made.buffer[: frame.SIZE], self.adopt(packed))
        self.finish()

    def join(self, parts: list, bound: int) -> tuple:
        buffer, at = self._messages.take(bound), 0
        copy = self.runtime.copy if self.aware else np.copyto
        for part in parts:
            copy(buffer[at : at + len(part)], part)
            at += len(part)
        return buffer, at, self.settle() if self.aware else None

    def give_frame(self, made: Frame) -> None:
        self._messages.give(made.buffer)
        if made.payload is not None:
            self.give_wire(made.payload)

    # --- what is received ---

    def make_room(self, bound: int):
        return self._messages.take(bound)

    def head(self, room, at: int, stop: int) -> tuple:
        first = room[at : min(at + frame.SIZE, stop)]
        if not self.aware:
            return first, None
        head = self.lend(len(first), self._outcomes)
        self.runtime.download(head, first)
        return head, Arriving(self.runtime.event())

    def wire(self, room, at: int, stop: int):
        if self.aware:
            return room[at:stop]
        lent = self.lend(stop - at)
        self.runtime.upload(lent, room[at:stop])
        return lent

    def give_wire(self, wire) -> None:
        pool, whole = self._lent.pop(id(wire), (None, None))
        if pool is not None:
            pool.give(whole)

    def lend(self, nbytes: int, pool: Workspace | None = None):
        """Exactly so many bytes of a pool, by default the workspace, until they are given to `give_wire`."""
        pool = pool or self.workspace
        whole = pool.take(nbytes)
        lent = whole[:nbytes]
        self._lent[id(lent)] = pool, whole
        return lent


class Arriving(Receipt):
    """A copy to the host."""

    __slots__ = ("_event",)

    def __init__(self, event):
        self._event = event

    @property
    def ready(self) -> bool:
        return self._event.ready()


class Outcome(Arriving):
    """What `frame_ship` leaves on the host: what was found since the last one, and a message's length."""

    __slots__ = ("_header", "_made", "_outcome", "_pool")

    def __init__(self, event, outcome, pool, made: Frame | None, header: frame.Header | None):
        super().__init__(event)
        self._outcome, self._pool, self._made, self._header = outcome, pool, made, header

    @property
    def flawed(self) -> bool:
        """Once ready, to be asked once: was a value not finite? If not, a frame is sealed. WireError for bad bytes."""
        status, nbytes = self._outcome[: frames.OUTCOME].view(np.uint64).tolist()
        self._pool.give(self._outcome)
        if status & MALFORMED:
            raise WireError("a message does not hold what its codec writes")
        if self._made is not None:
            self._made.seal(self._header._replace(word=nbytes))
        return bool(status & NOT_FINITE)


class Returned:
    """A workspace of message buffers, which MPI may write to only when what the stream does with them is done."""

    def __init__(self, workspace: Workspace, runtime):
        self._workspace, self._runtime = workspace, runtime
        self._leaving: deque = deque()

    def take(self, nbytes: int):
        while self._leaving and self._leaving[0][0].ready():
            self._workspace.give(self._leaving.popleft()[1])
        return self._workspace.take(nbytes)

    def give(self, array) -> None:
        self._leaving.append((self._runtime.event(), array))

"""Where a call's values live and who computes on them: the host here, a GPU in cuda/device.py.

An Operation is the same for both. What differs lies in a processor:

arithmetic
    the operations on arrays in its memory (arithmetic.py).
workspace
    buffers of its memory.
pool
    the same for the runtime in C++; None if Python carries out all instructions.
hindrance
    why that is so, on the host; else "".
extents(regions)
    consecutive regions of a tensor as Spans: of one each, or one of all.
batches
    are the regions of several small tensors worked on as one Span?
make_frame, ship, mark; make_room, head, wire; join, give_frame
    frames and rooms for messages: memory that MPI reads and writes, and what of it the arithmetic reads and writes.
settle
    of a device, whose launches return at once: a Receipt, to be waited for, that tells how all that came before went.

On a device, what an operation found is not known when it returns. So the caller launches `ship` or `settle`
behind the operation before its lane yields, and yields the Receipt until it is ready. The host has nothing to wait for:
its `ship`, `settle`, `join` and `head` give None for a Receipt.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.cuda.awareness import mpi_is_cuda_aware
from gqallreduce.backends.cuda.device import Device
from gqallreduce.backends.cuda.runtime import runtime
from gqallreduce.backends.workspace import Workspace
from gqallreduce.coding import arithmetic, frame
from gqallreduce.coding.layout import Span
from gqallreduce.coding.message import Frame

_NOTHING = contextlib.nullcontext()


def _native_is_wanted() -> bool:
    """GQALLREDUCE_RUNTIME=python: Python carries out all instructions; native, the default: C++ those that it can."""
    runtime = os.environ.get("GQALLREDUCE_RUNTIME", "native")
    if runtime not in ("native", "python"):
        raise ValueError(f"GQALLREDUCE_RUNTIME={runtime!r}, expected native or python")
    return runtime == "native"


class Processors:
    """Those that one Allreduce works with: the host, and each CUDA device from which a buffer came.

    cuda_aware
        may MPI be given the devices' memory? None: ask the MPI.
    native
        can the runtime in C++ send and receive?
    """

    def __init__(self, cuda_aware: bool | None, native: bool = True):
        self.host, self._cuda_aware = Host(native), cuda_aware
        self._devices: dict[int, object] = {}

    def of(self, buffer):
        """The processor in whose memory a Buffer lies."""
        if buffer.located is None:
            return self.host
        number = buffer.located.device
        if number not in self._devices:
            if self._cuda_aware is None:
                self._cuda_aware = mpi_is_cuda_aware()
            self._devices[number] = Device(runtime(number), self._cuda_aware)
        return self._devices[number]


class Host:
    """Arrays are NumPy's, and messages lie where the arithmetic reads and writes them."""

    arithmetic, batches = arithmetic, True

    def __init__(self, native: bool = True):
        self.workspace, self.pool, self.hindrance = Workspace(), None, ""
        if not _native_is_wanted():
            self.hindrance = "carried out by Python: GQALLREDUCE_RUNTIME=python"
        elif not native:
            self.hindrance = "carried out by Python: functions of this MPI cannot be looked up"
        else:
            self.pool = _kernels.Pool()

    def active(self, located, key) -> contextlib.AbstractContextManager:
        """What a call's work is done in."""
        return _NOTHING

    # --- values ---

    def extents(self, regions: list) -> list:
        return [Span([region]) for region in regions]

    def zeros(self, size: int) -> np.ndarray:
        return np.zeros(size, np.float32)

    def adopt(self, array: np.ndarray) -> np.ndarray:
        """An array of host memory in this processor's."""
        return array

    def on_host(self, array: np.ndarray) -> np.ndarray:
        """The array, or a copy of it in host memory: where something went wrong, or where MPI itself adds."""
        return array

    def settle(self) -> None:
        return None

    def finish(self) -> None:
        """Wait until all that was asked for is done, as it is here."""

    # --- what is sent ---

    def make_frame(self, bound: int) -> Frame:
        buffer = self.workspace.take(frame.SIZE + bound)
        return Frame(buffer, buffer[frame.SIZE : frame.SIZE + bound], bound=frame.SIZE + bound)

    def ship(self, made: Frame, header: frame.Header, nbytes: int) -> None:
        """The frame's payload, of so many bytes, is made: put the header, which says so, before it."""
        self.mark(made, header)

    def mark(self, made: Frame, header: frame.Header) -> None:
        """The header, which says how long the payload is."""
        made.seal(header)
        header.write(made.buffer)

    def join(self, parts: list, bound: int) -> tuple:
        """(buffer, bytes in it, Receipt) of pieces of messages end to end."""
        buffer, at = self.workspace.take(bound), 0
        for part in parts:
            buffer[at : at + len(part)] = part
            at += len(part)
        return buffer, at, None

    def give_frame(self, made: Frame) -> None:
        self.workspace.give(made.buffer)

    # --- what is received ---

    def make_room(self, bound: int):
        return self.workspace.take(bound)

    def head(self, room, at: int, stop: int) -> tuple:
        """(at most the first 32 bytes of room[at:stop], which the host reads when the Receipt is there, Receipt)."""
        return room[at : min(at + frame.SIZE, stop)], None

    def wire(self, room, at: int, stop: int):
        """room[at:stop] where the arithmetic reads it."""
        return room[at:stop]

    def give_wire(self, wire) -> None:
        """Nothing reads this wire, or head, after what was asked for until now."""

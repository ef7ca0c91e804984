"""The dense baselines on GPUs: the MPI's own sums of copies in host memory, and our exact ring.

The MPI is never asked to sum GPU memory itself, even where it is CUDA-aware: in Open MPI that ends some processes with
a segmentation fault. The exact ring stands for it: its messages go from GPU to GPU if the MPI takes them there, and
through page-locked memory piece by piece if not.
"""

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.workspace import Workspace
from gqallreduce.cli import dense
from gqallreduce.cli.measure import Quantized

EXACT = "ring/raw"


def baselines(comm, place):
    """(dense sums of buffers in a place on GPUs, what there is to say of them). Collective."""
    found, how = dense.baselines(comm)
    pinned = Workspace(place.runtime.pinned)
    copied = [Copied(each, place.processor, pinned) for each in found]
    way = "from GPU to GPU" if place.cuda_aware else "through host memory, since MPI is given no GPU memory"
    return [*copied, ExactRing(comm, place)], f"MPI sums copies in host memory; {EXACT} sends {way}; {how}"


class Copied:
    """A dense sum of a copy in page-locked memory of the host; the ways there and back are part of it."""

    dense, feedback = True, False

    def __init__(self, summed, processor, pinned):
        self.name, self.active = f"{summed.name} of host copies", summed.active
        self._summed, self._processor, self._pinned = summed, processor, pinned

    def __call__(self, buffer):
        vector, gpu = Buffer(buffer).flat, self._processor.runtime
        room = self._pinned.take(vector.nbytes)
        copy = room[: vector.nbytes].view(vector.dtype)
        with self._processor.active(None, None):
            gpu.download(copy, vector)
            self._processor.finish()
            self._summed(copy)
            gpu.upload(vector, copy)
            self._processor.finish()
        self._pinned.give(room)


class ExactRing(Quantized):
    """Our exact sum, as a dense one."""

    dense = True

    def __init__(self, comm, place):
        super().__init__(EXACT, comm, None, place)
        self.name = f"{EXACT} on GPUs"

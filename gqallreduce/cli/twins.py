"""What results on GPUs must be, bit for bit: those of the same schemes on host buffers, called as often."""

import numpy as np

from gqallreduce.cli.measure import Quantized
from gqallreduce.cli.places import Buffers, OnHost
from gqallreduce.scheme import AUTO


class Twins:
    """A twin on the host for each of the contenders whose codec gives the same bits everywhere.

    Not of `auto/`, which may choose otherwise each time.
    """

    def __init__(self, contenders, comm, pristine):
        place = OnHost()
        self._comm, self._buffers = comm, Buffers(pristine, place)
        exact = [each for each in contenders if each.scheme.codec.bit_exact and each.scheme.schedule != AUTO]
        self._twins = {each.name: Quantized(each.name, comm, each.key, place) for each in exact}

    def problem(self, contender, result):
        """What the contender's last call left otherwise than its twin's next; "" if nothing. Collective."""
        twin = self._twins.get(contender.name)
        if twin is None:
            return ""
        self._buffers.fill()
        twin(self._buffers.given)
        found = self._comm.allgather(self._difference(contender, twin, result))
        return next((f"rank {rank}: {each}" for rank, each in enumerate(found) if each), "")

    def close(self):
        """Lets go of their memory."""
        for twin in self._twins.values():
            twin.close()

    def _difference(self, contender, twin, result):
        if not _same_bits(result, self._buffers.result()):
            return "the result is not the host's"
        same = not contender.feedback or _same_bits(contender.residual(), twin.residual())
        return "" if same else "the residual is not the host's"


def _same_bits(a, b):
    return np.array_equal(a.reshape(-1).view(np.uint32), b.reshape(-1).view(np.uint32))

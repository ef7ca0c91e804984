"""Whether ranks of a host read each other's memory: tried when a communicator of ours is made, and agreed.

Linux lets a process read the memory of another one of the same user, where its rules on tracing allow it, and both see
the same numbers of processes. All ranks of a communicator expose what they send within hosts, or none does.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import numpy as np

from gqallreduce import _kernels
from gqallreduce.transport.exchange import NAMES, Gather, Largest

FROM, MOST = 1 << 15, 1 << 62  # bytes: fewer are sent faster than they are exposed and answered
WORDS = 3  # of an introduction


def exposed_from() -> int:
    """From how many bytes on values are exposed; 0 for never. GQALLREDUCE_EXPOSE says it.

    Never where CuPy is found: page-locked memory of a device cannot be read by others.
    """
    text = os.environ.get("GQALLREDUCE_EXPOSE", "")
    if text and not (text.isascii() and text.isdecimal() and int(text) <= MOST):
        raise ValueError(f"GQALLREDUCE_EXPOSE={text!r}, expected a number of bytes, 2^62 at most, or 0 for never")
    has_cupy = "cupy" in sys.modules or importlib.util.find_spec("cupy") is not None
    return 0 if has_cupy else int(text or FROM)


class Introduction:
    """Of the ranks of one communicator to each other.

    words
        what the others are told of this rank: its process, and where a number is that they try to read.
    """

    def __init__(self, native: _kernels.MpiTransport | None, rank: int, size: int):
        self._least = 0 if native is None else exposed_from()
        self._native, self._rank, self._size = native, rank, size
        self._token = _kernels.Token()
        self.words = [self._token.process, self._token.address, self._token.value]

    def stages(self, everyone: Gather, hosts):
        """The exchange in which all have told what they are, then one in which they agree on whether all can read.

        everyone
            `found` has in the last columns the words of each rank.
        hosts
            () -> of each rank, known then, a number that those of a host share.
        """
        yield everyone
        near = hosts()
        introduced = everyone.found[:, -WORDS:].tolist()
        readable = {rank: words for rank, words in enumerate(introduced) if near[rank] == near[self._rank]}
        del readable[self._rank]
        cannot = not self._least or not all(_kernels.Token.found(*words) for words in readable.values())
        agreed = Largest(self._rank, self._size, NAMES, np.array([cannot], np.uint64))
        yield agreed
        if self._native is not None and not agreed.found[0]:
            processes = [readable[rank][0] if rank in readable else 0 for rank in range(self._size)]
            self._native.set_processes(processes, self._least)

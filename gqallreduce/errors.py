"""What can go wrong, by name.  Everything is a gq.Error; scheme text that cannot be parsed is a plain ValueError."""

from __future__ import annotations

import builtins
import copyreg


class Error(Exception):
    """Base of every error of this package. All of them can be pickled and copied: text and attributes stay."""

    def __reduce__(self):
        # Without __init__, whose arguments an exception does not keep.
        return copyreg.__newobj__, (type(self),), {**vars(self), "args": self.args}


class NonFiniteError(Error, ValueError):
    """A NaN or Inf entered the sum, or the sum left its format.  Raised alike on every rank.

    rank
        the lowest rank whose own contribution was not finite; None if finite contributions overflowed, by themselves
        (float16 and the like) or in a sum.
    key
        the key of the call, or None.
    index
        first C-order index concerned (of that rank, or of the sum).
    """

    def __init__(self, rank: int | None, key: str | None, index: int):
        self.rank, self.key, self.index = rank, key, index
        who = "a sum or value leaves the range of its format" if rank is None else f"rank {rank} contributed NaN or Inf"
        super().__init__(f"{who}: key {key!r}, C-order index {index}; residuals and counters are as before the call")


class MismatchError(Error, ValueError):
    """Ranks called with different things.

    field
        the first that differs of key, scheme, shape, dtype, order, average, seed, version; `arguments` if a rank's
        own call was invalid; `frame` if a rank is at another step of the key, or sent a message of another call.
    ranks
        sorted ranks that differ from the most common value (in a tie: from rank 0's); if found in the middle of a call,
        one rank whose message was not of this call.
    """

    def __init__(self, field: str, ranks, detail: str = ""):
        self.field, self.ranks = field, tuple(sorted(ranks))
        text = f"the calls of ranks do not match in {field!r}, seen at ranks {list(self.ranks)}"
        super().__init__(f"{text}: {detail}" if detail else text)


class WireError(Error, ValueError):
    """Bytes that are not a message of this scheme and size."""


class TimeoutError(Error, builtins.TimeoutError):
    """Nothing arrived for `timeout` seconds, or the MPI says that a process has ended (Open MPI 5 with
    `mpirun --with-ft ulfm`): here, or at a rank that told the others.

    ranks
        sorted peers whose message was due here, or whose processes have ended. Those whose message was due may wait for
        others themselves: a rank that does not call is named by at least one of those that wait for it.
    ended
        have their processes ended?
    """

    def __init__(self, seconds: float | None, ranks, told_by: int | None = None):
        """seconds: without a message; None if the processes of these ranks have ended."""
        self.ranks, self.ended = tuple(sorted(ranks)), seconds is None
        if self.ended:
            who = "MPI says" if told_by is None else f"rank {told_by} was told by MPI"
            text = (
                f"{who} that the processes of ranks {list(self.ranks)} have ended; comm.Shrink() gives one without them"
            )
        elif told_by is None:
            waiting = (
                f"nothing received for {seconds:g} s; waiting for ranks {list(self.ranks)}, some of which may wait too"
            )
            text = f"{waiting}: do all ranks make the same calls, as many of them?"
        else:
            text = f"rank {told_by} gave up this call after its timeout; due here: ranks {list(self.ranks)}"
        super().__init__(text)


class ReplicaError(Error):
    """The checksums of the result differ between ranks."""

"""Ranks come together before they use MPI itself: all make the same collective operation, or each gets an error."""

from __future__ import annotations

from gqallreduce.transport.agreement import agree


def meet(allreduce, what: str) -> None:
    """Returns when all ranks of an object have come to this operation; at once if the object refuses calls.

    MismatchError if a rank does something else instead; TimeoutError if one does not come.
    """
    if allreduce.unusable is None:
        allreduce.perform(what, _meeting, allreduce, what)


def _meeting(call, allreduce, what: str):
    """The stages."""
    if allreduce.size > 1:
        hashes = allreduce.plans.hashes(("meeting", what), allreduce.seed)
        yield from agree(call.link, hashes, allreduce.number, 0)

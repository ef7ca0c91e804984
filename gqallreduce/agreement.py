"""Do all ranks make the same call, and have they the same result?  Hashes compared in one small allgather."""

from __future__ import annotations

from collections import Counter

import numpy as np
from mpi4py import MPI

from gqallreduce.errors import MismatchError, ReplicaError
from gqallreduce.hashing import checksum
from gqallreduce.link import Link, wait

FIELDS = ("key", "scheme", "shape", "dtype", "order", "average", "seed", "version")


def agree(link: Link, hashes: dict[str, int] | None, word: int, timeout: float) -> int:
    """Compare; returns rank 0's `word` (its decision where one must decide for all).

    hashes
        field -> hash; None if this rank's own call is invalid: it takes part, and the others learn of it.
    Raises MismatchError on every rank whose own call is valid, TimeoutError if a rank does not come.
    """
    mine = np.zeros(len(FIELDS) + 2, np.uint64)
    if hashes is not None:
        mine[:] = [1, word, *(hashes[name] for name in FIELDS)]
    everyone = np.zeros((link.size, len(mine)), np.uint64)
    wait(link.comm.Iallgather([mine, MPI.UINT64_T], [everyone, MPI.UINT64_T]), timeout, link)
    invalid = np.flatnonzero(everyone[:, 0] == 0)
    if len(invalid):
        if hashes is not None:
            raise MismatchError("arguments", invalid.tolist(), "their own call was invalid")
        return 0
    for column, name in enumerate(FIELDS, start=2):
        differing = _differing(everyone[:, column].tolist())
        if differing:
            raise MismatchError(name, differing)
    return int(everyone[0, 1])


def _differing(values: list[int]) -> list[int]:
    """Ranks whose value is not the most common one (in a tie: rank 0's, if it is among the most common)."""
    counts = Counter(values)
    most = max(counts.values())
    if len(counts) == 1:
        return []
    common = values[0] if counts[values[0]] == most else next(value for value in values if counts[value] == most)
    return [rank for rank, value in enumerate(values) if value != common]


def compare_replicas(link: Link, result: np.ndarray, timeout: float) -> None:
    """ReplicaError unless all ranks have the same bytes."""
    mine = np.array([checksum(np.ascontiguousarray(result).tobytes())], np.uint64)
    everyone = np.zeros(link.size, np.uint64)
    wait(link.comm.Iallgather([mine, MPI.UINT64_T], [everyone, MPI.UINT64_T]), timeout, link)
    if len(set(everyone.tolist())) > 1:
        raise ReplicaError(f"the results differ: checksums per rank {[hex(int(value)) for value in everyone]}")

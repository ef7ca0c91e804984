"""Checks that all ranks make the same call, and get the same result: hashes compared in small exchanges."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gqallreduce.errors import MismatchError, ReplicaError, WireError
from gqallreduce.hashing import checksum, hash64
from gqallreduce.transport.exchange import FIRST, FIRST_WORDS, NAMES, VERIFY, Gather, Largest

if TYPE_CHECKING:
    from gqallreduce.transport.link import Link

FIELDS = ("key", "scheme", "shape", "dtype", "order", "average", "seed", "version")
COMPARED = (*FIELDS, "frame")
_ALL = 2**64 - 1
_INVALID = "their own arguments were invalid, or they left a step by an error"
_DETAILS = {"frame": "another object, or another step of the key: load states of one step on all ranks"}
assert 2 + 2 * len(COMPARED) == FIRST_WORDS


def words_of_step(step) -> np.ndarray:
    """The last two words of the first exchange: a hash, and its complement."""
    found = hash64(step)
    return np.array((found, found ^ _ALL), np.uint64)


def begun(link: Link, hashes, step, word: int) -> Largest:
    """The first exchange of `agree`, to be begun."""
    mine = np.zeros(FIRST_WORDS, np.uint64)
    if hashes is None:
        mine[0] = 1
    else:
        compared = np.array(hashes, np.uint64)
        mine[1] = word if link.rank == 0 else 0
        mine[2:-2:2], mine[3:-2:2] = compared, compared ^ np.uint64(_ALL)
        mine[-2:] = words_of_step(step)
    return Largest(link.rank, link.size, FIRST, mine)


def agree(link: Link, hashes, step, word: int, words: int = 1, first: Largest | None = None):
    """Compare this call with the others'; returns rank 0's `word` (its decision where one must decide for all).

    A generator of stages.
    hashes
        of FIELDS; None if this rank's own call is invalid: it takes part, and the others learn of it.
    words
        how many words there are, from 0 on; WireError for another one.
    step
        which object calls, and at which step of the key; any value with a repr.
    first
        the first exchange, if it is begun, or `finished`, already.
    Raises MismatchError on every rank whose own call is valid. The usual case is
    one exchange: two maxima per field, of the hash and of its complement. Only if they tell that ranks differ, all
    hashes are gathered.
    """
    if first is None:
        first = begun(link, hashes, step, word)
    mine = first.given
    if not first.finished:
        yield first
    found = first.found
    if not found[0] and (found[2::2] == found[3::2] ^ np.uint64(_ALL)).all():
        if found[1] >= words:
            raise WireError(f"rank 0 decided {int(found[1])}, expected a number below {words}")
        return int(found[1])
    asked = Gather(link.rank, link.size, NAMES, mine)
    yield asked
    everyone = asked.found
    invalid = np.flatnonzero(everyone[:, 0])
    if len(invalid):
        if hashes is not None:
            raise MismatchError("arguments", invalid.tolist(), _INVALID)
        return 0
    for column, name in enumerate(COMPARED):
        differing = differing_ranks(everyone[:, 2 + 2 * column].tolist())
        if differing:
            raise MismatchError(name, differing, _DETAILS.get(name, ""))
    raise WireError("the two exchanges of one agreement contradict each other: a rank sends what it should not")


def differing_ranks(values: list[int]) -> list[int]:
    """Ranks whose value is not the most common one (in a tie: rank 0's, if it is among the most common)."""
    counts = Counter(values)
    most = max(counts.values())
    if len(counts) == 1:
        return []
    common = values[0] if counts[values[0]] == most else next(value for value in values if counts[value] == most)
    return [rank for rank, value in enumerate(values) if value != common]


def compare_replicas(link: Link, signature: int, results: bytes):
    """ReplicaError unless all ranks have the same bytes. A generator of stages."""
    mine = np.array([checksum(results)], np.uint64)
    asked = Gather(link.rank, link.size, VERIFY, mine, signature)
    yield asked
    everyone = asked.found[:, 0].tolist()
    if len(set(everyone)) > 1:
        raise ReplicaError(f"the results differ: checksums per rank {[hex(value) for value in everyone]}")

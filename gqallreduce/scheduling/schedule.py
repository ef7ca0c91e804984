"""The language of schedules: who encodes, sends and receives what, as pure data.

The vector is cut into `chunks` pieces. A rank's part of an allreduce is a tuple of rounds; a round is a tuple of
moves that may all be in flight together. A *wire* is the encoded form of one chunk by one author; several wires end to
end are one message. In a round, encodings and sends happen first, in their order, on the values from before the
round; then what arrived is applied. What a rank encoded takes its own value's place, as if it had come from the rank
itself. Additions to one chunk are made in ascending order of source, whatever the order of arrival, so that a sum is
the same in every run; a value that was not encoded in the round comes first.

Source of the form: MSCCL's chunk language and LibNBC's rounds; differs in the explicit author, holders and error
holders that an encoding with error needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.topology import Topology

if TYPE_CHECKING:
    from gqallreduce.scheduling.counts import Counts


class Wire(NamedTuple):
    """The bytes that `author` made of `chunk`.

    exact
        encoded without loss, as float32 values, and not by the codec; one whose sums lose nothing encodes these too.
    """

    chunk: int
    author: int
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Encode:
    """Turn the local value of a chunk into bytes, and keep what those bytes decode to.

    The `holders` have the same value and make the same bytes: their author is the lowest of them, and holder j adds
    the j-th of len(holders) equal slices of the error to its residual. A single holder adds all of it.

    exact
        without loss; then there is one holder.
    """

    chunk: int
    hop: int
    holders: Sequence[int]
    exact: bool = False

    @property
    def wire(self) -> Wire:
        """What it makes."""
        return Wire(self.chunk, self.holders[0], self.exact)


@dataclass(frozen=True, slots=True)
class Send:
    """Send wires, encoded here or received earlier and passed on unchanged."""

    to: int
    wires: tuple[Wire, ...]


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive wires. Their decoded sum is added to the chunk (`reduce`), or replaces it."""

    source: int
    wires: tuple[Wire, ...]
    reduce: bool


REDUCE_SCATTER, ALLGATHER = "reduce_scatter", "allgather"

Move = Encode | Send | Recv
Round = tuple[Move, ...]


@dataclass(frozen=True)
class Schedule:
    """One algorithm: its rounds for a rank, its number of chunks, and the holders of a chunk's last rounding error.

    error_holders
        (chunk, topology) -> the ranks that add a slice of the last rounding's error to their residual.
    contributions
        (hop, topology) -> of how many ranks an encoding of that hop sums the values, at most.
    held
        (topology) -> how many messages of one chunk a rank holds at a time, its own included; 0 if these never exceed
        twice the vector.
    by_hosts
        is it another schedule where ranks share hosts?
    scatter_rounds
        (topology) -> how many of its rounds are a reduce-scatter that leaves the sum of chunk r on rank r, of which
        each rank has one; None if it has none.
    half
        REDUCE_SCATTER or ALLGATHER for what halves.py makes of another schedule.
    options
        (name, value) of those that it may have; of the registered one the defaults.
    counted
        (rank, topology) -> what its rounds have, counted without writing them: for plans of many ranks. None: counted
        from the rounds.
    """

    name: str
    rounds: Callable[[int, Topology], tuple[Round, ...]]
    chunks: Callable[[Topology], int]
    error_holders: Callable[[int, Topology], Sequence[int]]
    contributions: Callable[[int, Topology], int]
    cost: str
    source: str
    held: Callable[[Topology], int] = lambda topology: 0
    by_hosts: bool = False
    scatter_rounds: Callable[[Topology], int | None] = lambda topology: None
    half: str | None = None
    options: tuple[tuple[str, object], ...] = ()
    counted: Callable[[int, Topology], Counts] | None = None

    @property
    def resolved(self) -> str:
        """Its name with every option."""
        written = ", ".join(f"{name}={value}" for name, value in self.options)
        return self.name.partition("(")[0] + (f"({written})" if written else "")

    @property
    def doc(self) -> str:
        return self.rounds.__doc__


def register(name: str, **fields):
    """Decorate `rounds(rank, topology)` with the other fields of the Schedule."""

    def add(rounds):
        SCHEDULES.add(name, Schedule(name, rounds, **fields))
        return rounds

    return add


def alone(rank: int) -> range:
    """The holders of a value that only `rank` has."""
    return range(rank, rank + 1)


def power_of_two(size: int) -> int:
    """The largest power of two <= size: the ranks that take part when the others have folded their values in."""
    return 1 << (size.bit_length() - 1)

"""Faults planted in schedules: the simulation must find every one, or its silence proves nothing."""

import dataclasses

import pytest

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.schedule import Encode, Recv, Schedule, Send, Wire, alone
from gqallreduce.scheduling.simulate import check
from gqallreduce.scheduling.topology import apart


def planted(name: str, change) -> Schedule:
    """A schedule whose rounds went through change(rank, size, rounds)."""
    good = SCHEDULES[name]
    return dataclasses.replace(
        good, name=f"bad {name}", rounds=lambda rank, topology: change(rank, topology.size, good.rounds(rank, topology))
    )


def each_move(change):
    """change(rank, size, rounds) from change(rank, size, move)."""
    return lambda rank, size, rounds: tuple(tuple(change(rank, size, move) for move in moves) for moves in rounds)


@each_move
def one_too_far(rank, size, move):
    """A ring whose last rank sends one rank too far."""
    return dataclasses.replace(move, to=(move.to + 1) % size) if isinstance(move, Send) and rank == size - 1 else move


@each_move
def rank_local_author(rank, size, move):
    """Recursive doubling in which every rank encodes for itself: its bits differ from its neighbour's."""
    if isinstance(move, Encode):
        return dataclasses.replace(move, holders=alone(rank))
    wires = tuple(Wire(0, rank if isinstance(move, Send) else move.source) for _ in move.wires)
    return dataclasses.replace(move, wires=wires)


@each_move
def first_slice_for_all(rank, size, move):
    """Holders that each keep the first slice of the error: it is kept many times, the others never."""
    if isinstance(move, Encode) and len(move.holders) > 1:
        return dataclasses.replace(move, holders=range(rank, rank + len(move.holders)))
    return move


def encoded_again(rank, size, rounds):
    """A ring whose allgather encodes what it forwards."""
    changed = list(rounds)
    for number in range(size, len(rounds)):
        send, receive = rounds[number]
        chunk, author = send.wires[0].chunk, (rank + 0) % size
        changed[number] = (
            Encode(chunk, number, alone(author)),
            Send(send.to, (Wire(chunk, rank),)),
            Recv(receive.source, (Wire(receive.wires[0].chunk, receive.source),), reduce=False),
        )
    return tuple(changed)


def never_sent(rank, size, rounds):
    """Rank 0 forgets its last message: its neighbour waits."""
    return rounds if rank else (*rounds[:-1], tuple(move for move in rounds[-1] if not isinstance(move, Send)))


def never_received(rank, size, rounds):
    return rounds if rank else (*rounds[:-1], tuple(move for move in rounds[-1] if not isinstance(move, Recv)))


def receive_before_send(rank, size, rounds):
    """Every rank waits for its neighbour before it sends."""
    receives, others = [], []
    for move in rounds[0]:
        (receives if isinstance(move, Recv) else others).append(move)
    return (tuple(receives), tuple(others), *rounds[1:])


@each_move
def replaced_instead_of_added(rank, size, move):
    return dataclasses.replace(move, reduce=False) if isinstance(move, Recv) and rank == 1 else move


def added_twice(rank, size, rounds):
    return (rounds[0], *rounds)


def own_value_first(rank, size, rounds):
    """An allgather in which every rank begins with its own vector."""
    ((encode, *rest),) = rounds
    return (encode,), tuple(rest)


@each_move
def halved_alike(rank, size, move):
    """Halving in which both of a pair keep the same half."""
    if rank == 1 and isinstance(move, Recv) and move.reduce:
        return dataclasses.replace(move, wires=tuple(Wire(wire.chunk ^ 1, wire.author) for wire in move.wires))
    return move


@each_move
def finished_chunks_encoded_again(rank, size, move):
    """Doubling in which rank 1 names itself as the author of all that it passes on."""
    if rank == 1 and isinstance(move, Send):
        return dataclasses.replace(move, wires=tuple(Wire(wire.chunk, 1) for wire in move.wires))
    return move


FAULTS = {
    "one too far": ("ring", one_too_far),
    "rank-local authors": ("recursive_doubling", rank_local_author),
    "first slice for all": ("recursive_doubling", first_slice_for_all),
    "encoded again": ("ring", encoded_again),
    "never sent": ("ring", never_sent),
    "never received": ("ring", never_received),
    "receive before send": ("ring", receive_before_send),
    "replaced": ("ring", replaced_instead_of_added),
    "replaced in direct": ("direct", replaced_instead_of_added),
    "added twice": ("direct", added_twice),
    "own value first": ("allgather", own_value_first),
    "replaced in allgather": ("allgather", replaced_instead_of_added),
    "halved alike": ("halving_doubling", halved_alike),
    "finished chunks encoded again": ("halving_doubling", finished_chunks_encoded_again),
    "replaced in halving": ("halving_doubling", replaced_instead_of_added),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("size", [4, 5, 8])
def test_a_planted_fault_is_found(fault, size):
    with pytest.raises((AssertionError, KeyError, ValueError)):
        check(planted(*FAULTS[fault]), apart(size))


@pytest.mark.parametrize(("fault", "message"), [
    ("receive before send", "all wait for each other"),
    ("never sent", "all wait for each other"),
    ("never received", "messages that are never received"),
    ("rank-local authors", "different sums"),
    ("encoded again", "different sums"),
    ("own value first", "different sums"),
])  # fmt: skip
def test_a_fault_is_called_by_its_name(fault, message):
    with pytest.raises(AssertionError, match=message):
        check(planted(*FAULTS[fault]), apart(4))


def pair(first: range, second: range) -> Schedule:
    """Two ranks that exchange their values, then encode the sum they share as these holders."""

    def rounds(rank, topology):
        mate = 1 - rank
        meet = Encode(0, 0, alone(rank)), Send(mate, (Wire(0, rank),)), Recv(mate, (Wire(0, mate),), reduce=True)
        return meet, (Encode(0, 1, (first, second)[rank]),)

    return Schedule("pair", rounds, lambda size: 1, lambda chunk, size: range(2), lambda hop, size: 1, "", "")


def test_an_error_is_kept_once():
    check(pair(range(2), range(2)), apart(2))
    with pytest.raises(AssertionError, match="disagree on their number"):
        check(pair(range(2), range(3)), apart(2))
    with pytest.raises(AssertionError, match="kept twice, or never"):
        check(pair(range(3), range(3)), apart(2))


def test_a_residual_is_written_once():
    twice = Schedule(
        "twice",
        lambda rank, size: ((Encode(0, 0, alone(0)),), (Encode(0, 1, alone(0)),)),
        lambda size: 1,
        lambda chunk, size: alone(0),
        lambda hop, size: 1,
        "",
        "",
    )
    with pytest.raises(AssertionError, match="written twice"):
        check(twice, apart(1))

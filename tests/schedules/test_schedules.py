"""Every schedule, on symbols, for P = 1 to 33; and faults that the simulation must find."""

import ast
import dataclasses
import math
import re
from collections import Counter

import pytest

from gqallreduce.registry import SCHEDULES
from gqallreduce.schedule import Encode, Recv, Schedule, Send, Wire, alone
from gqallreduce.simulate import check, simulate, table

ALL_RANKS = range(1, 34)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
every_size = pytest.mark.parametrize("size", ALL_RANKS)


def log2(size: int) -> int:
    return size.bit_length() - 1


def folded(size: int) -> bool:
    return size != 1 << log2(size)


# schedule -> P -> (most messages of a rank, most vector lengths sent by a rank, most encodings of a contribution, rounds)
CLOSED_FORMS = {
    "direct": lambda p: (2 * (p - 1), 2 * (p - 1) / p, min(p, 2), 2),
    "ring": lambda p: (2 * (p - 1), 2 * (p - 1) / p, p, max(1, 2 * (p - 1))),
    "recursive_doubling": lambda p: (
        log2(p) + folded(p),
        log2(p) + 2 * folded(p),  # the unfolding forwards two byte strings
        log2(p) + folded(p) + (p == 1),
        log2(p) + 2 * folded(p) + (p == 1),
    ),
}


def test_every_schedule_has_its_closed_forms():
    assert set(CLOSED_FORMS) == set(SCHEDULES)


@every_schedule
@every_size
def test_every_contribution_is_summed_once_and_every_error_owed_once(schedule, size):
    check(schedule, size)


@every_schedule
@every_size
def test_costs_are_those_of_the_closed_forms(schedule, size):
    outcome = simulate(schedule, size)
    messages, lengths, encodings, rounds = CLOSED_FORMS[schedule.name](size)
    assert max(outcome.messages) == messages
    assert max(outcome.chunks_sent) == pytest.approx(lengths * schedule.chunks(size))
    assert outcome.encodings() == encodings
    assert max(outcome.rounds) == rounds


@every_schedule
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_the_cost_line_holds_for_powers_of_two(schedule, size):
    """Its alpha and beta terms, read as arithmetic, are never below what is counted, and a fold's two at most above."""
    alpha, beta = re.fullmatch(r"(.+) alpha \+ (.+) beta \+ .+ gamma", schedule.cost).groups()
    lengths = CLOSED_FORMS[schedule.name](size)[1]
    rounds = max(simulate(schedule, size).messages)
    assert 0 <= arithmetic(alpha, size) - rounds <= 2
    assert -1e-9 <= arithmetic(beta, size) - lengths <= 2


def arithmetic(text: str, size: int) -> float:
    text = text.replace("log2 P", "L").replace("n(log2", "n*(log2")
    text = re.sub(r"(?<=[\dn)LP])\s*(?=[(nLP])", "*", text.replace(" ", ""))
    return eval(text, {"P": size, "n": 1, "L": math.log2(size)})


@every_schedule
@every_size
def test_every_send_has_its_receive_in_the_same_order(schedule, size):
    sent, received = {}, {}
    for rank in range(size):
        for moves in schedule.rounds(rank, size):
            for move in moves:
                if isinstance(move, Send):
                    assert move.to != rank
                    sent.setdefault((rank, move.to), []).append(move.wires)
                elif isinstance(move, Recv):
                    received.setdefault((move.source, rank), []).append(move.wires)
    assert sent == received


@every_schedule
@every_size
def test_names_in_moves_exist(schedule, size):
    chunks = schedule.chunks(size)
    for rank in range(size):
        for moves in schedule.rounds(rank, size):
            for move in moves:
                wires = [Wire(move.chunk, move.holders[0])] if isinstance(move, Encode) else move.wires
                assert wires
                assert all(0 <= wire.chunk < chunks and 0 <= wire.author < size for wire in wires)
                if isinstance(move, Encode):
                    assert rank in move.holders
                    assert move.hop < 1 << 16


@every_schedule
@every_size
def test_streams_of_different_values_are_different(schedule, size):
    """(author, hop, chunk) names one value: random bits are never used for two."""
    outcome = simulate(schedule, size)
    named = {}
    for coded, chunk in outcome.debts:
        _, value, author, hop = outcome.symbols._term[coded]
        assert named.setdefault((author, hop, chunk), value) == value


@every_schedule
@every_size
def test_every_rank_writes_its_new_residual_of_a_chunk_exactly_once(schedule, size):
    """The residual is written by the one encoding that a rank owes alone; else the one before last would come back."""
    for counts in simulate(schedule, size).single_encodings():
        assert counts == Counter(range(schedule.chunks(size)))


@every_schedule
@every_size
def test_debtors_share_the_error_of_the_last_encoding(schedule, size):
    """Those who owe the last rounding hold the finished sum, and are as many as owe its encoding."""
    outcome = simulate(schedule, size)
    for chunk in range(schedule.chunks(size)):
        debtors = schedule.debtors(chunk, size)
        assert len(set(debtors)) == len(debtors) > 0
        final = outcome.values[0][chunk]
        kind, *parts = outcome.symbols._term[final]
        last = [final] if kind == "coded" else parts
        owing = {share[0] for coded in last for share in outcome.debts[coded, chunk]}
        assert owing == set(debtors)


def tree(order: str):
    """The order of additions as sets of sets: addition commutes."""
    def of(node):
        return frozenset((of(node.left), of(node.right))) if isinstance(node, ast.BinOp) else node.value

    return of(ast.parse(order, mode="eval").body)


def test_the_order_of_additions_is_printed():
    """direct: the owner's own value, then the others' in ascending order of rank."""
    outcome = simulate(SCHEDULES["direct"], 3)
    orders = [tree(outcome.symbols.order(value)) for value in outcome.values[0]]
    assert orders == [tree("((0 + 1) + 2)"), tree("((1 + 0) + 2)"), tree("((2 + 0) + 1)")]


def test_the_table_has_a_row_for_every_schedule():
    rows = table(8).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == sorted(SCHEDULES)
    assert "| 14 | 14 | 1.75 | 8 |" in table(8)


# --- planted faults ---


def planted(name: str, change) -> Schedule:
    """A schedule whose rounds went through change(rank, size, rounds)."""
    good = SCHEDULES[name]
    return dataclasses.replace(
        good, name=f"bad {name}", rounds=lambda rank, size: change(rank, size, good.rounds(rank, size))
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
    """Recursive doubling in which everyone encodes for himself: nobody's bits are his neighbour's."""
    if isinstance(move, Encode):
        return dataclasses.replace(move, holders=alone(rank))
    wires = tuple(Wire(0, rank if isinstance(move, Send) else move.source) for _ in move.wires)
    return dataclasses.replace(move, wires=wires)


@each_move
def owed_by_all(rank, size, move):
    """Holders who each take the first slice: one is owed many times, the others never."""
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
    """Everyone waits for his neighbour before he sends."""
    receives, others = [], []
    for move in rounds[0]:
        (receives if isinstance(move, Recv) else others).append(move)
    return (tuple(receives), tuple(others), *rounds[1:])


@each_move
def replaced_instead_of_added(rank, size, move):
    return dataclasses.replace(move, reduce=False) if isinstance(move, Recv) and rank == 1 else move


def added_twice(rank, size, rounds):
    return (rounds[0], *rounds)


FAULTS = {
    "one too far": ("ring", one_too_far),
    "rank-local authors": ("recursive_doubling", rank_local_author),
    "owed by all": ("recursive_doubling", owed_by_all),
    "encoded again": ("ring", encoded_again),
    "never sent": ("ring", never_sent),
    "never received": ("ring", never_received),
    "receive before send": ("ring", receive_before_send),
    "replaced": ("ring", replaced_instead_of_added),
    "replaced in direct": ("direct", replaced_instead_of_added),
    "added twice": ("direct", added_twice),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("size", [4, 5, 8])
def test_a_planted_fault_is_found(fault, size):
    with pytest.raises((AssertionError, KeyError, ValueError)):
        check(planted(*FAULTS[fault]), size)


@pytest.mark.parametrize(("fault", "message"), [
    ("receive before send", "all wait for each other"),
    ("never sent", "all wait for each other"),
    ("never received", "messages that nobody receives"),
    ("rank-local authors", "different sums"),
    ("encoded again", "different sums"),
])  # fmt: skip
def test_a_fault_is_called_by_its_name(fault, message):
    with pytest.raises(AssertionError, match=message):
        check(planted(*FAULTS[fault]), 4)


def pair(first: range, second: range) -> Schedule:
    """Two ranks that exchange their values, then encode the sum they share as these holders."""

    def rounds(rank, size):
        mate = 1 - rank
        meet = Encode(0, 0, alone(rank)), Send(mate, (Wire(0, rank),)), Recv(mate, (Wire(0, mate),), reduce=True)
        return meet, (Encode(0, 1, (first, second)[rank]),)

    return Schedule("pair", rounds, lambda size: 1, lambda chunk, size: range(2), "", "")


def test_an_error_is_owed_once():
    check(pair(range(2), range(2)), 2)
    with pytest.raises(AssertionError, match="disagree on their number"):
        check(pair(range(2), range(3)), 2)
    with pytest.raises(AssertionError, match="owed twice, or never"):
        check(pair(range(3), range(3)), 2)


def test_a_residual_is_written_once():
    twice = Schedule(
        "twice",
        lambda rank, size: ((Encode(0, 0, alone(0)),), (Encode(0, 1, alone(0)),)),
        lambda size: 1,
        lambda chunk, size: alone(0),
        "",
        "",
    )
    with pytest.raises(AssertionError, match="written twice"):
        check(twice, 1)

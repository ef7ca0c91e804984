"""Every schedule, on symbols, for P = 1 to 33."""

import ast
import math
import re
from collections import Counter
from functools import cache

import pytest

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.schedule import Encode, Recv, Send
from gqallreduce.scheduling.simulate import Outcome, check, simulate, table
from gqallreduce.scheduling.topology import apart

ALL_RANKS = range(1, 34)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
every_size = pytest.mark.parametrize("size", ALL_RANKS)


@cache
def outcome_of(name: str, size: int) -> Outcome:
    return simulate(SCHEDULES[name], apart(size))


def log2(size: int) -> int:
    return size.bit_length() - 1


def folded(size: int) -> bool:
    return size != 1 << log2(size)


# schedule -> P -> the most of any rank: messages, vector lengths sent, encodings of a contribution, rounds
CLOSED_FORMS = {
    "allgather": lambda p: (p - 1, p - 1, 1, 1),
    "direct": lambda p: (2 * (p - 1), 2 * (p - 1) / p, min(p, 2), 2),
    "hierarchical": lambda p: (2 * (p - 1), 2 * (p - 1) / p, min(p, 2), 2),  # each rank on a host of its own
    "halving_doubling": lambda p: (
        2 * log2(p) + folded(p),
        2 * (1 - 2 ** -log2(p)) + folded(p),
        log2(p) + 1 + folded(p),
        2 * (log2(p) + folded(p)) + (p == 1),
    ),
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
def test_every_contribution_is_summed_once_and_every_error_kept_once(schedule, size):
    check(schedule, apart(size))


@every_schedule
@every_size
def test_costs_are_those_of_the_closed_forms(schedule, size):
    outcome = outcome_of(schedule.name, size)
    messages, lengths, encodings, rounds = CLOSED_FORMS[schedule.name](size)
    assert max(outcome.messages) == messages
    assert max(outcome.chunks_sent) == pytest.approx(lengths * schedule.chunks(apart(size)))
    assert outcome.encodings() == encodings
    assert max(outcome.rounds) == rounds


@every_schedule
@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_the_cost_line_holds_for_powers_of_two(schedule, size):
    """Its alpha and beta terms, read as arithmetic, are never below what is counted, and a fold's two at most above."""
    alpha, beta = re.fullmatch(r"(.+) alpha \+ (.+) beta \+ .+ gamma", schedule.cost).groups()
    lengths = CLOSED_FORMS[schedule.name](size)[1]
    rounds = max(outcome_of(schedule.name, size).messages)
    assert 0 <= arithmetic(alpha, size) - rounds <= 2
    assert -1e-9 <= arithmetic(beta, size) - lengths <= 2


def arithmetic(text: str, size: int) -> float:
    text = text.replace("log2 P", "L").replace("n(log2", "n*(log2")
    text = re.sub(r"(?<=[\dn)LPHR])\s*(?=[(nLPHR])", "*", text.replace(" ", ""))
    return eval(text, {"P": size, "H": size, "R": 1, "n": 1, "L": math.log2(size)})


@every_schedule
@every_size
def test_every_send_has_its_receive_in_the_same_order(schedule, size):
    sent, received = {}, {}
    for rank in range(size):
        for moves in schedule.rounds(rank, apart(size)):
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
    chunks = schedule.chunks(apart(size))
    for rank in range(size):
        for moves in schedule.rounds(rank, apart(size)):
            for move in moves:
                wires = [move.wire] if isinstance(move, Encode) else move.wires
                assert wires
                assert all(0 <= wire.chunk < chunks and 0 <= wire.author < size for wire in wires)
                if isinstance(move, Encode):
                    assert rank in move.holders
                    assert move.hop < 1 << 16


@every_schedule
@every_size
def test_streams_of_different_values_are_different(schedule, size):
    """(author, hop, chunk) names one value: random bits are never used for two."""
    outcome = outcome_of(schedule.name, size)
    named = {}
    for coded, chunk in outcome.errors:
        _, value, author, hop = outcome.symbols._term[coded]
        assert named.setdefault((author, hop, chunk), value) == value


@every_schedule
@every_size
def test_every_rank_writes_its_new_residual_of_a_chunk_exactly_once(schedule, size):
    """The encoding whose error a rank holds alone writes the residual; without it an older residual would come back."""
    for counts in outcome_of(schedule.name, size).single_encodings():
        assert counts == Counter(range(schedule.chunks(apart(size))))


@every_schedule
@every_size
def test_error_holders_share_the_error_of_the_last_encodings(schedule, size):
    """They are the ranks that hold the errors of the encodings that the finished sum adds up."""
    outcome = outcome_of(schedule.name, size)
    for chunk in range(schedule.chunks(apart(size))):
        error_holders = schedule.error_holders(chunk, apart(size))
        assert len(set(error_holders)) == len(error_holders) > 0
        final = outcome.values[0][chunk]
        holders = {share[0] for coded in last_encodings(outcome, final) for share in outcome.errors[coded, chunk]}
        assert holders == set(error_holders)


def last_encodings(outcome: Outcome, value: int) -> list[int]:
    """The encodings whose decoded values were added up to a value."""
    kind, *parts = outcome.symbols._term[value]
    return [value] if kind == "coded" else [coded for part in parts for coded in last_encodings(outcome, part)]


def tree(order: str):
    """The order of additions as sets of sets: addition commutes."""

    def of(node):
        return frozenset((of(node.left), of(node.right))) if isinstance(node, ast.BinOp) else node.value

    return of(ast.parse(order, mode="eval").body)


def test_the_order_of_additions_is_printed():
    """direct: the owner's own value, then the others' in ascending order of rank."""
    outcome = simulate(SCHEDULES["direct"], apart(3))
    orders = [tree(outcome.symbols.order(value)) for value in outcome.values[0]]
    assert orders == [tree("((0 + 1) + 2)"), tree("((1 + 0) + 2)"), tree("((2 + 0) + 1)")]


@every_size
def test_allgather_adds_in_ascending_order_on_every_rank(size):
    """Its own vector included, and encoded like the others'."""
    outcome = outcome_of("allgather", size)
    ascending = outcome.symbols.coded(outcome.symbols.own(0), 0, 0)
    for rank in range(1, size):
        ascending = outcome.symbols.add(ascending, outcome.symbols.coded(outcome.symbols.own(rank), rank, 0))
    assert outcome.values == [[ascending]] * size


@every_size
def test_halving_doubling_adds_every_chunk_in_the_same_order(size):
    outcome = outcome_of("halving_doubling", size)
    assert len({tree(outcome.symbols.order(value)) for value in outcome.values[0]}) == 1


def test_halving_doubling_adds_the_far_half_first_and_what_is_folded_in_before():
    orders = [simulate(SCHEDULES["halving_doubling"], apart(size)) for size in (4, 6)]
    assert [tree(each.symbols.order(each.values[0][0])) for each in orders] == [
        tree("((0 + 2) + (1 + 3))"),
        tree("(((0 + 4) + 2) + ((1 + 5) + 3))"),
    ]


def test_the_table_has_a_row_for_every_schedule():
    rows = table(8).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == sorted(SCHEDULES)
    assert "| 14 | 14 | 1.75 | 8 |" in table(8)
    assert "| `halving_doubling` | 6 | 6 | 1.75 | 4 |" in table(8)
    assert "| `allgather` | 1 | 7 | 7 | 1 |" in table(8)

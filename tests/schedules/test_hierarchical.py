"""Sums within hosts and between them, on symbols: for hosts of any sizes, whose ranks lie side by side or not."""

from collections import Counter
from itertools import product

import pytest

from gqallreduce.registry import SCHEDULES
from gqallreduce.scheduling.instructions import Decode, Encode, Post, as_coded, instructions
from gqallreduce.scheduling.schedule import Send
from gqallreduce.scheduling.simulate import check
from gqallreduce.scheduling.topology import Topology, apart, in_hosts

SHAPES = {
    "2 x 2": in_hosts(4, 2),
    "4 x 2": in_hosts(8, 2),
    "4 x 4": in_hosts(16, 4),
    "3 x 5": in_hosts(15, 5),
    "one host": in_hosts(4, 4),
    "3 and 1": Topology((0, 0, 0, 3)),
    "1, 3 and 2": Topology((0, 1, 1, 1, 4, 4)),
    "in turn": Topology((0, 1, 2, 0, 1, 2)),
    "in no order": Topology((0, 1, 0, 1, 1, 0, 6)),
    "5 x 3": in_hosts(15, 3),
    "apart": apart(5),
    "one rank": apart(1),
}
every_shape = pytest.mark.parametrize("topology", SHAPES.values(), ids=SHAPES)
OPTIONS = [
    {"outer": outer, "leaders": leaders}
    for outer, leaders in product(("direct", "ring", "halving_doubling"), ("all", "one"))
]
every_way = pytest.mark.parametrize("options", OPTIONS, ids=[" ".join(each.values()) for each in OPTIONS])


def made(options):
    return SCHEDULES.make("hierarchical", options)


@every_shape
@every_way
def test_every_contribution_is_summed_once_and_every_error_kept_once(topology, options):
    """Residuals too: each rank sets its own of each chunk exactly once."""
    outcome = check(made(options), topology)
    chunks = made(options).chunks(topology)
    assert outcome.single_encodings() == [Counter(range(chunks))] * topology.size


@every_shape
@every_way
def test_a_contribution_is_encoded_as_often_as_between_hosts_alone(topology, options):
    hosts = apart(len(topology.groups))
    assert check(made(options), topology).encodings() == check(SCHEDULES[options["outer"]], hosts).encodings()


@every_shape
@every_way
def test_what_is_exact_stays_within_a_host_and_all_else_is_coded(topology, options):
    schedule, between = made(options), Counter()
    for rank in range(topology.size):
        for move in (move for moves in schedule.rounds(rank, topology) for move in moves):
            if isinstance(move, Send):
                near = topology.hosts[move.to] == topology.hosts[rank]
                assert near or not any(wire.exact for wire in move.wires)
                between[topology.hosts[rank]] += 0 if near else len(move.wires)
    hosts = apart(len(topology.groups))
    alone = check(SCHEDULES[options["outer"]], hosts)
    shares = schedule.chunks(topology) / SCHEDULES[options["outer"]].chunks(hosts)
    assert max(between.values(), default=0) == max(alone.chunks_sent) * shares


def test_all_ranks_lead_a_share_or_one_of_each_host():
    topology = in_hosts(8, 4)
    coding = [
        {rank for rank in range(8) for each in instructions(made({"leaders": leaders}), rank, topology) if codes(each)}
        for leaders in ("all", "one")
    ]
    assert coding == [set(range(8)), {0, 4}]


def codes(instruction) -> bool:
    return isinstance(instruction, Encode) and not instruction.exact


def test_the_fewest_ranks_of_a_host_say_how_many_shares_there_are():
    assert made({}).chunks(Topology((0, 0, 0, 3, 3))) == 2 * 2
    assert made({}).chunks(in_hosts(16, 4)) == 16


@every_shape
def test_the_error_of_a_16_bit_result_is_kept_by_the_leader_that_encoded_it(topology):
    schedule = made({})
    for chunk in range(schedule.chunks(topology)):
        (holder,) = schedule.error_holders(chunk, topology)
        program = instructions(schedule, holder, topology)
        last = max(each.hop for each in program if isinstance(each, Encode) and each.chunk == chunk)
        assert last == 2 or len(topology.groups) == 1


def test_a_codec_whose_sums_lose_nothing_encodes_all():
    program = instructions(made({}), 1, in_hosts(4, 2))
    assert any(each.exact for each in program if isinstance(each, (Encode, Decode)))
    coded = as_coded(program)
    assert not any(each.exact for each in coded if isinstance(each, (Encode, Decode)))
    assert not any(wire.exact for each in coded if isinstance(each, Post) for wire in each.wires)


def test_names_say_what_is_not_the_default():
    assert made({"outer": "direct"}).name == made({}).name == "hierarchical"
    assert made({"leaders": "one", "outer": "ring"}).name == "hierarchical(outer=ring, leaders=one)"
    assert SCHEDULES["hierarchical(outer=ring, leaders=one)"] is made({"outer": "ring", "leaders": "one"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"outer": "allgather"}, "outer='allgather', expected direct, halving_doubling, ring"),
        ({"outer": "hierarchical"}, "outer='hierarchical', expected direct"),
        ({"leaders": 2}, "leaders=2, expected all or one"),
        ({"outr": "ring"}, "no option 'outr' .did you mean 'outer'..; options: outer, leaders"),
    ],
)
def test_other_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(options)


def test_a_name_is_found_where_it_was_never_made():
    """A pickled Scheme brings the name alone."""
    SCHEDULES._made.clear()
    assert SCHEDULES["hierarchical(outer=ring, leaders=one)"].options == (("outer", "ring"), ("leaders", "one"))
    for unknown in ("hierarchical2(outer=ring)", "ring2"):
        with pytest.raises(KeyError):
            SCHEDULES[unknown]


def test_flat_schedules_have_no_options():
    with pytest.raises(ValueError, match="schedule 'ring' has no options, got outer"):
        SCHEDULES.make("ring", {"outer": "direct"})

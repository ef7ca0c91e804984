"""The fixed rule and the cost model: numbers that make sense, alike on every machine."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from schemes import RANKS, SCHEDULE_NAMES, WHOLE, variants

from gqallreduce import Scheme
from gqallreduce.registry import SCHEDULES
from gqallreduce.runtime.local import LocalAllreduce
from gqallreduce.scheduling import model
from gqallreduce.scheduling import work as counting
from gqallreduce.scheduling.model import (
    DENSE,
    FEW_BYTES,
    LONG_MESSAGE,
    SCHEDULES_TRIED,
    Profile,
    bytes_sent,
    candidates,
    choose,
    fixed_schedule,
    message_bytes,
    predict,
    predict_dense,
    work,
)
from gqallreduce.scheduling.schedule import Send
from gqallreduce.scheduling.simulate import simulate
from gqallreduce.scheduling.topology import Topology, apart, in_hosts

RAW = Scheme.parse("raw").codec
SIZES = (0, 1, 100, 10**4, 10**6, 10**8)
every_text = variants("text", WHOLE)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULE_NAMES)


@every_text
@pytest.mark.parametrize("ranks", [*RANKS, 16, 1000])
def test_the_fixed_rule_gives_a_schedule_for_everything(text, ranks):
    codec = Scheme.parse(text).codec
    found = [fixed_schedule(ranks, codec, size) for size in SIZES]
    assert set(found) <= set(SCHEDULES)
    if ranks > 2:
        assert found[0] == ("allgather" if ranks <= 8 else "recursive_doubling")  # few bytes: few rounds
        nbytes = message_bytes(codec, SIZES[-1])
        if nbytes > FEW_BYTES and (ranks <= 16 or nbytes >= LONG_MESSAGE * ranks):
            assert found[-1] == "direct"  # many: two encodings, whatever P
        else:
            assert found[-1] == (found[0] if nbytes <= FEW_BYTES else "halving_doubling")


def test_the_fixed_rule_is_the_one_written_down():
    assert fixed_schedule(1, RAW, 10) == "direct"
    assert fixed_schedule(2, RAW, 10**8) == "recursive_doubling"
    assert fixed_schedule(8, RAW, 1 << 10) == "allgather"
    assert fixed_schedule(8, RAW, (1 << 10) + 1) == "direct"
    assert fixed_schedule(16, RAW, 1 << 10) == "recursive_doubling"
    assert fixed_schedule(16, RAW, (1 << 10) + 1) == "direct"
    assert fixed_schedule(1000, RAW, 1 << 10) == "recursive_doubling"
    assert fixed_schedule(1000, RAW, (1 << 10) + 1) == "halving_doubling"
    assert fixed_schedule(1000, RAW, 1_023_999) == "halving_doubling"
    assert fixed_schedule(1000, RAW, 1_024_000) == "direct"


@pytest.mark.parametrize("text", ["onebit", "qsgd(bits=4)"])
@pytest.mark.parametrize("ranks", [4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_the_fixed_rule_is_near_the_best_of_the_model(text, ranks):
    """Of the flat schedules; by the usual profile."""
    codec, profile = Scheme.parse(text).codec, Profile()
    flat = [name for name in SCHEDULE_NAMES if name != "hierarchical" and (ranks <= 128 or name != "ring")]
    for size in (1 << power for power in range(8, 30, 2)):
        best = min(predict(name, codec, ranks, size, profile) for name in flat)
        assert predict(fixed_schedule(ranks, codec, size), codec, ranks, size, profile) <= 1.5 * best


@every_schedule
@pytest.mark.parametrize("ranks", RANKS)
def test_work_is_what_rank_0_does_in_the_simulation(schedule, ranks):
    counted, outcome = work(schedule, ranks), simulate(SCHEDULES[schedule], apart(ranks))
    assert counted.rounds == outcome.rounds[0]
    assert counted.messages == outcome.messages[0]
    assert sum(counted.sent.values()) == pytest.approx(
        outcome.chunks_sent[0] / SCHEDULES[schedule].chunks(apart(ranks))
    )


@every_schedule
@pytest.mark.parametrize("topology", [in_hosts(8, 2), in_hosts(16, 4), in_hosts(7, 3), Topology((0, 1, 0, 1))])
def test_what_leaves_a_host_is_counted_over_its_ranks(schedule, topology):
    """A ring's first rank sends to its host alone, its last one to another."""
    found, leaving, near = SCHEDULES[schedule], 0, []
    for rank in topology.groups[0]:
        sent = [move for moves in found.rounds(rank, topology) for move in moves if isinstance(move, Send)]
        away = [len(move.wires) for move in sent if topology.hosts[move.to] != topology.hosts[rank]]
        leaving += sum(away)
        near.append(sum(len(move.wires) for move in sent))
    counted = work(schedule, topology)
    assert sum(counted.leaving.values()) * found.chunks(topology) == pytest.approx(leaving)
    assert sum(counted.sent.values()) * found.chunks(topology) == pytest.approx(max(near))


@every_schedule
def test_where_ranks_of_a_host_are_many_one_is_counted_for_those_between_its_first_and_last(schedule, monkeypatch):
    every = work(schedule, in_hosts(32, 8))
    monkeypatch.setattr(counting, "COUNTED_MOST", 1)
    work.cache_clear()
    some = work(schedule, in_hosts(32, 8))
    work.cache_clear()
    assert some == every


def test_dense_sums_within_a_host_are_those_of_its_memory():
    usual = Profile(beta=8 / 1e9)
    assert predict_dense(in_hosts(4, 4), 10**8, usual) < predict_dense(in_hosts(4, 2), 10**8, usual) / 5
    assert predict_dense(in_hosts(4, 2), 10**8, usual) == predict_dense(4, 10**8, usual)


@every_schedule
@pytest.mark.parametrize("ranks", [*RANKS, 6, 11, 16, 37])
def test_an_encoding_of_a_hop_sums_so_many_contributions_and_one_does(schedule, ranks):
    found, outcome = SCHEDULES[schedule], simulate(SCHEDULES[schedule], apart(ranks))
    most = Counter()
    for kind, *parts in outcome.symbols._term:
        if kind == "coded":
            value, _, hop = parts
            most[hop] = max(most[hop], outcome.symbols.contributions(value).total())
    assert most == {hop: found.contributions(hop, apart(ranks)) for hop in most}


@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("text", ["terngrad(clip=0)", "thc(bits=4, rotate=False, clip=0)"])
def test_sums_of_integers_are_predicted_as_long_as_they_become(schedule, ranks, text):
    """Values of all ranks have one sign and size: sums are as large as they can be."""
    local, size = LocalAllreduce(f"{schedule}/{text}", ranks), 1 << 17
    local([np.ones(size, np.float32) for _ in range(ranks)])
    predicted = bytes_sent(schedule, local.scheme.codec, ranks, size)
    most = max(spent.bytes_sent for spent in local.spent)
    if ranks == 3 and schedule in ("halving_doubling", "recursive_doubling"):  # what is folded is sent by another
        assert most <= predicted * 1.01
    else:
        assert most == pytest.approx(predicted, rel=0.01)
    if schedule == "ring" and ranks == 8:
        assert predicted > 1.2 * bytes_sent(
            schedule, Scheme.parse("qsgd(bits=4)" if "thc" in text else "qsgd(bits=2)").codec, ranks, size
        )


@every_text
@every_schedule
@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_time_grows_with_size_latency_and_the_slowness_of_the_network(text, schedule, ranks):
    codec, usual = Scheme.parse(text).codec, Profile()
    times = [predict(schedule, codec, ranks, size, usual) for size in SIZES]
    assert all(time > 0 for time in times)
    assert times == sorted(times)
    for slower in (Profile(alpha=1e-3), Profile(beta=1e-7), Profile(software=1e-3), Profile(copy=1e-8)):
        assert predict(schedule, codec, ranks, 10**6, slower) > predict(schedule, codec, ranks, 10**6, usual)


@pytest.mark.parametrize("schedule", ["direct", "ring"])
def test_less_overlap_takes_longer_and_is_found_in_the_time_of_a_call(schedule):
    """Between all, where the shorter of transfer and arithmetic hides but for one part, and none: then they add up."""
    codec, size, usual = Scheme.parse("onebit").codec, 1 << 24, Profile()
    (vector,) = model.summed(codec, 8, size)
    costs = model.costs(schedule, vector, apart(8), usual)
    assert costs.parts > 1
    assert costs.seconds(1.0) == predict(schedule, codec, 8, size, usual)
    assert costs.seconds(0.0) == pytest.approx(costs.latency + costs.wire + costs.arithmetic)
    for overlap in (0.0, 0.3, 1.0):
        seconds = predict(schedule, codec, 8, size, dataclasses.replace(usual, overlap=overlap))
        assert costs.overlap(seconds) == pytest.approx(overlap)
    assert costs.overlap(costs.seconds(0.0) * 2) == 0
    assert costs.overlap(0.0) == 1
    assert costs._replace(parts=1).overlap(1.0) == 1  # nothing could


@every_text
def test_message_bytes_are_the_bound_of_the_codec(text):
    codec = Scheme.parse(text).codec
    assert message_bytes(codec, 0) <= 20
    assert message_bytes(codec, 10**6) <= message_bytes(RAW, 10**6) * 2


def test_dense_time_is_that_of_the_better_algorithm():
    assert predict_dense(1, 10**6, Profile()) == pytest.approx(10**6 * Profile().copy)
    assert predict_dense(8, 8, Profile()) < predict_dense(8, 10**6, Profile()) < predict_dense(8, 10**8, Profile())
    halves = 2 * 10**9 * 7 / 8 * 8 / 10e9 + 10**9 / 10e9
    assert predict_dense(8, 10**9, Profile()) == pytest.approx(2 * 3 * 20e-6 + halves)
    assert predict_dense(2, 10**9, Profile()) == pytest.approx(20e-6 + 10**9 * 8 / 10e9 + 10**9 / 10e9)


@every_text
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("size", SIZES)
def test_the_choice_is_the_best_prediction_and_says_why(text, ranks, size):
    codec = Scheme.parse(text).codec
    best, why = choose(codec, ranks, size, Profile())
    assert best in (DENSE, *SCHEDULES, *(f"{name}/raw" for name in SCHEDULES))
    if ranks == 1:
        assert (best, why) == ("direct/raw", "one rank: nothing to choose")
    else:
        assert best in why


@pytest.mark.parametrize("text", ["qsgd(bits=4)", "onebit"])
def test_a_schedule_by_hosts_is_tried_where_several_hosts_have_several_ranks(text):
    codec = Scheme.parse(text).codec
    fast = Profile(beta=1e-12, alpha=0.0)  # between hosts, so that nothing is gained by hosts
    for ranks in (4, Topology((0, 0, 0, 0)), apart(8)):
        found = candidates(codec, ranks, 1 << 20, fast)
        assert len(found) <= 2 + SCHEDULES_TRIED
    for topology in (in_hosts(4, 2), in_hosts(64, 16), Topology((0, 0, 2))):
        found = candidates(codec, topology, 1 << 20, fast)
        assert any(SCHEDULES[name].by_hosts for name in found if name in SCHEDULES)
        assert len(found) <= 3 + SCHEDULES_TRIED


def test_compression_is_chosen_on_a_slow_network_and_refused_on_a_fast_one():
    codec = Scheme.parse("onebit").codec
    assert choose(codec, 8, 10**7, Profile(beta=8 / 1e9))[0] in SCHEDULES
    assert choose(codec, 8, 10**7, Profile(beta=1e-12, copy=1e-9))[0] not in SCHEDULES


@every_schedule
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_bytes_of_the_model_are_those_that_travel(schedule, ranks):
    """Headers included, and the lanes of a large sum."""
    for size in (8 * ranks, 2**16 * ranks):
        local = LocalAllreduce(f"{schedule}/raw", ranks)
        local([np.ones(size, np.float32) for _ in range(ranks)])
        assert bytes_sent(schedule, RAW, ranks, size) == local.spent[0].bytes_sent


@pytest.mark.parametrize("text", ["onebit", "adaptive(pi=16)", "adaptive(pi=16, scope=column)", "topk(ratio=0.05)"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_predicted_bytes_of_codecs_are_near_those_that_travel(text, ranks):
    """With several lanes; each piece sends its share of the values."""
    size, codec = 2**20, Scheme.parse(text).codec
    local = LocalAllreduce(f"direct/{text}", ranks)
    local([np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(ranks)])
    assert bytes_sent("direct", codec, ranks, size) == pytest.approx(local.spent[0].bytes_sent, rel=0.1)


def test_a_prediction_is_the_sum_of_its_terms():
    """direct/raw on 4 ranks, 2^20 values, by hand: 8 lanes, 2 rounds, 6 messages a lane, 1 encoding, 1.5 decodings.

    Transfer and arithmetic overlap, except for one of the three messages of a round in one lane.
    """
    for beta, copy in ((1e-6, 1e-9), (1e-12, 1e-9)):  # the link is slower, the arithmetic is
        profile = Profile(alpha=3.0, software=0.5, beta=beta, copy=copy, rates={"raw": (2.0, 4.0)})
        wire = beta * 6 * 8 * (32 + 2**17)
        arithmetic = 4 * 2**20 * copy * (2.0 + 1.5 * 4.0)
        expected = 2 * 3.0 + 6 * 8 * 0.5 + max(wire, arithmetic) + min(wire, arithmetic) / (8 * 3)
        assert predict("direct", RAW, 4, 2**20, profile) == pytest.approx(expected, rel=1e-12)


@every_text
@every_schedule
def test_cores_share_out_the_arithmetic_up_to_what_the_memory_can_do(text, schedule):
    codec = Scheme.parse(text).codec

    def seconds(**machine):
        return predict(schedule, codec, 8, 10**8, Profile(alpha=0, software=0, beta=1e-30, **machine))

    assert seconds(threads=4) == pytest.approx(seconds() / 4)
    # four cores at 10 GB/s, of a node whose two ranks copy 20 GB/s together: 10 GB/s for each, whatever a codec takes
    bound = seconds(threads=10**9, memory=2 / 20e9)
    assert bound <= seconds(threads=4, memory=2 / 20e9) <= seconds(memory=2 / 20e9)
    assert seconds(threads=2 * 10**9, memory=2 / 20e9) == bound
    assert seconds(memory=1e-15) == seconds()


def test_the_dense_sum_is_added_by_all_cores_too():
    machine = {"alpha": 0, "beta": 1e-30}
    assert predict_dense(8, 10**8, Profile(**machine, threads=5)) == pytest.approx(
        predict_dense(8, 10**8, Profile(**machine)) / 5
    )
    assert predict_dense(1, 10**8, Profile(threads=64, memory=1e-10)) == pytest.approx(1e-2)

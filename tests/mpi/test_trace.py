"""A trace holds what each lane did and when, from both runtimes."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest

import gqallreduce as gq

pytestmark = pytest.mark.mpi
SIZE = 700_000  # several lanes, and extents of a chunk


def events_of(folder, comm, runtime, monkeypatch, scheme="direct/qsgd(bits=4)/ef"):
    """(events of this rank, messages that it sent) of two calls."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    with gq.Allreduce(scheme, comm=comm, trace=f"{folder}/{runtime}.json") as allreduce:
        for _ in range(2):
            allreduce(np.full(SIZE, comm.rank + 1, np.float32), key="w")
        messages = allreduce.stats.total.messages
    return json.loads((folder / f"{runtime}.{comm.rank}.json").read_text()), messages


def done(events):
    notes = [(event, event["args"]) for event in events]
    return Counter((event["name"], event["tid"], more["chunk"]) for event, more in notes if "chunk" in more)


@pytest.mark.parametrize("schedule", ["direct", "recursive_doubling"])
def test_both_runtimes_note_the_same_work(folder, comm, monkeypatch, schedule):
    native, python = (
        events_of(folder, comm, runtime, monkeypatch, f"{schedule}/qsgd(bits=4)/ef")[0]
        for runtime in ("native", "python")
    )
    assert done(native) == done(python)
    assert done(native)


@pytest.mark.parametrize("runtime", ["native", "python"])
@pytest.mark.parametrize(("scheme", "prepares"), [("adaptive(pi=64)/ef", True), ("alq", True), ("onebit/ef", False)])
def test_what_is_found_out_before_the_first_encoding_is_noted(folder, comm, monkeypatch, runtime, scheme, prepares):
    events, _ = events_of(folder, comm, runtime, monkeypatch, f"direct/{scheme}")
    found = [event for event in events if event["name"] == "prepare"]
    assert bool(found) == prepares
    if found and comm.size > 1:
        assert found[0]["ts"] + found[0]["dur"] <= min(each["ts"] for each in events if each["name"] == "encode") + 1e-3


@pytest.mark.parametrize("runtime", ["native", "python"])
def test_every_message_is_there_and_a_lane_does_one_thing_at_a_time(folder, comm, monkeypatch, runtime):
    events, messages = events_of(folder, comm, runtime, monkeypatch)
    begun = {event["id"]: event["ts"] for event in events if event["ph"] == "b"}
    ended = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    assert begun.keys() == ended.keys()
    assert len(begun) == messages
    assert all(begun[number] <= ended[number] for number in begun)
    assert sum(event["args"]["bytes"] for event in events if event["ph"] == "b") > 0 or comm.size == 1
    whole = [event for event in events if event["ph"] == "X"]
    for lane in {event["tid"] for event in whole}:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in whole if event["tid"] == lane)
        assert all(first[1] <= second[0] + 1e-3 for first, second in itertools.pairwise(spans))
    assert {event["args"]["call"] for event in whole} == {"'w'"}


def test_a_closed_trace_stays_as_it_is(folder, comm):
    allreduce = gq.Allreduce("direct/raw", comm=comm, trace=f"{folder}/closed.json")
    allreduce.close()
    allreduce.close()
    (event,) = json.loads((folder / f"closed.{comm.rank}.json").read_text())
    assert event["args"]["name"] == f"rank {comm.rank}"

"""Ranks that never come, or come late: an error that names them, then a clean end. Each has an mpirun of its own."""

import pytest
import scripts

SECONDS = 1.0
HEAD = f"""
import json, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq

comm, timeout = MPI.COMM_WORLD, {SECONDS}
report = dict()

def attempt(name, call, *arguments, **options):
    began = time.perf_counter()
    try:
        call(*arguments, **options)
        said = None
    except Exception as error:
        said = type(error).__name__, list(getattr(error, "ranks", ()))
    report[name] = said, time.perf_counter() - began

def make(scheme, comm=comm):
    return gq.Allreduce(scheme, comm=comm, timeout=timeout)

def meet():
    "All ranks, however late."
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
"""
IN_CALL = """
silent, late, elements, scheme = {silent}, {late}, {elements}, {scheme!r}
allreduce = make(scheme)
bystander = make("raw")
buf = np.ones(elements, np.float32)
allreduce(buf, key="w")
bystander(np.ones(5, np.float32))
comm.Barrier()
if comm.rank == silent:
    time.sleep(2.5 * timeout)
if comm.rank != silent or late:
    attempt("call", allreduce, np.ones(elements, np.float32), key="w")
    attempt("again", allreduce, np.ones(elements, np.float32), key="w")
    attempt("flush", allreduce.flush, "w")
meet()
if late:
    fresh = make(scheme)
    fresh(np.ones(elements, np.float32), key="w")
    bystander(np.ones(5, np.float32))
    report["fresh"] = "works"
"""


@pytest.fixture
def ranks(tmp_path):
    """Return a function that runs a script on some ranks and gives their reports."""
    return lambda script, size: scripts.run(tmp_path, HEAD + script, size, 60)


def the_others_name(reports, silent, name="call"):
    """Every rank but the silent one raised TimeoutError in time, and one of them named it."""
    others = {rank: report[name] for rank, report in enumerate(reports) if rank != silent}
    assert {said and said[0] for said, _ in others.values()} == {"TimeoutError"}, others
    assert all(SECONDS - 0.2 < seconds < SECONDS + 2 for _, seconds in others.values()), others
    assert silent in {rank for said, _ in others.values() for rank in said[1]}, others
    assert all(rank not in said[1] for rank, (said, _) in others.items()), others


@pytest.mark.parametrize(("elements", "late"), [(40, True), (900_000, True), (900_000, False)])
@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling"])
def test_a_rank_that_does_not_call(ranks, schedule, elements, late):
    """Late, it raises the same as the others; then a new object works. Never, the job ends cleanly all the same."""
    script = IN_CALL.format(silent=1, late=late, elements=elements, scheme=f"{schedule}/raw/ef")
    reports = ranks(script, 3)
    if late:
        assert reports[1]["call"][0][0] == "TimeoutError"
        assert [report["fresh"] for report in reports] == ["works"] * 3
    the_others_name(reports, 1)
    for rank, report in enumerate(reports):
        if rank != 1 or late:
            assert report["again"][0][0] == report["flush"][0][0] == "Error"
            assert report["again"][1] < 0.1


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("scheme", ["qsgd/ef", "terngrad/ef"])
def test_two_ranks_and_many(ranks, scheme, size):
    """Also where they first agree on a scale."""
    reports = ranks(IN_CALL.format(silent=0, late=True, elements=300_000, scheme=scheme), size)
    assert reports[0]["call"][0][0] == "TimeoutError"
    the_others_name(reports, 0)
    assert [report["fresh"] for report in reports] == ["works"] * size


def test_a_rank_that_does_not_come_to_a_dense_call(ranks):
    forced = """
import os
from gqallreduce.scheduling import model
os.environ["GQALLREDUCE_AUTO"] = "model"
model.choose = lambda *_: (model.DENSE, "forced")
"""
    script = forced + IN_CALL.format(silent=2, late=False, elements=1000, scheme="auto/onebit/ef")
    reports = ranks(script, 3)
    the_others_name(reports, 2)
    assert reports[0]["again"][0][0] == "Error"


def test_a_rank_that_does_not_come_to_the_agreement(ranks):
    script = """
allreduce = make("ring/raw")
if comm.rank != 1:
    attempt("call", allreduce, np.ones(5, np.float32), key="w")
    attempt("again", allreduce, np.ones(5, np.float32), key="w")
meet()
"""
    reports = ranks(script, 3)
    the_others_name(reports, 1)
    assert reports[0]["again"][0][0] == reports[2]["again"][0][0] == "Error"


def test_a_rank_that_does_not_come_to_the_construction(ranks):
    script = """
other = comm.Dup()
if comm.rank != 1:
    attempt("call", make, "ring/raw", other)
meet()
"""
    reports = ranks(script, 3)
    the_others_name(reports, 1)


def test_a_rank_that_leaves_for_good(ranks):
    """The job ends although large messages to that rank are still under way."""
    script = """
allreduce = make("direct/raw")
allreduce(np.ones(900_000, np.float32))
if comm.rank != 1:
    attempt("call", allreduce, np.ones(900_000, np.float32))
"""
    reports = ranks(script, 3)
    the_others_name(reports, 1)


# --- what counts as being heard of, and who learns of a call that was given up ---

SLOW = """
from gqallreduce.codecs.raw import Raw

timeout, encode = 2.0, Raw.write

def encode_slowly(seconds):
    def write(*arguments):
        time.sleep(seconds)
        return encode(*arguments)
    Raw.write = write
"""


def test_a_slow_call_in_which_messages_keep_coming_is_not_given_up(ranks):
    """As a whole it takes longer than the timeout: each of eight messages is sent 0.4 s after the one before."""
    script = """
allreduce = make("recursive_doubling/raw")
buf = np.ones(1 << 19, np.float32)
allreduce(buf)
if comm.rank == 1:
    encode_slowly(0.4)
attempt("call", allreduce, buf)
report["messages"] = allreduce.stats.last.messages
"""
    reports = ranks(SLOW + script, 2)
    assert [report["call"][0] for report in reports] == [None, None]
    assert [report["messages"] for report in reports] == [8, 8]


def test_own_messages_that_leave_are_no_sign_of_life_of_others(ranks):
    """A rank that has heard nothing for the timeout gives up, although a message of its own has just left."""
    script = """
allreduce = make("recursive_doubling/raw")
buf = np.ones(40, np.float32)
allreduce(buf)
comm.Barrier()
if comm.rank == 0:
    encode_slowly(1.25 * timeout)
    attempt("call", allreduce, buf)
    comm.send(None, 1)
else:
    end = time.perf_counter() + 1.75 * timeout
    while not comm.iprobe(source=0) and time.perf_counter() < end:
        time.sleep(0.01)
    attempt("call", allreduce, buf)
    comm.recv(source=0)
"""
    reports = ranks(SLOW + script, 2)
    assert reports[0]["call"][0] == ["TimeoutError", [1]]


def test_a_late_rank_that_has_all_that_it_needs_learns_that_the_others_gave_up(ranks):
    """Its result would be right, but the others have none and make no further call."""
    reports = ranks(IN_CALL.format(silent=1, late=True, elements=40, scheme="allgather/raw/ef"), 3)
    assert reports[1]["call"][0][0] == "TimeoutError"
    the_others_name(reports, 1)

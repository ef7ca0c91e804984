"""A rank that speaks raw MPI messages: floods of them, on the communicator of an object and on that of its aborts.

Then it makes the call that the others make. These get an error in time, write nothing outside their buffers, and hold
no more memory than MPI itself needs for messages that no receive takes.
"""

import time

import numpy as np
import psutil
import pytest
from mpi4py import MPI
from ranks import guarded, inputs, pairs, works

import gqallreduce as gq
from gqallreduce.coding import frame
from gqallreduce.transport.exchange import FIRST

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(MPI.COMM_WORLD.size > 3, reason="what one rank does to others is the same with 2 or 3"),
]
WHY = frame.abort_word(frame.REASON_TIMEOUT, 0, 0)
SIZE, TIMEOUT, SHORT, MANY = 3000, 3, 1.5, 2000
# Not longer: where a message is longer than the receive that takes it, Open MPI 5 writes all of it, from 4 KiB on.
LENGTHS = {"empty": 0, "of a header": 32, "short": 500, "longer": 3000}
some_schemes = pytest.mark.parametrize("scheme", pairs(True, False)[::12])


def flood(comm, link_comm, tags, nbytes, count):
    """Sends of the last rank to all others, random bytes; returned are requests that may never complete."""
    random = np.random.default_rng(7)
    message = random.integers(0, 256, nbytes, np.uint8)
    message[:2] = np.frombuffer(b"GQ", np.uint8)[: message[:2].size]
    requests = []
    for number in range(count):
        for rank in range(comm.size - 1):
            requests.append(link_comm.Isend([message, MPI.BYTE], rank, tags[number % len(tags)]))
    return message, requests


def called(comm, allreduce):
    """What a call comes to: None, or its error."""
    return guarded(allreduce, inputs(comm.size, SIZE)[comm.rank])


def drained(comm, flooded, held):
    """All take what no receive has taken: requests that never complete cannot be cancelled with every MPI."""
    _, requests = held
    ended = None
    while ended is None or not ended.Test():
        status = MPI.Status()
        while comm.rank < comm.size - 1 and flooded.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            nbytes = status.Get_count(MPI.BYTE)
            flooded.Recv([bytearray(nbytes), nbytes, MPI.BYTE], status.Get_source(), status.Get_tag())
        if ended is None and MPI.Request.Testall(requests):
            ended = comm.Ibarrier()


@some_schemes
@pytest.mark.parametrize("length", LENGTHS)
def test_a_flood_in_place_of_a_call(comm, scheme, length):
    """On the tags of the call that the others make, whose receives take the first of these messages."""
    count = MANY if LENGTHS[length] < 1000 else 200
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=20)
    assert called(comm, allreduce) is None
    allreduce.timeout = TIMEOUT
    comm.Barrier()
    link = allreduce.home.link
    signature = allreduce.plans.last("w").signature
    tags = [link.tag(link.calls, lane, signature) for lane in (0, 1, 2, FIRST)]
    before = psutil.Process().memory_info().rss
    held = (None, [])
    if comm.rank == comm.size - 1:
        held = flood(comm, link.comm, tags, LENGTHS[length], count)
    comm.Barrier()
    errors = comm.allgather(called(comm, allreduce))[:-1]
    assert all(isinstance(each, gq.Error) for each in errors), errors
    assert any(isinstance(each, (gq.WireError, gq.MismatchError)) for each in errors), errors
    grown = psutil.Process().memory_info().rss - before
    assert grown < 4 * count * (LENGTHS[length] + 4096) + (32 << 20), f"{grown} bytes more"
    drained(comm, link.comm, held)
    works(comm, gq.Allreduce(scheme, comm=comm, timeout=20))


@some_schemes
def test_a_flood_that_no_call_expects(comm, scheme):
    """On tags of other calls: it stays with MPI, and the sums are right."""
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=20)
    fresh = gq.Allreduce(scheme, comm=comm, timeout=20)
    comm.Barrier()
    link, held = allreduce.home.link, (None, [])
    tags = [link.tag(link.calls + 500, lane, 3) for lane in range(3)]
    if comm.rank == comm.size - 1:
        held = flood(comm, link.comm, tags, 500, MANY)
    for each in (allreduce, fresh):
        assert called(comm, each) is None
    drained(comm, link.comm, held)


@pytest.mark.parametrize("length", [32, 5000, 200_000])
def test_a_flood_of_aborts(comm, length):
    """On the control channel, where a rank tells others that it gave up: what is none of its messages is an error.

    Objects can be made again once all has been read; but for a message that is too long to be received.
    """
    own = comm.Dup()
    allreduce = gq.Allreduce("direct/onebit/ef", comm=own, timeout=20)
    assert called(comm, allreduce) is None
    allreduce.timeout = SHORT
    comm.Barrier()
    control, held = allreduce.home.control, (None, [])
    if comm.rank == comm.size - 1:
        held = flood(comm, control._comm, [0], length, 100)
    comm.Barrier()
    errors = [comm.allgather(error) for error in (called(comm, allreduce), made_again(own), made_again(own))]
    assert any(isinstance(each, gq.WireError) for found in errors for each in found), errors
    assert all(each is None or isinstance(each, gq.Error) for found in errors for each in found), errors
    if length < 100_000:
        goes_on(comm, own)
    drained(comm, control._comm, held)


def test_a_flood_that_came_before_a_meeting_is_told_in_it(comm):
    """Also by a rank that need not wait for the others, since all have come before it."""
    own = comm.Dup()
    allreduce = gq.Allreduce("raw", comm=own, timeout=20)
    control, held = allreduce.home.control, (None, [])
    if comm.rank == comm.size - 1:
        held = flood(comm, control._comm, [0], 500, 10)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    errors = comm.allgather(made_again(own))
    assert isinstance(errors[0], gq.WireError), errors
    assert all(isinstance(each, gq.Error) for each in errors), errors
    goes_on(comm, own)
    drained(comm, control._comm, held)


def made_again(comm):
    """The error of making an object, or None."""
    try:
        gq.Allreduce("raw", comm=comm, timeout=SHORT)
    except gq.Error as error:
        return error
    return None


def goes_on(comm, own):
    """After some tries, in which ranks read what is left and others wait for them, objects can be made."""
    assert any(not any(comm.allgather(made_again(own))) for _ in range(6))
    works(comm, gq.Allreduce("direct/onebit/ef", comm=own, timeout=20))


LIES = {
    "an abort of rank 0": (frame.ABORT, 1, 0, WHY),
    "an abort of a rank that there is not": (frame.ABORT, 1, 10**6, WHY),
    "an abort far ahead": (frame.ABORT, 2**63, None, WHY),
    "an abort some way ahead": (frame.ABORT, 1000, None, WHY),
    "an abort by a rank that there is not": (frame.ABORT, 1, None, frame.abort_word(frame.REASON_TIMEOUT, 2**31, 0)),
    "an abort without a reason": (frame.ABORT, 1, None, frame.abort_word(200, 0, 0)),
    "an object of rank 0": (frame.OBJECT, 1, 0, 5),
    "an object far ahead": (frame.OBJECT, 1000, None, 5),
    "rank 0's word": (frame.GO, 1, None, 0),
    "a call to meet": (frame.MEETING, 1, None, 0),
    "data": (frame.DATA, 1, None, 0),
}


def told(comm, control, header):
    """The last rank tells all others."""
    message = bytearray(frame.SIZE)
    header.write(message)
    comm.Barrier()
    if comm.rank == comm.size - 1:
        for to in range(comm.size - 1):
            control._comm.Send([message, MPI.BYTE], to, 0)
    comm.Barrier()


@pytest.mark.parametrize("lie", LIES)
def test_what_no_rank_says_of_itself(comm, lie):
    """It is refused, and then all can go on."""
    own = comm.Dup()
    allreduce = gq.Allreduce("direct/onebit/ef", comm=own, timeout=20)
    control, (kind, generation, rank, word) = allreduce.home.control, LIES[lie]
    told(comm, control, frame.Header(kind, 0, generation, word, comm.size - 1 if rank is None else rank))
    if comm.rank < comm.size - 1:
        refused = None
        while refused is None:  # Send may return before the message is there
            control.read()
            refused = control._refused
        with pytest.raises(gq.WireError, match=r"no reason to send|no frame"):
            control.raise_refused()
    comm.Barrier()
    works(comm, allreduce)
    works(comm, gq.Allreduce("direct/onebit/ef", comm=own, timeout=20))


def test_an_abort_names_no_more_objects_than_are_remembered(comm):
    """What more a rank sends is refused, and takes no memory."""
    own, last = comm.Dup(), comm.size - 1
    control = gq.Allreduce("direct/onebit/ef", comm=own, timeout=20).home.control
    if comm.rank == last:
        for number in range(1030):
            message = bytearray(frame.SIZE)
            frame.Header(frame.OBJECT, 0, 1, number, last).write(message)
            for to in range(last):
                control._comm.Send([message, MPI.BYTE], to, 0)
    elif comm.size > 1:
        abort = frame.Header(frame.ABORT, 0, 1, WHY, last)
        while control._refused is None and len(control.named_by(abort)) < 1030:
            control.read()
        assert control.named_by(abort) == set(range(1024))
    comm.Barrier()


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("kind", [frame.PRESENT, frame.ABSENT])
def test_ranks_other_than_0_are_told_no_word_of_others(comm, kind):
    own = comm.Dup()
    control = gq.Allreduce("raw", comm=own, timeout=20).home.control
    told(comm, control, frame.Header(kind, 0, 1, 1, comm.size - 1))
    if 0 < comm.rank < comm.size - 1:
        while control._refused is None:
            control.read()
    comm.Barrier()


def test_a_refused_message_makes_no_rank_leave_out_a_call(comm):
    """Each step sums what all ranks give in that step, or is an error on all ranks."""
    own = comm.Dup()
    allreduce = gq.Allreduce("ring/raw", comm=own, timeout=5)
    allreduce(np.zeros(4, np.float32), key="w")
    told(comm, allreduce.home.control, frame.Header(frame.DATA, 0, 1, 0, comm.size - 1))
    for step in range(1, 4):
        array = np.full(4, step * 100.0**comm.rank, np.float32)
        try:
            allreduce(array, key="w")
        except gq.Error:
            array[:] = np.nan
        results = comm.allgather(float(array[0]))
        expected = step * sum(100.0**rank for rank in range(comm.size))
        assert results in ([expected] * comm.size, results if np.isnan(results).all() else None), results


@pytest.mark.parametrize("length", [5000, 200_000])
def test_messages_on_a_communicator_that_was_freed_harm_no_other(comm, length):
    own = comm.Dup()
    allreduce = gq.Allreduce("raw", comm=own, timeout=20)
    control, held = allreduce.home.control, (None, [])
    comm.Barrier()
    if comm.rank == comm.size - 1:
        held = flood(comm, control._comm, [0], length, 3)
    comm.Barrier()
    allreduce.close()
    own.Free()
    for _ in range(2):
        works(comm, gq.Allreduce("direct/onebit/ef", comm=comm, timeout=20))
    drained(comm, control._comm, held)

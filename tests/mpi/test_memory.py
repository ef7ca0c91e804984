"""What an allreduce takes of memory: bounded by the buffer, nothing per call, nothing left over."""

import contextlib
import gc
import os
import sys
import time
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
from ranks import TIMEOUT, inputs

import gqallreduce as gq
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime import plans
from gqallreduce.scheduling import model
from gqallreduce.transport.waiting import abandoned

pytestmark = pytest.mark.mpi
MIB = 1 << 20
PROC = Path("/proc/self")
on_linux = pytest.mark.skipif(not os.access(PROC / "clear_refs", os.W_OK), reason="no /proc/self/clear_refs here")


def most_bytes(call, count=1):
    """The most bytes that a call holds beyond what there was before it; of `count` calls, the least such number."""
    gc.collect()
    tracemalloc.start()
    try:
        peaks = []
        for _ in range(count):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            call()
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return min(peaks)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("feedback", ["", "/ef"])
@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("schedule", ["direct", "ring"])
def test_memory_beyond_the_buffer(comm, schedule, codec, feedback):
    """At most 3.0 times its size with /ef (two residuals and workspace), 1.2 times without."""
    array = inputs(1, (MIB,))[0]

    def calls():
        allreduce = gq.Allreduce(f"{schedule}/{codec}{feedback}", comm=comm, timeout=TIMEOUT)
        for _ in range(3):
            allreduce(array, key="w")

    gq.Allreduce(f"{schedule}/{codec}{feedback}", comm=comm)(np.ones(10, np.float32), key="w")
    peak = most_bytes(calls)
    assert peak <= (3.0 if feedback else 1.2) * array.nbytes, f"{peak / array.nbytes:.2f} times the buffer"


@pytest.mark.parametrize("elements", [1000, MIB])
@pytest.mark.parametrize("scheme", [f"{schedule}/raw" for schedule in sorted(SCHEDULES)] + ["direct/onebit/ef"])
def test_a_call_allocates_next_to_nothing(comm, scheme, elements):
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    array = inputs(1, (elements,))[0] * 1e-3
    for _ in range(5):
        allreduce(array, key="w")
    # Timing decides how many messages are under way at once: a call may need one buffer more than any before it.
    # What every call allocates is in the least of them too; `test_memory_beyond_the_buffer` bounds the buffers.
    assert most_bytes(lambda: allreduce(array, key="w"), count=15) < 64 << 10


def blocks_left_by(call, count, warm=20):
    """Objects that `count` calls leave behind (counted without tracing, which is slow)."""
    for _ in range(warm):
        call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(count):
        call()
    gc.collect()
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize(
    ("scheme", "count"), [("direct/raw", 2000), ("ring/qsgd/ef", 300), ("recursive_doubling/adaptive(pi=4)/ef", 300)]
)
def test_nothing_grows(comm, scheme, count):
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    array = np.zeros(200, np.float32)
    left_behind = len(abandoned)

    def call():
        array[:] = comm.rank
        allreduce(array, key="w")

    assert blocks_left_by(call, count if comm.size < 4 else count // 4) < 100
    assert len(abandoned) == left_behind


def test_nothing_grows_by_errors(comm):
    """NaN once in a while is a step skipped, not a leak."""
    allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    array = np.zeros(5000, np.float32)

    def call():
        array[:] = np.nan
        with pytest.raises(gq.NonFiniteError):
            allreduce(array, key="w")
        array[:] = 1
        allreduce(array, key="w")

    assert blocks_left_by(call, 100) < 100


@pytest.mark.mpi(min_size=2)
def test_nothing_grows_by_timeouts(comm):
    """One rank comes late, the others give up, and all make a new object: but for a communicator nothing is kept."""

    def call():
        allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)
        array = np.ones(5000, np.float32)
        allreduce(array, key="w")
        allreduce.timeout = 0.1
        if comm.rank == comm.size - 1:
            time.sleep(0.3)
        with pytest.raises(gq.Error):
            allreduce(array, key="w")
        comm.Barrier()

    assert blocks_left_by(call, 6, warm=4) < 200


@pytest.mark.parametrize("elements", [1000, MIB])
def test_a_dense_call_allocates_next_to_nothing(comm, elements, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    monkeypatch.setattr(model, "choose", lambda *_: (model.DENSE, "forced"))
    allreduce = gq.Allreduce("auto/raw", comm=comm, timeout=TIMEOUT)
    array = np.zeros(elements, np.float32)
    for _ in range(3):
        allreduce(array, key="w")
    peak = most_bytes(lambda: allreduce(array, key="w"), count=3)
    assert peak < (64 << 10) + elements  # one byte per element says what is finite


@pytest.mark.parametrize(
    "scheme",
    [*(f"direct/{codec}" for codec in sorted(CODECS)), "ring/qsgd/ef", "recursive_doubling/onebit/ef", "dense"],
)
@pytest.mark.parametrize("group", [False, True])
def test_a_buffer_is_free_as_soon_as_its_call_is_over(comm, scheme, group):
    """Nothing keeps it until Python looks for cycles: gradients are large."""
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            arrays = [np.ones(size, np.float32) for size in (1000, 50, 70000)]
            kept = [weakref.ref(array) for array in arrays]
            if group:
                allreduce(arrays, key=["a", "b", "c"])
            else:
                for number, array in enumerate(arrays):
                    allreduce.start(array, key=str(number)).wait()
                    allreduce(array, key=str(number))
                    del array
            arrays.clear()
            assert [each() is None for each in kept] == [True] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize("runtime", ["native", "python"])
@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "direct/topk(k=3)", "ring/qsgd", "direct/terngrad"])
@pytest.mark.parametrize("wrong", ["a NaN", "an out of another shape"])
def test_a_buffer_is_free_after_an_error_too(comm, monkeypatch, runtime, scheme, wrong):
    """As soon as the caller drops the error: a step that is skipped keeps no gradient."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    gc.collect()
    gc.disable()
    try:
        for group in (False, True):
            array = np.ones(5000, np.float32)
            kept, out = weakref.ref(array), None
            if wrong == "a NaN":
                array[70] = np.nan
            else:
                out = np.ones(3, np.float32)
            given = ([array], ["w"], out if out is None else [out]) if group else (array, "w", out)
            raised = None
            try:
                allreduce(given[0], key=given[1], out=given[2])
            except (gq.NonFiniteError, ValueError) as error:
                raised = type(error)
            del array, given
            assert raised is not None
            assert kept() is None
    finally:
        gc.enable()


# --- of the process, with what C++ takes ---


def resident(name: str) -> int:
    """Bytes of the process in memory: now (VmRSS), or the most since `clear_refs` was written (VmHWM)."""
    found = dict(line.split(":", 1) for line in (PROC / "status").read_text().splitlines())
    return 1024 * int(found[name].split()[0])


@on_linux
@pytest.mark.parametrize("scheme", ["direct/qsgd(bits=4)/ef", "direct/adaptive(pi=4)/ef", "ring/topk(k=9, sums=union)"])
def test_a_hundred_thousand_calls_take_no_more_memory(comm, scheme):
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    arrays, keys = [np.full(size, 1e-3, np.float32) for size in (100, 3, 40)], ["a", "b", "c"]

    def calls(count):
        for _ in range(count // 4):
            for array, key in zip(arrays, keys, strict=True):
                array[:] = 1e-3
                allreduce(array, key=key)
            allreduce(arrays, key=keys)

    many = 100_000 if comm.size <= 2 else 4_000
    calls(many // 5)
    gc.collect()
    before = resident("VmRSS")
    calls(many)
    gc.collect()
    assert resident("VmRSS") - before < MIB // 2


@on_linux
@pytest.mark.parametrize(
    "scheme",
    [
        "direct/onebit/ef", "direct/qsgd(bits=4)", "ring/eden/ef", "direct/adaptive(pi=64)/ef", "ring/adaptive(pi=64)",
        "direct/topk(ratio=0.01)/ef", "direct/topk(ratio=0.01, sums=union)/ef", "direct/thc(bits=4)/ef", "ring/raw",
    ],
)  # fmt: skip
def test_what_the_process_takes_beyond_the_buffer(comm, scheme):
    """As test_memory_beyond_the_buffer, but all memory of the process counts; 4 MiB are left for what Python keeps."""
    array = inputs(1, (4 * MIB,))[0]
    gq.Allreduce(scheme, comm=comm)(np.ones(10, np.float32), key="w")
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)
    gc.collect()
    (PROC / "clear_refs").write_text("5")
    before = resident("VmRSS")
    for _ in range(3):
        allreduce(array, key="w")
    peak = resident("VmHWM") - before
    most = 3.0 if allreduce.scheme.feedback else 1.2
    assert peak <= most * array.nbytes + 4 * MIB, f"{peak / array.nbytes:.2f} times the buffer"


@pytest.mark.parametrize("what", ["a shape", "a group", "a checkpoint"])
def test_plans_of_calls_that_count_nowhere_do_not_pile_up(comm, what, monkeypatch):
    """Of calls that failed, and of those before a state was loaded."""
    monkeypatch.setattr(plans, "GROUPS_MOST", 20)
    allreduce = gq.Allreduce("direct/raw/ef", comm=comm, timeout=TIMEOUT)
    nothing = allreduce.state_dict()

    def call(number):
        if what == "a checkpoint":
            allreduce(np.ones(number + 1, np.float32), key="w")
            allreduce.load_state_dict(nothing)
            return
        given, key = np.full(number + 1, np.nan, np.float32), "w"
        if what == "a group":
            given, key = [given, np.ones(3, np.float32)], [f"w{number}", "b"]
        with pytest.raises(gq.NonFiniteError):
            allreduce(given, key=key)

    for number in range(70):
        call(number)
        assert len(allreduce.plans._plans) <= 22


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ["direct/raw", "direct/onebit/ef", "ring/qsgd/ef"])
@pytest.mark.parametrize("runtime", ["native", "python"])
def test_of_a_call_given_up_its_messages_alone_are_kept(comm, scheme, runtime, monkeypatch):
    """A long message that no rank receives stays with MPI for good; not so the object, its residuals and buffers."""
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    monkeypatch.setenv("GQALLREDUCE_EXPOSE", "0")  # of the making of the link: what is exposed is in no message
    left_behind, kept = len(abandoned), []
    for _ in range(3):
        allreduce, array = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), np.ones(MIB, np.float32)
        allreduce(array, key="w")
        allreduce.timeout = 0.2
        comm.Barrier()
        if comm.rank == comm.size - 1:
            time.sleep(0.5)
        with pytest.raises(gq.Error):
            allreduce(array, key="w")
        comm.Barrier()
        kept += [weakref.ref(array), weakref.ref(allreduce)]
        if scheme.endswith("/ef"):
            kept.append(weakref.ref(allreduce.memory.get("w").residual))
        del allreduce, array
    gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT).close()
    gc.collect()
    assert max(comm.allgather(len(abandoned) - left_behind)) > 0  # on the rank that came late
    assert [each() is None for each in kept] == [True] * len(kept)


@pytest.mark.parametrize("waited", [0, 2])
def test_requests_dropped_after_an_error_go_although_frames_are_kept(comm, waited):
    """Two values are not finite: the error of the second call, which no one waits for, keeps nothing of the caller."""
    other = gq.Allreduce("direct/raw", comm=comm, timeout=TIMEOUT)

    def step():
        allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=TIMEOUT)
        arrays = [np.ones(500, np.float32) for _ in "abc"]
        arrays[0][3] = arrays[1][3] = np.nan
        requests = [allreduce.start(array, key=key) for array, key in zip(arrays, "abc", strict=True)]
        kept.extend(map(weakref.ref, [allreduce, *requests, *arrays]))
        requests[waited].wait()

    for _ in range(5):
        kept = []
        with contextlib.suppress(gq.NonFiniteError):
            step()
        gc.collect()
        gq.Allreduce("direct/raw", comm=comm, timeout=TIMEOUT).close()  # finishes the calls
        other(np.ones(5, np.float32), key="w")  # looks at what was dropped
        gc.collect()
        assert [each() is None for each in kept] == [True] * 7
        assert not other.home.unclaimed

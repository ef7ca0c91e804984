"""What an allreduce takes of memory: bounded by the buffer, nothing per call, nothing left over."""

import gc
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from ranks import TIMEOUT, inputs

import gqallreduce as gq
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.scheduling import model
from gqallreduce.transport.waiting import abandoned

pytestmark = pytest.mark.mpi
MIB = 1 << 20


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


def blocks_left_by(call, count):
    """Objects that `count` calls leave behind (counted without tracing, which is slow)."""
    for _ in range(20):
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


@pytest.mark.parametrize("elements", [1000, MIB])
def test_a_dense_call_allocates_next_to_nothing(comm, elements, monkeypatch):
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

"""Calls go on in a thread of the runtime while their caller computes, and end well where that cannot go on."""

import pytest
import scripts

HEAD = """
import json, os, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq

comm = MPI.COMM_WORLD
report = []
SIZE = 50_000

def sum_of_ranks(values):
    return float(values[0]) == comm.size * (comm.size + 1) / 2

def becomes(found, seconds=20):
    "Is it so within this time, in which this rank makes no call of the package?"
    until = time.perf_counter() + seconds
    while not found() and time.perf_counter() < until:
        time.sleep(0.001)
    return found()

def values():
    return np.full(SIZE, comm.rank + 1, np.float32)
"""


@pytest.fixture
def ranks(tmp_path):
    """Return a function that runs a script on some ranks and gives their reports."""
    return lambda script, size: scripts.run(tmp_path, HEAD + script, size, 100)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("schedule", ["direct", "ring", "recursive_doubling"])
def test_results_are_there_although_no_rank_makes_a_call(ranks, schedule, size):
    script = f"""
with gq.Allreduce("{schedule}/raw") as allreduce:
    allreduce(values(), key="a"), allreduce(values(), key="b")
    arrays = [values(), values()]
    requests = [allreduce.start(array, key=key) for array, key in zip(arrays, "ab")]
    report.append([becomes(lambda: sum_of_ranks(array)) for array in arrays])
    gq.wait_all(requests)
    report.append(allreduce.stats.total.messages > 0)
"""
    assert ranks(script, size) == [[[True, True], True]] * size


def test_without_it_calls_advance_inside_calls_alone(ranks, monkeypatch):
    monkeypatch.setenv("GQALLREDUCE_PROGRESS", "calls")
    script = """
with gq.Allreduce("recursive_doubling/raw") as allreduce:
    allreduce(values(), key="a")
    array = values()
    comm.Barrier()
    if comm.rank:
        time.sleep(0.5)  # the others have nothing from it when they start
    request = allreduce.start(array, key="a")
    report.append(comm.rank > 0 or not becomes(lambda: sum_of_ranks(array), 1.5))
    comm.Barrier()
    request.wait()
    report.append(sum_of_ranks(array))
"""
    assert ranks(script, 3) == [[True, True]] * 3


def test_what_the_thread_has_finished_is_not_waited_for(ranks):
    script = """
with gq.Allreduce("direct/raw") as allreduce:
    allreduce(values(), key="a")
    comm.Barrier()
    array = values()
    request = allreduce.start(array, key="a")
    report.append(becomes(lambda: sum_of_ranks(array)))
    comm.Barrier()
    time.sleep(0.3)  # until all that it sent has left
    request.wait()
    report.append(request.stats.wait)
"""
    assert ranks(script, 2) == [[True, 0.0]] * 2


@pytest.mark.parametrize("progress", ["thread", "calls"])
@pytest.mark.parametrize("scheme", ["direct/raw", "ring/raw", "topk(ratio=0.1)/ef"])
def test_a_call_that_is_ready_later_on_some_ranks_keeps_its_place(ranks, monkeypatch, scheme, progress):
    """A new key agrees first, which takes longer on one rank: a known key that was started after it comes after it."""
    monkeypatch.setenv("GQALLREDUCE_PROGRESS", progress)
    size = 1 << (22 if "topk" in scheme else 20)
    script = f"""
allreduce = gq.Allreduce("{scheme}", timeout=20)
first, second = np.ones((2, {size}), np.float32)
allreduce(second, key="known")
comm.Barrier()
requests = [allreduce.start(first, key="new")]
until = time.perf_counter() + (0.3 if comm.rank else 0)
while time.perf_counter() < until:
    requests[0].test()
requests.append(allreduce.start(second, key="known"))
gq.wait_all(requests)
report.append("done")
"""
    assert ranks(script, 3) == [["done"]] * 3


def test_a_communicator_that_is_freed_with_calls_under_way(ranks):
    script = """
for step in range(25):
    mine = comm.Dup()
    allreduce = gq.Allreduce("ring/qsgd(bits=4)/ef", comm=mine, timeout=20)
    arrays = {f"key {number}": np.full(1 << 16, comm.rank + 1.0, np.float32) for number in range(8)}
    for key, array in arrays.items():
        allreduce(array, key=key)
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(0.02)
    requests = [allreduce.start(array, key=key) for key, array in arrays.items()]
    mine.Free()
    gq.wait_all(requests)
    found = comm.allgather(b"".join(array.tobytes() for array in arrays.values()))
    assert len(set(found)) == 1
report.append("done")
"""
    assert ranks(script, 2) == [["done"]] * 2


def test_a_value_that_is_not_finite_waits_for_the_caller(ranks):
    """The thread stops there; what all raise is raised in `wait`, and the next call goes on."""
    script = """
with gq.Allreduce("direct/qsgd/ef") as allreduce:
    allreduce(values(), key="a")
    array = values()
    array[SIZE - 7] = np.nan if comm.rank == 1 else 1
    request = allreduce.start(array, key="a")
    time.sleep(0.2)
    try:
        request.wait()
    except gq.NonFiniteError as error:
        report.append((error.rank, error.key, error.index))
    allreduce(values(), key="a")
"""
    assert ranks(script, 3) == [[[1, "a", 49_993]]] * 3


@pytest.mark.parametrize("making", ["gq.Allreduce('direct/raw', comm=comm)", "gq.Allreduce('dense', comm=comm.Dup())"])
def test_an_object_is_made_while_calls_of_a_communicator_that_was_freed_are_under_way(ranks, making):
    """What these calls need of the MPI is freed after them."""
    script = f"""
for step in range(5):
    mine = comm.Dup()
    allreduce = gq.Allreduce("direct/onebit/ef", comm=mine, timeout=20)
    array = np.full(1 << 18, comm.rank + 1.0, np.float32)
    if comm.rank == 1:
        time.sleep(0.1)
    request = allreduce.start(array, key="a")
    mine.Free()
    other = {making}
    request.wait()
    assert len(set(comm.allgather(array.tobytes()))) == 1
    try:
        allreduce(array, key="a")
    except gq.Error as error:
        assert "was freed" in str(error)
report.append("done")
"""
    assert ranks(script, 2) == [["done"]] * 2


@pytest.mark.parametrize(
    "attempt",
    [
        "request.wait()", "request.test()", "gq.wait_all([request])", "allreduce(array, key='b')",
        "allreduce.start(array)", "gq.quantized_allreduce(array, 'raw')", "gq.Allreduce('raw')",
        "allreduce.flush()",
    ],
)  # fmt: skip
def test_what_is_asked_after_mpi_finalize_is_an_error_of_ours(ranks, attempt):
    """The MPI would end the job."""
    script = f"""
rank, array = comm.rank, values()
allreduce = gq.Allreduce("direct/onebit/ef", timeout=20)
allreduce(values(), key="b")
request = allreduce.start(values(), key="a") if comm.rank else None
time.sleep(0.1)
if not comm.rank:
    request = allreduce.start(values(), key="a")
MPI.Finalize()
try:
    {attempt}
except gq.Error as error:
    report.append("MPI_Finalize was called" in str(error))
with open(f"{{sys.argv[1]}}/{{rank}}.json", "w") as file:
    json.dump(report, file)
sys.exit(0)
"""
    assert ranks(script, 2) == [[True]] * 2


@pytest.mark.parametrize("end", ["MPI.Finalize()", "request = allreduce = None", "pass"])
def test_the_end_of_mpi_or_of_the_process_with_calls_under_way(ranks, end):
    """Of which one rank has started none, so that the thread of the others has something to do until then."""
    script = f"""
mine = comm.Dup()
allreduce = gq.Allreduce("direct/raw", comm=mine)
allreduce(values(), key="a")
request = allreduce.start(values(), key="a") if comm.rank else None
time.sleep(0.2)
report.append("came to the end")
with open(f"{{sys.argv[1]}}/{{comm.rank}}.json", "w") as file:
    json.dump(report, file)
{end}
sys.exit(0)
"""
    assert ranks(script, 3) == [["came to the end"]] * 3


def test_a_child_process_frees_an_engine_with_a_thread(ranks):
    script = """
import gc
gc.disable()
mine = comm.Dup()

def leave_garbage():
    allreduce = gq.Allreduce("direct/qsgd(bits=4)/ef", comm=mine, timeout=20)
    array = np.ones(1 << 18, np.float32)
    allreduce(array, key="a")
    comm.Barrier()
    if comm.rank:
        time.sleep(0.05)
    request = allreduce.start(array, key="a")
    time.sleep(0.1)
    request.wait()
    allreduce.close()

leave_garbage()
mine.Free()
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(4)
report.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert ranks(script, 2) == [[4]] * 2


def test_a_child_process_ends_without_the_thread(ranks):
    script = """
allreduce = gq.Allreduce("direct/raw")
allreduce(values(), key="a")
request = allreduce.start(values(), key="a")
child = os.fork()
if child == 0:
    del request, allreduce
    os._exit(3)
report.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
request.wait()
"""
    assert ranks(script, 2) == [[3]] * 2


def test_a_child_process_is_refused_and_leaves_calls_to_its_parent(ranks):
    script = """
allreduce = gq.Allreduce("direct/raw")
allreduce(values(), key="a")
array = values()

def refusal(call):
    "What the error of a call says."
    try:
        call()
    except gq.Error as error:
        return str(error)

def find_out():
    calls = [
        request.wait,
        lambda: allreduce(values(), key="a"),
        lambda: gq.quantized_allreduce(values(), "raw"),
        lambda: gq.Allreduce("raw", comm=MPI.COMM_SELF),
    ]
    found = [refusal(call) for call in calls]
    from gqallreduce.transport import home
    home._end_of_interpreter()  # what runs at exit; MPI's own end would wait for the parent
    return found

if comm.rank:
    comm.Barrier()
request = allreduce.start(array, key="a")
if comm.rank == 0:  # whose call waits for the other rank
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(find_out()).encode())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    report.append(["is a fork of" in each for each in json.loads(os.read(read, 10_000))])
    comm.Barrier()
request.wait()
report.append(sum_of_ranks(array))
allreduce(values(), key="a")
"""
    assert ranks(script, 2) == [[[True] * 4, True], [True]]

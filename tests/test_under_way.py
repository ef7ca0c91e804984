"""What becomes of calls under way when one fails, or a rank is silent, leaves or is interrupted."""

import subprocess
import sys

import pytest
import scripts

HEAD = """
import json, os, signal, sys, threading, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce.runtime import memory

comm = MPI.COMM_WORLD
side = comm.Dup()
report = []
KEYS = "abcdef"

def make(scheme="direct/onebit/ef", seconds=1.0):
    return gq.Allreduce(scheme, comm=comm, timeout=seconds)

def said(call, *arguments, **options):
    "The name of the error, or None."
    try:
        call(*arguments, **options)
        return "None"
    except BaseException as error:
        return type(error).__name__

def start(allreduce, keys=KEYS, size=500):
    return [allreduce.start(np.full(size + ord(key), comm.rank + 1.0, np.float32), key=key) for key in keys]

def meet():
    "All ranks, however late."
    request = side.Ibarrier()
    while not request.Test():
        time.sleep(0.002)

def works(allreduce):
    for step in range(2):
        array = np.arange(40, dtype=np.float32) * (comm.rank + 1)
        allreduce(array, key="after")
        assert len(set(comm.allgather(array.tobytes()))) == 1
"""


@pytest.fixture
def ranks(tmp_path):
    """Return a function that runs a script on some ranks and gives their reports."""
    return lambda script, size: scripts.run(tmp_path, HEAD + script, size, 100)


@pytest.mark.parametrize("known", [False, True])
def test_a_silent_rank_ends_all_calls_under_way(ranks, known):
    """On every other rank alike; the objects refuse further calls; one that had none under way goes on."""
    script = f"""
one, two, bystander = make(), make("ring/raw"), make("direct/qsgd", 30)
works(bystander)
if {known}:
    gq.wait_all(start(one) + start(two))
meet()
if comm.rank == 1:
    time.sleep(3)
    requests = []
else:
    requests = start(one) + start(two)
report.append([said(request.wait) for request in requests])
meet()
works(make(seconds=30))
report.append((one.unusable is not None, two.unusable is not None, bystander.unusable is not None))
works(bystander)
"""
    for rank, (waited, ended) in enumerate(ranks(script, 3)):
        assert waited == ([] if rank == 1 else ["TimeoutError"] * 12)
        assert ended[2] is False
        assert rank == 1 or ended[:2] == [True, True]


@pytest.mark.parametrize("size", [2, 3])
def test_calls_started_in_another_order_are_told(ranks, size):
    """At first by the agreement, for which each has an error of its own; later by their messages."""
    script = """
allreduce = make(seconds=20)
keys = KEYS if comm.rank else KEYS[::-1]
report.append([said(request.wait) for request in start(allreduce, keys)])
report.append(allreduce.unusable)
gq.wait_all(start(allreduce))
report.append(said(lambda: gq.wait_all(start(allreduce, keys))))
report.append(allreduce.unusable is not None)
meet()
works(make(seconds=20))
"""
    reports = ranks(script, size)
    for first, usable, later, unusable in reports:
        assert first == ["MismatchError"] * 6
        assert usable is None
        assert later in ("MismatchError", "Error")
        assert unusable
    assert "MismatchError" in [report[2] for report in reports]


@pytest.mark.parametrize("odd", [0, 1])
def test_an_interrupt_ends_all_calls_under_way_on_all_ranks(ranks, odd):
    """Of two objects; those of calls that had ended before on all ranks, and were waited for, stay."""
    script = f"""
one, two, before = make(seconds=20), make("ring/raw", 20), make("direct/qsgd", 20)
gq.wait_all(start(before))
meet()

def interrupted(*_):
    raise KeyboardInterrupt

whole = memory.Memory.commit
if comm.rank == {odd}:
    memory.Memory.commit = interrupted

def train():
    errors = []
    for request in start(one) + (start(two) if comm.rank != {odd} else []):
        errors.append(said(request.wait))
    raise [KeyboardInterrupt, gq.Error]["KeyboardInterrupt" not in errors]

report.append(said(train))
memory.Memory.commit = whole
meet()
report.append((said(one, np.ones(5, np.float32), key="z"), said(two, np.ones(5, np.float32), key="z")))
meet()
report.append([each.unusable is not None for each in (one, two, before)])
works(make(seconds=20))
"""
    reports = ranks(script, 2)
    assert [report[0] for report in reports] == ["KeyboardInterrupt" if rank == odd else "Error" for rank in range(2)]
    assert all(report[1][0] == "Error" for report in reports)
    assert all(report[2][0] and not report[2][2] for report in reports), reports


def test_an_interrupt_at_any_line_with_calls_under_way(ranks):
    """Of start, test and wait: all ranks agree on what counts, or all objects end; new objects work."""
    script = """
FOLDER = os.path.dirname(gq.__file__)

class Stop(BaseException):
    pass

class Interrupted:
    "Stop is raised on rank `odd` at the n-th line of this package that it comes to."
    def __init__(self, odd, n):
        self.left, self.here = n, comm.rank == odd
    def trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise Stop()
        return self.trace
    def __enter__(self):
        if self.here:
            sys.settrace(self.trace)
    def __exit__(self, *_):
        sys.settrace(None)

def work(allreduce):
    requests = start(allreduce, "abc", 50)
    while not requests[1].test():
        pass
    gq.wait_all(requests)

def make_and_work():
    work(make(seconds=30))

n, left = 1, 0
while n < 20000 and left <= 0:
    allreduce = make(seconds=30)
    work(allreduce)
    meet()
    interrupted = Interrupted(n // 37 % 2, n)
    with interrupted:
        first = said(work, allreduce)
    if first == "None" and not interrupted.here:
        first = said(work, allreduce)
    assert first in ("None", "Stop", "Error", "MismatchError"), (n, first)
    interrupted.here = False
    while (then := said(make_and_work)) in ("Error", "MismatchError"):
        pass
    assert then == "None", (n, first, then)
    meet()
    works(make(seconds=30))
    left = comm.bcast(interrupted.left, n // 37 % 2)
    n += 37
report.append(n)
"""
    assert all(n > 500 for (n,) in ranks(script, 2))


def test_a_thread_that_calls_while_another_does_is_refused(ranks):
    """At once, on whichever object of the communicator; the call under way goes on. On another communicator it may."""
    script = """
one, two, apart = make(seconds=30), make("ring/raw", 30), gq.Allreduce("ring/raw", comm=side, timeout=30)
works(one)
done = []
thread = threading.Thread(target=lambda: done.append(said(one, np.ones(50, np.float32), key="w")))
meet()
if comm.rank == 0:
    thread.start()
    time.sleep(0.3)  # it waits for rank 1
    request = None
    for call in (one, two, one.start, two.start):
        report.append(said(call, np.ones(50, np.float32), key="v"))
    report.append(said(one.flush))
    report.append(said(make))
    meet()
    thread.join()
else:
    time.sleep(0.6)
    done.append(said(one, np.ones(50, np.float32), key="w"))
    meet()
report.append(done)
works(one)
works(two)
"""
    first, second = ranks(script, 2)
    assert first == ["Error"] * 6 + [["None"]]
    assert second == [["None"]]


def test_the_end_of_the_interpreter_with_calls_under_way(tmp_path):
    """Says so, and tells the others; nothing hangs."""
    script = """
allreduce = make(seconds=30)
gq.wait_all(start(allreduce))
if comm.rank == 0:
    requests = start(allreduce)
    sys.exit()
requests = start(allreduce, KEYS + "g")
print("rank 1:", [said(request.wait) for request in requests], flush=True)
"""
    (tmp_path / "script.py").write_text(HEAD + script)
    done = subprocess.run(
        [scripts.MPIRUN, "-n", "2", sys.executable, tmp_path / "script.py"],
        env={**scripts.os.environ, "MPIEXEC_TIMEOUT": "60", "OMP_NUM_THREADS": "1"},
        cwd=scripts.Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert "given up at exit" in done.stderr, done.stderr
    assert "the call of key 'f'" in done.stderr
    assert "rank 1:" in done.stdout
    assert "'Error'" in done.stdout
    assert "Timeout" not in done.stdout

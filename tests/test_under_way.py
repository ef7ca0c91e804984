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
from gqallreduce.coding import frame
from gqallreduce.runtime import memory
from gqallreduce.transport import control, link, progress

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


@pytest.mark.parametrize("known", [pytest.param(False, marks=pytest.mark.slow), True])
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


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("waits", [False, True])
def test_an_object_with_a_call_beside_an_invalid_one_ends_on_all_ranks_alike(ranks, size, waits):
    """Also on the rank whose call was invalid: it has not begun the other call, if it waited for the first one, or has
    heard at its start that the others gave both up."""
    script = f"""
one, two, three = make(seconds=5), make("direct/qsgd(bits=4)/ef", 5), make("ring/raw", 5)
def array(size=500):
    return np.full(size, comm.rank + 1.0, np.float32)
for each in (one, two, three):
    each(array(), key="w")
meet()
invalid = comm.rank == 1

def step():
    request = one.start(array(7 if invalid else 500), key="w")
    if invalid and {waits}:
        request.wait()
    two.start(array(), key="w").wait()

report.append(said(step))
meet()
ends = said(two, array(), key="w")
report.append((ends, one.unusable is not None, two.unusable is not None, three.unusable is not None))
meet()
works(three)
works(make(seconds=20))
"""
    reports = ranks(script, size)
    assert [report[0] for report in reports] == [["MismatchError", "ValueError"][rank == 1] for rank in range(size)]
    assert [report[1] for report in reports] == [["Error", True, True, False]] * size


TWO_GIVE_UP = """
one, two, three = make(seconds=10), make("direct/qsgd(bits=4)/ef", 10), make("ring/raw", 10)
for each in (one, two, three):
    each(np.ones(500, np.float32), key="w")
meet()

def interrupted(*_, **__):
    raise KeyboardInterrupt

def step():
    "Rank 0 waits in a call of `one`, in which rank 1 is interrupted; and so is rank 2, with one of `two` beside it."
    if comm.rank == 2:
        requests = [each.start(np.ones(500, np.float32), key="w") for each in (one, two)]
        side.send(None, 1)
        progress.Progress.run = interrupted
        requests[0].wait()
    if comm.rank == 1:
        side.recv(source=2)  # It has started both: what it hears later cannot keep it from that.
        progress.Progress.run = interrupted
        one.start(np.ones(500, np.float32), key="w").wait()
    one(np.ones(500, np.float32), key="w")

def end_alike():
    run = progress.Progress.run
    report.append(said(step))
    progress.Progress.run = run
"""


def test_an_object_that_ended_on_one_rank_is_not_waited_for_in_a_meeting(ranks):
    """Two ranks give up on their own, one of them a call of another object too, of which the others hear late."""
    script = """
abort = control.Control.abort
if comm.rank == 2:
    control.Control.abort = lambda *given: (time.sleep(1.0), abort(*given))
end_alike()
began = time.perf_counter()
report.append(said(two, np.ones(500, np.float32), key="w"))
report.append(time.perf_counter() - began < 8)
report.append((one.unusable is not None, two.unusable is not None, three.unusable is not None))
meet()
while said(lambda: works(three)) != "None":
    pass
works(make(seconds=20))
"""
    for report in ranks(TWO_GIVE_UP + script, 3):
        assert report[0] in ("KeyboardInterrupt", "Error")
        assert report[1:] == ["Error", True, [True, True, False]]


def test_an_object_ends_too_if_that_is_heard_when_ranks_have_met(ranks):
    """Rank 1 hears of what rank 2 has given up on the former duplicate when the new one is there."""
    script = """
held, send, names = [], control.Control._send, link.Link._meet

def send_to_0(channel, peers, *headers):
    if headers[-1].kind == frame.ABORT:
        held.append((channel, headers))
        peers = [0]
    send(channel, peers, *headers)

def send_rest(*given):
    while held:
        channel, headers = held.pop()
        send(channel, [1], *headers)
    time.sleep(0.2)
    return names(*given)

if comm.rank == 2:
    control.Control._send, link.Link._meet = send_to_0, send_rest
end_alike()
meet()
while said(lambda: works(three)) != "None":
    pass
report.append((one.unusable is not None, two.unusable is not None, three.unusable is not None))
"""
    for report in ranks(TWO_GIVE_UP + script, 3):
        assert report[1:] == [[True, True, False]]


@pytest.mark.parametrize("size", [2, 3])
def test_an_object_goes_on_where_a_rank_gave_up_a_call_of_another_one_that_others_never_made(ranks, size):
    """The next call of the others would have the number of that call."""
    script = """
one, two = make(seconds=1), make("direct/qsgd(bits=4)/ef", 20)
for each in (one, two):
    each(np.ones(500, np.float32), key="w")
meet()
report.append(said(one, np.ones(500, np.float32), key="w") if comm.rank == 1 else "None")
meet()
for _ in range(2):
    report.append(said(two, np.ones(500, np.float32), key="w"))
meet()
report.append((one.unusable is not None, two.unusable is not None))
"""
    for rank, report in enumerate(ranks(script, size)):
        assert report == [["None", "TimeoutError"][rank == 1], "None", "None", [True, False]]


@pytest.mark.parametrize("size", [2, 3])
def test_of_two_objects_that_are_crossed_the_same_goes_on_on_all_ranks(ranks, size):
    """Rank 1 alone sees that the calls differ, and gives up that of its object; the others have begun another one."""
    script = """
one, two = make(seconds=20), make("ring/raw", 20)
for each in (one, two):
    each(np.ones(500, np.float32), key="w")
meet()

def step():
    if comm.rank == 1:
        time.sleep(0.3)
        one(np.ones(500, np.float32), key="w")
    else:
        request = two.start(np.ones(500, np.float32), key="w")
        time.sleep(1)
        request.wait()

report.append(said(step))
meet()
report.append(said(two, np.ones(500, np.float32), key="w"))
meet()
report.append(one.unusable == two.unusable)
report.append((one.unusable is not None, two.unusable is not None))
works(make(seconds=20))
"""
    reports = ranks(script, size)
    assert all(report[0] in ("MismatchError", "Error") for report in reports)
    assert len({str(report[1:]) for report in reports}) == 1, reports
    assert any(reports[0][3])


def test_a_rank_whose_connection_is_broken_hears_of_calls_that_it_has_not_begun(ranks):
    """Rank 0 gives up a call that succeeded on rank 1; that one is interrupted in the next call, of another object."""
    script = """
one, two = make(seconds=10), make("ring/raw", 10)
for each in (one, two):
    each(np.ones(500, np.float32), key="w")
meet()

def interrupted(*_, **__):
    raise KeyboardInterrupt

def interrupted_later(*_):
    side.recv(source=1)
    raise KeyboardInterrupt

def step():
    one.start(np.ones(500, np.float32), key="w").wait()

if comm.rank == 0:
    commit, memory.Memory.commit = memory.Memory.commit, interrupted_later
    report.append(said(step))
    memory.Memory.commit = commit
else:
    report.append(said(step))
    run, progress.Progress.run = progress.Progress.run, interrupted
    report.append(said(lambda: two.start(np.ones(500, np.float32), key="w").wait()))
    progress.Progress.run = run
    side.send(None, 0)
meet()
began = time.perf_counter()
for each in (two, one):
    report.append(said(each, np.ones(500, np.float32), key="w"))
report.append(time.perf_counter() - began < 8)
works(make(seconds=20))
"""
    first, second = ranks(script, 2)
    assert first == ["KeyboardInterrupt", "Error", "Error", True]
    assert second == ["None", "KeyboardInterrupt", "Error", "Error", True]


def test_an_interrupt_at_any_line_with_calls_under_way(ranks):
    """Of start, test and wait: all ranks agree on what counts, or all objects end; new objects work."""
    script = (
        scripts.INTERRUPTED
        + """
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
    )
    assert all(n > 500 for (n,) in ranks(script, 2))


def test_a_rank_that_makes_an_object_is_noticed_again(ranks):
    """By the calls that it has not begun, where one that it had begun was done when it was noticed first."""
    script = """
one = make(seconds=30)
gq.wait_all(start(one, "ab", 50))
meet()
began = time.perf_counter()
if comm.rank == 0:
    start(one, "a", 50)[0].wait()
    report.append(said(make, seconds=30))
else:
    requests, turn = start(one, "ab", 50), progress.Progress.turn
    time.sleep(0.3)

    def later(*_):
        progress.Progress.turn = turn

    progress.Progress.turn = later
    report.append(requests[0].test())
    report.append(said(requests[1].wait))
report.append(time.perf_counter() - began < 15)
meet()
works(make(seconds=30))
"""
    assert ranks(script, 2) == [["MismatchError", True], [True, "MismatchError", True]]


def test_what_the_caller_computes_between_two_tests_is_no_timeout(ranks):
    """All ranks compute for longer than it; one that only tests, in vain, gives up in the end."""
    script = """
allreduce = make(seconds=0.5)
array = np.ones(50, np.float32)
allreduce(array, key="w")
meet()
request = allreduce.start(array, key="w") if comm.rank else None
time.sleep(0.8 + 0.2 * (comm.rank == 0))
if comm.rank == 0:
    request = allreduce.start(array, key="w")

def until_done():
    while not request.test():
        time.sleep(0.01)

report.append(said(until_done))
meet()
if comm.rank:
    request = allreduce.start(array, key="w")
    began = time.perf_counter()
    report.append(said(until_done))
    report.append(0.4 < time.perf_counter() - began < 3)
meet()
works(make(seconds=30))
"""
    assert ranks(script, 2) == [["None"], ["None", "TimeoutError", True]]


@pytest.mark.parametrize("how", ["call", "test", "wait"])
def test_a_later_call_has_the_whole_timeout(ranks, how):
    """Although a call before it has waited for long already, while the caller computed."""
    script = f"""
one, two = make("direct/raw"), make("ring/raw")
first, second = np.ones(50, np.float32), np.ones(50, np.float32)
meet()
if comm.rank:
    time.sleep(1.6)
request = one.start(first, key="w")
if comm.rank == 0:
    time.sleep(1.3)
if {how!r} == "call":
    two(second, key="v")
else:
    other = two.start(second, key="v")
    while {how!r} == "test" and not other.test():
        time.sleep(0.001)
    other.wait()
request.wait()
report.append(bool((first == 2).all() and (second == 2).all()))
"""
    assert ranks(script, 2) == [[True], [True]]


def test_new_objects_may_have_the_buffers_of_requests_that_were_given_up(ranks):
    """Whether their calls had ended on a rank or not."""
    script = """
allreduce = make(seconds=20)
arrays = [np.full(500, comm.rank + 1.0, np.float32) for _ in KEYS]
requests = [allreduce.start(array, key=key) for key, array in zip(KEYS, arrays)]
meet()
if comm.rank == 1:
    requests[0].wait()
    memory.Memory.commit = lambda *_: (_ for _ in ()).throw(MemoryError())
whole = said(lambda: gq.wait_all(requests[::-1]))
del memory.Memory.commit
memory.Memory.commit = commit
meet()
again = make(seconds=20)
held = [again.start(array, key=key) for key, array in zip(KEYS, arrays)]
gq.wait_all(held)
report.append("made")
"""
    script = "commit = memory.Memory.commit\n" + script.replace("del memory.Memory.commit\n", "")
    assert ranks(script, 2) == [["made"], ["made"]]


def test_a_start_after_the_calls_under_way_have_ended(ranks):
    """It, or its request, raises what ended them; it does not go on as if the ranks met to make its call."""
    script = """
one, two = make(seconds=20), make("ring/raw", 20)
array = np.ones(50, np.float32)
works(two)
meet()
if comm.rank == 0:
    side.recv(source=1)  # It has started, and makes no progress: this rank waits, and is interrupted, for certain.
    def interrupted(*_):
        told.append(side.isend(None, 1))
        raise KeyboardInterrupt
    told = []
    whole, progress.Progress.nothing_came = progress.Progress.nothing_came, interrupted
    report.append(said(one, array, key="w"))
    progress.Progress.nothing_came = whole
else:
    request = one.start(array, key="w")
    side.send(None, 0)
    while not side.iprobe(0):
        time.sleep(0.002)
    side.recv(source=0)
    time.sleep(0.5)
    report.append(said(lambda: two.start(np.ones(70, np.float32), key="v").wait()))
while (then := said(lambda: works(make(seconds=20)))) == "MismatchError":
    report.append(then)
report.append(then)
"""
    first, second = ranks(script, 2)
    assert first in (["KeyboardInterrupt", "None"], ["KeyboardInterrupt", "MismatchError", "None"])
    assert second == (["Error", "None"] if len(first) == 2 else ["MismatchError", "None"])


def test_an_exception_that_is_kept_does_not_keep_the_communicator(ranks):
    """Although it refers to the call that it ended, wherever it was raised; a handler that calls is refused."""
    script = """
from gqallreduce.transport.home import Home
kept = []
whole = Home.release

def interrupted(*given):
    Home.release = whole
    raise KeyboardInterrupt

allreduce = make(seconds=30)
Home.release = interrupted
try:
    allreduce(np.ones(5, np.float32), key="w")
except KeyboardInterrupt as error:
    kept.append(error)
Home.release = whole
works(make(seconds=30))

def handler(*_):
    report.append(said(allreduce, np.ones(5, np.float32), key="v"))

def handled(*given):
    memory.Memory.commit = commit
    handler()
    return commit(*given)

commit, memory.Memory.commit = memory.Memory.commit, handled
allreduce(np.ones(5, np.float32), key="u")
"""
    assert ranks(script, 2) == [["Error"], ["Error"]]


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
    meet()  # before it, the other rank's messages could complete the calls
    sys.exit()
meet()
print("rank 1:", said(lambda: gq.wait_all(start(allreduce, KEYS + "g"))), flush=True)
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
    assert "rank 1: Error" in done.stdout
    assert "Timeout" not in done.stdout

"""After an error, wherever and on whichever rank, new objects on all ranks work on the same communicator."""

import pytest
import scripts

HEAD = """
import json, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce import allreduce as module, stats
from gqallreduce.runtime import memory, operation, plans, reduction
from gqallreduce.scheduling import model
from gqallreduce.transport import channel, control, dense, home, link, progress, requests

comm, timeout = MPI.COMM_WORLD, 5.0
side = comm.Dup()
report = []

def make(scheme="direct/onebit/ef", seconds=timeout):
    return gq.Allreduce(scheme, comm=comm, timeout=seconds)

def recovered():
    return make(seconds=30)

def attempt(call, *arguments, **options):
    "The name of the error, or None."
    try:
        call(*arguments, **options)
        return "None"
    except BaseException as error:
        return type(error).__name__

def meet():
    "All ranks, however late."
    request = side.Ibarrier()
    while not request.Test():
        time.sleep(0.002)

class Planted:
    "`error` is raised on rank `odd` when it comes to a function for the n-th time, before or after its work."
    def __init__(self, owner, name, odd, after=False, error=KeyboardInterrupt, n=1):
        self.owner, self.name, self.odd, self.error, self.left = owner, name, odd, error, n
        self.whole = getattr(owner, name)
        def planted(*arguments, **options):
            self.left -= 1
            if self.left == 0 and not after:
                raise error("planted")
            result = self.whole(*arguments, **options)
            if self.left == 0 and after:
                raise error("planted")
            return result
        self.planted = planted
    def __enter__(self):
        if comm.rank == self.odd:
            setattr(self.owner, self.name, self.planted)
    def __exit__(self, *_):
        setattr(self.owner, self.name, self.whole)

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


PLACES = """
PLACES = dict(
    agreement=(reduction, "agree"), decided=(plans.Plans, "propose"), made=(plans.Plans, "plan"),
    memory=(memory.Memory, "next"), begun=(operation.Operation, "to_prepare"), carried=(progress.Progress, "work"),
    counted=(link.Link, "count"), at_once=(progress.Progress, "run_at_once"),
    handed=(progress.Progress, "_goes_on_natively"),
    sent=(channel.Channel, "_post_sends"), remembered=(plans.Plans, "remember"), committed=(memory.Memory, "commit"),
    recorded=(stats.Statistics, "record"), posted=(requests, "begin"),
)
"""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError", "BufferError"])
def test_an_exception_anywhere_in_a_call(ranks, size, error):
    """Known and first calls. The others hear of it in this call or the next one; all agree on what counts; all recover.

    Only what is raised once the State has been replaced leaves the object as it is.
    """
    script = (
        PLACES
        + f"""
for name, (owner, function) in PLACES.items():
    for after in (False, True):
        for first in (False, True):
            for odd in (0, comm.size - 1):
                allreduce = make(seconds=30)
                if not first:
                    allreduce(np.ones(90, np.float32), key="w")
                meet()
                with Planted(owner, function, odd, after, {error}):
                    said = attempt(allreduce, np.ones(90, np.float32), key="w")
                meet()
                then = attempt(allreduce, np.ones(90, np.float32), key="w")
                meet()
                step = allreduce.state_dict()["keys"].get("w", dict(step=0))["step"]
                report.append((f"{{name}} {{after}} {{first}} {{odd}}", said, then, step))
                works(recovered())
"""
    )
    reports = ranks(script, size)
    for rows in zip(*reports, strict=True):
        place, *_ = rows[0]
        odd = int(place.split()[-1])
        planted = [said for _, said, _, _ in rows]
        if "KeyboardInterrupt" not in planted and error not in planted:
            continue  # a function that this call does not come to
        assert planted[odd] == error, rows
        afterwards = [then for _, _, then, _ in rows]
        if afterwards == ["None"] * size:  # all committed, or all made the call anew
            assert len({step for *_, step in rows}) == 1, rows
            assert place.startswith(("recorded", "committed True", "agreement True")), rows
        else:
            assert "None" not in afterwards, rows
        assert "TimeoutError" not in planted + afterwards, rows


@pytest.mark.parametrize("odd", [0, 1])
def test_other_objects_go_on_after_a_call_that_one_rank_alone_gave_up(ranks, odd):
    """Where it ended well, its object refuses further calls before any message; a third object does not notice."""
    script = f"""
allreduce, other = make(seconds=30), make("ring/qsgd", seconds=30)
works(other)
meet()
with Planted(memory.Memory, "commit", {odd}):
    report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
meet()
time.sleep(0.2)
works(other)
calls = other.home.link.calls
report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
report.append(other.home.link.calls - calls)
works(other)
"""
    for rank, report in enumerate(ranks(script, 2)):
        assert report == ["KeyboardInterrupt" if rank == odd else "None", "Error", 0]


def test_which_objects_end_when_a_call_is_given_up_on_one_rank_alone(ranks):
    """That of the call, on all ranks: heard of in another object's call, while ranks meet, or after a step's end."""
    script = """
def slowly(*_):
    time.sleep(0.5)
    raise KeyboardInterrupt

def interrupted(allreduce):
    with Planted(memory.Memory, "commit", 0, error=slowly):
        attempt(allreduce, np.ones(90, np.float32), key="w")

for place in ("call", "meeting", "step"):
    one, other = make(seconds=30), make("ring/raw", seconds=30)
    for each in (one, other):
        each(np.ones(90, np.float32), key="w")
    if place == "step":
        try:
            with one.step():
                one(np.ones(90, np.float32), key="w")
                other(np.ones(90, np.float32), key="w")
                if comm.rank == 0:
                    raise KeyboardInterrupt
                one(np.ones(90, np.float32), key="w")
        except (KeyboardInterrupt, gq.Error):
            pass
    else:
        interrupted(one)
        if place == "call" and comm.rank == 1:
            attempt(other, np.ones(90, np.float32), key="w")
        if place == "meeting":
            works(recovered())
    meet()
    report.append((place, one.unusable is not None, other.unusable is not None))
    works(recovered())
"""
    expected = [[place, True, False] for place in ("call", "meeting", "step")]
    assert [report == expected for report in ranks(script, 2)] == [True, True]


def test_a_dense_call_that_was_given_up_uses_no_buffer_later(ranks):
    """What MPI cannot take back goes on: not in the caller's memory, which has the next gradient by then. A rank that
    gets the sum nevertheless gets that of the values that the call was given."""
    script = """
class Stop(Exception):
    pass

def stop(*_):
    raise Stop()

os.environ["GQALLREDUCE_AUTO"] = "model"
model.choose = lambda *_: (model.DENSE, "forced")
allreduce, whole = make("auto/raw", 30), dense.Summing.native
buf = np.ones(1 << 20, np.float32)
allreduce(buf, key="w")

def late(summing):
    if comm.rank:
        time.sleep(0.3)
    return whole(summing)

dense.Summing.native = late
signal.signal(signal.SIGALRM, stop)
if comm.rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
report.append(attempt(allreduce, buf, key="w"))
dense.Summing.native = whole
assert report != ["None"] or (buf == 4).all(), buf
buf[:] = 100 * (comm.rank + 1)
for _ in range(3):
    time.sleep(0.05)
    assert (buf == 100 * (comm.rank + 1)).all()
recovered()(buf, key="w")
make("auto/raw", 30)
report.append(bool((buf == 300).all()))
"""
    first, second = ranks(script, 2)
    assert first == ["Stop", True]
    assert second in (["None", True], ["Error", True])  # MPI may end what rank 0 has given up


@pytest.mark.parametrize("scheme", [pytest.param("direct/onebit/ef", marks=pytest.mark.slow), "auto/raw", "making"])
def test_an_interrupt_at_any_line(ranks, scheme):
    """Of a call, known or first, or of the making of an object; a few lines later each time, on both ranks in turn."""
    script = (
        scripts.INTERRUPTED
        + f"""
def make_and_call():
    with interrupted:
        made = recovered()
    made(np.ones(90, np.float32), key="w")

os.environ["GQALLREDUCE_AUTO"] = "model"
model.choose = lambda *_: (model.DENSE, "forced")
n, left = 1, 0
while n < 10000 and left <= 0:
    for first in (False, True):
        allreduce = make("direct/raw" if {scheme!r} == "making" else {scheme!r}, 30)
        if not first:
            allreduce(np.ones(90, np.float32), key="w")
        meet()
        interrupted = Interrupted(n % 2, n)
        if {scheme!r} != "making":
            with interrupted:
                said = attempt(allreduce, np.ones(90, np.float32), key="w")
            if said == "None" and not interrupted.here:
                said = attempt(allreduce, np.ones(90, np.float32), key="w")
            assert said in ("None", "Stop", "Error", "MismatchError"), (n, first, said)
            interrupted.here = False
        while (said := attempt(make_and_call)) in ("Stop", "Error", "MismatchError"):
            interrupted.here = False
        assert said == "None", (n, first, said)
        meet()
        works(recovered())
    left = comm.bcast(interrupted.left, n % 2)
    n += 3
report.append(n)
"""
    )
    assert all(n > 60 for (n,) in ranks(script, 2))


def test_a_rank_already_in_the_next_call_hears_of_an_abort(ranks):
    """Which it then raises as it is, not as a timeout of its own call."""
    script = """
allreduce = make(seconds=5)
allreduce(np.ones(90, np.float32), key="w")

def late(*arguments):
    time.sleep(0.5)
    raise MemoryError

if comm.rank == 0:
    memory.Memory.commit = late
report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
if comm.rank == 1:
    report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
meet()
"""
    assert ranks(script, 2) == [["MemoryError"], ["None", "Error"]]


@pytest.mark.parametrize("size", [2, 3])
def test_whatever_is_interrupted_of_a_duplicate_others_can_be_made(ranks, size):
    """The start of a duplication counts though it was interrupted."""
    script = """
for odd in range(comm.size):
    for after in (False, True):
        allreduce = recovered()
        with Planted(link.Link, "count", 0):
            attempt(allreduce, np.ones(90, np.float32), key="w")
        meet()
        with Planted(control, "duplicate", odd, after):
            report.append(attempt(make, seconds=1))
        meet()
        works(recovered())
"""
    reports = ranks(script, size)
    assert all(any("KeyboardInterrupt" in rows for rows in zip(*reports, strict=True)) for _ in reports)


def test_a_second_interrupt_while_others_are_told(ranks):
    """They are told when this rank uses its object again; it is refused here at once."""
    script = """
allreduce = make(seconds=30)
allreduce(np.ones(90, np.float32), key="w")
meet()
with Planted(control.Control, "_send_outgoing", 0), Planted(memory.Memory, "commit", 0, error=MemoryError):
    report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
report.append(allreduce.unusable is not None)
if comm.rank == 0:
    report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
meet()
if comm.rank == 1:
    report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
works(recovered())
"""
    assert ranks(script, 2) == [["KeyboardInterrupt", True, "Error"], ["None", False, "Error"]]


def test_an_abort_that_comes_after_this_rank_gave_up_its_next_call(ranks):
    """Ends the object whose call it was, on this rank as on that which gave it up."""
    script = """
one, other = make(seconds=20), make(seconds=0.3)
for allreduce in (one, other):
    allreduce(np.ones(90, np.float32), key="w")
meet()
def late(*arguments):
    time.sleep(1)
    raise MemoryError

whole = memory.Memory.commit
if comm.rank == 0:
    memory.Memory.commit = late
report.append(attempt(one, np.ones(90, np.float32), key="w"))
memory.Memory.commit = whole
if comm.rank == 1:
    report.append(attempt(other, np.ones(90, np.float32), key="w"))
meet()
works(recovered())
report.append(one.unusable is not None)
"""
    assert ranks(script, 2) == [["MemoryError", True], ["None", "TimeoutError", True]]


def test_a_rank_that_hears_late_that_its_object_is_made(ranks):
    """It hears at the same time that others, in the next call, met rank 0, which makes another object."""
    script = """
whole = control.Control.read

def late(self):
    time.sleep(0.5)
    whole(self)

make()
if comm.rank == 1:
    control.Control.read = late
report.append(attempt(lambda: globals().update(allreduce=make(seconds=20))))
control.Control.read = whole
call = lambda: allreduce(np.ones(50, np.float32), key="w")
report.append(attempt(recovered if comm.rank == 0 else call))
meet()
works(recovered())
"""
    assert ranks(script, 3) == [["None", "MismatchError"]] * 3


def test_an_interrupt_before_others_are_told(ranks):
    """A rank that could tell no other that it gave up its call says so when ranks meet."""
    script = """
for odd in (0, 1):
    allreduce = make()
    works(allreduce)
    with Planted(control.Control, "abort", odd), Planted(memory.Memory, "commit", odd, error=MemoryError):
        report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
    meet()
    works(recovered())
"""
    assert ranks(script, 2) == [["KeyboardInterrupt", "None"], ["None", "KeyboardInterrupt"]]


def test_an_interrupt_around_a_step_or_a_commit_leaves_all_counts_alike(ranks):
    """Of calls between two checks of the replicas, and of steps under way."""
    script = """
allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=20, verify=2)
with Planted(memory.Memory, "commit", 0, after=True):
    report.append(attempt(allreduce, np.ones(90, np.float32), key="w"))
for _ in range(4):
    allreduce(np.ones(90, np.float32), key="w")

def step():
    with allreduce.step():
        allreduce(np.ones(90, np.float32), key="w")

with Planted(memory.Memory, "stage", 0, after=True):
    report.append(attempt(step))
report.append(allreduce.memory.staging)
allreduce = recovered()
with Planted(memory.Memory, "unstage", 0, after=True):
    report.append(attempt(step))
report.append(allreduce.unusable)
works(allreduce)
"""
    first, second = ranks(script, 2)
    assert first == ["KeyboardInterrupt", "KeyboardInterrupt", False, "KeyboardInterrupt", None]
    assert second[0] == "None"
    assert second[2:] == [False, "None", None]


def test_an_exception_while_an_object_is_made(ranks):
    """Whether a rank is late, leaves, or gets no message: the next object works."""
    script = """
PLACES = [
    (control.Control, "meet"), (control.Control, "_agree"), (control.Control, "_reach"), (link.Link, "_meet"),
    (progress.Progress, "run"),
]
for fresh in (False, True):
    for owner, function in PLACES:
        for after in (False, True):
            for odd in (0, 2):
                if fresh:  # a new duplicate is wanted
                    allreduce = recovered()
                    allreduce(np.ones(9, np.float32), key="w")
                    meet()
                    with Planted(link.Link, "count", 0):
                        attempt(allreduce, np.ones(9, np.float32), key="w")
                    meet()
                with Planted(owner, function, odd, after):
                    made = []
                    said = attempt(lambda: made.append(make(seconds=0.4)))
                    if said == "None":
                        attempt(made[0], np.ones(9, np.float32), key="w")
                meet()
                works(recovered())
                report.append(said)
"""
    reports = ranks(script, 3)
    assert any("KeyboardInterrupt" in rows for rows in zip(*reports, strict=True))


@pytest.mark.parametrize("first", ["construction", pytest.param("call", marks=pytest.mark.slow)])
def test_ranks_that_come_late_again_and_again(ranks, first):
    """Each time others have given up; what they left behind harms no later object."""
    script = f"""
for late in (0, 1, 0, 2):
    if {first == "call"}:
        allreduce = make("ring/raw", 0.5)
        meet()
    if comm.rank == late:
        time.sleep(1.2)
    if {first == "call"}:
        report.append(attempt(allreduce, np.ones(9, np.float32), key="w"))
    else:
        report.append(attempt(make, seconds=0.5))
    meet()
    works(recovered())
"""
    reports = ranks(script, 3)
    for number, late in enumerate((0, 1, 0, 2)):
        assert all(rows[number] == "TimeoutError" for rank, rows in enumerate(reports) if rank != late), reports


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("odd", [0, 1])
def test_a_rank_that_fails_outside_of_any_call(ranks, size, odd):
    """It makes a new object while the others call: both sides are told at once, and then all make one."""
    script = f"""
for trial in range(8):
    allreduce = recovered()
    allreduce(np.ones(90, np.float32), key="w")
    meet()
    if trial % 2:
        time.sleep(0.02 * (comm.rank == {odd}))
    while True:
        try:
            if comm.rank == {odd} and allreduce is not None:
                allreduce = None
                raise OSError
            if allreduce is None:
                allreduce = recovered()
            for _ in range(3):
                allreduce(np.ones(90, np.float32), key="w")
            break
        except (OSError, gq.Error) as error:
            report.append(type(error).__name__)
            if comm.rank != {odd} or not isinstance(error, OSError):
                allreduce = None
    works(allreduce)
"""
    for rank, report in enumerate(ranks(script, size)):
        assert "TimeoutError" not in report, report
        assert (report.count("OSError") == 8) == (rank == odd), report


@pytest.mark.slow
def test_signals_at_any_time(ranks):
    """A handler that raises, at a random time: the ranks never go on with different steps."""
    script = """
import weakref

class Stop(Exception):
    pass

def stop(_, frame):
    if frame.f_code.co_filename == weakref.__file__:
        signal.setitimer(signal.ITIMER_REAL, 1e-4)  # Python drops what is raised where an object's end is noted
    else:
        raise Stop()

signal.signal(signal.SIGALRM, stop)
draws = np.random.default_rng(4)
allreduce = make(seconds=1)
for trial in range(60):
    delay = float(draws.uniform(1e-4, 3e-3))
    array = np.full(3000, comm.rank + 1, np.float32)
    caught = None
    try:
        if comm.rank == trial % comm.size:
            signal.setitimer(signal.ITIMER_REAL, delay)
        for _ in range(60):
            allreduce(array, key="w")
            array[:] = comm.rank + 1
    except (Stop, gq.Error) as error:
        caught = error
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0)
    except Stop:
        pass
    meet()
    if any(comm.allgather(caught is not None)):
        then = attempt(allreduce, np.ones(3000, np.float32), key="w")
        report.append((type(caught).__name__, then))
        works(recovered())
        allreduce = make(seconds=1)
"""
    reports = ranks(script, 2)
    assert len(reports[0]) > 10
    for rows in zip(*reports, strict=True):
        outcomes = {then for _, then in rows}
        assert outcomes == {"None"} or "None" not in outcomes, rows

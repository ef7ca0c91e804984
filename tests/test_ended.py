"""Where the MPI tells that a process has ended no timeout is waited for, and the others go on without it.

This is User-Level Failure Mitigation, of Open MPI 5.
"""

import ast
import json
import re
from pathlib import Path

import pytest
import scripts
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.transport import control
from gqallreduce.transport.waiting import Deadline


def end_of(left):
    """What a rank does when its report is written: none of those that are left may end while others are at work."""
    return f"\n{left}.Barrier()\n{scripts.WITHOUT_FINALIZE}"


ENDED = """
import json, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq

comm, scheme, dies = MPI.COMM_WORLD, {scheme!r}, 1
allreduce = gq.Allreduce(scheme, comm=comm, timeout=120)
values = np.random.default_rng(comm.rank).standard_normal((40, 50)).astype(np.float32)
for _ in range(3):
    allreduce(values.copy(), key="w")
before = comm.allgather(allreduce.state_dict())  # a checkpoint
never_used = comm.Dup()
began, said = time.perf_counter(), []
if comm.rank == dies:
    os.kill(os.getpid(), signal.SIGKILL)
while {known} and not comm.Get_failed().size:
    MPI.COMM_SELF.Iprobe()  # MPI learns of it in its own calls

def tell(what):
    try:
        what()
    except gq.TimeoutError as error:
        said.append([list(error.ranks), error.ended, str(error)])

tell(lambda: allreduce(values.copy(), key="w"))
tell(lambda: gq.Allreduce(scheme, comm=comm, timeout=120))  # another one, on the communicator of all
tell(lambda: gq.Allreduce(scheme, comm=never_used, timeout=120))
seconds = time.perf_counter() - began
alive = comm.Shrink()
others = gq.Allreduce(scheme, comm=alive, timeout=120, verify=1)
others.load_state_dict(before)
ones = np.ones((40, 50), np.float32)
others(values, key="w")
gq.Allreduce("raw", comm=alive, timeout=120)(ones)
report = [said, seconds, bool((ones == alive.size).all())]
"""


@pytest.mark.parametrize(
    ("scheme", "known"),
    [
        ("direct/onebit/ef", False),
        ("direct/onebit/ef", True),
        ("dense/ef", False),
        ("powersgd(rank=2)/ef", False),
        pytest.param("ring/terngrad", False, marks=pytest.mark.slow),
        pytest.param("dense", True, marks=pytest.mark.slow),
    ],
)
def test_where_mpi_tells_of_a_process_that_has_ended_no_timeout_is_waited_for(tmp_path, scheme, known):
    """User-Level Failure Mitigation of Open MPI 5. known: before the call."""
    scripts.require_ulfm()
    done = scripts.launch(tmp_path, ENDED.format(scheme=scheme, known=known), 4, 100, scripts.ULFM, end_of("alive"))
    for rank in (0, 2, 3):
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        said, seconds, right = json.loads((tmp_path / f"{rank}.json").read_text())
        assert [(ranks, ended) for ranks, ended, _ in said] == [([1], True)] * 3, said
        assert all("that the processes of ranks [1] have ended" in text for *_, text in said)
        assert seconds < 60, "the timeout of 120 s was waited for"
        assert right


ONE_BY_ONE = """
import json, os, signal, sys
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce import _kernels

comm, scheme, number, report = MPI.COMM_WORLD, {scheme!r}, {first}, []
while comm.size > 2:
    dies = comm.size - 1
    allreduce = gq.Allreduce(scheme, comm=comm, timeout=120, verify=1)
    values = np.random.default_rng(comm.rank).standard_normal(4000).astype(np.float32)
    allreduce(values.copy(), key="w")
    comm.Barrier()
    if comm.rank == dies:
        _kernels.stop_at_instruction(number, signal.SIGKILL)
    while True:
        before = allreduce.residual("w").tobytes()
        try:
            allreduce(values.copy(), key="w")
        except gq.Error as error:  # of a call, or, where that had succeeded in time, of the next one
            told = f"the processes of ranks [{{dies}}] have ended" in str(error)
            report.append([number, told, allreduce.residual("w").tobytes() == before])
            break
    comm, number = comm.Shrink(), number + {step}
left, comm = comm, MPI.COMM_WORLD
"""


@pytest.mark.parametrize(
    ("scheme", "first", "step"),
    [
        ("direct/onebit/ef", 1, 5),
        pytest.param("direct/onebit/ef", 3, 5, marks=pytest.mark.slow),
        pytest.param("ring/qsgd(bits=4)/ef", 1, 7, marks=pytest.mark.slow),
        pytest.param("recursive_doubling/adaptive/ef", 2, 4, marks=pytest.mark.slow),
    ],
)
def test_ranks_that_are_killed_one_after_the_other_at_any_instruction(tmp_path, scheme, first, step):
    """Of 8 ranks the last one, then the last of those that are left, until there are two. A rank that an instruction of
    a later call ends counts as well: each is counted from where its object begins.
    """
    scripts.require_ulfm()
    done = scripts.launch(
        tmp_path, ONE_BY_ONE.format(scheme=scheme, first=first, step=step), 8, 100, scripts.ULFM, end_of("left")
    )
    for rank in range(2):
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [[first + turn * step, True, True] for turn in range(6)], found


MAKING = """
import json, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce.transport import control, home, link

comm, dies, where, second = MPI.COMM_WORLD, {dies!r}, {where!r}, {second!r}
if second:
    gq.Allreduce("onebit", comm=comm)(np.ones(5, np.float32))
comm.Barrier()

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if comm.rank == dies:
    if where == "before":
        die()
    elif where == "link":
        link.Link._meet = die
    else:
        setattr(control.Control, where, die)
report = []
for _ in range(3):
    try:
        if second:  # it cannot go on with the duplicate that it has
            home.home(comm).link.broken = True
        gq.Allreduce("onebit", comm=comm, timeout=120)
        report.append("made")
    except gq.Error as error:
        report.append([type(error).__name__, list(getattr(error, "ranks", [])), str(error)])
"""


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(("where", "dies"), [("before", 2), ("_agree", 0), ("_agree", 3), ("_reach", 1), ("link", 1)])
def test_a_rank_that_ends_while_an_object_is_made_is_named(tmp_path, where, dies, second):
    scripts.require_ulfm()
    script = MAKING.format(where=where, dies=dies, second=second)
    done = scripts.launch(tmp_path, script, 4, 60, scripts.ULFM, end_of("comm.Shrink()"))
    for rank in set(range(4)) - {dies}:
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert [each[:2] for each in found] == [["TimeoutError", [dies]]] * 3, found


class Comm:
    """A communicator of the control channel, of which the MPI tells that rank 2 of 3 has ended."""

    def __init__(self):
        self.sent_to, self.interrupts, self.acknowledged = [], 1, False

    def Iprobe(self, source, tag, status):
        if not self.acknowledged:
            raise MPI.Exception(MPI.ERR_OTHER)
        return False

    def Ack_failed(self, number):
        self.acknowledged = True
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt

    def Isend(self, data, to, tag):
        self.sent_to.append(to)
        return MPI.REQUEST_NULL


def test_an_interrupt_as_mpi_is_told_that_a_rank_is_known_to_have_ended_loses_nothing(monkeypatch):
    """And that rank is sent nothing."""
    monkeypatch.setattr(control, "ended_ranks", lambda comm: frozenset([2]))
    comm = Comm()
    channel = control.Control(0, 3, comm, MPI.REQUEST_NULL)
    channel._open = True
    with pytest.raises(KeyboardInterrupt):
        channel.read()
    channel.read()
    with pytest.raises(gq.TimeoutError, match="ranks \\[2\\] have ended") as caught:
        channel._wait(control.Offer(0, 0, False), {1}, Deadline(60), lambda: None)
    assert caught.value.ended
    channel.give_up(1)
    assert comm.sent_to == [1]


PAGES = Path(__file__).parents[1] / "docs"
TRAINING = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
import gqallreduce as gq

{functions}

comm, dies = MPI.COMM_WORLD, {dies!r}
me = comm.rank

def gradients_of(comm, weights, step):
    if dies.get(me) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return draw_gradients(comm, weights, step)

weights = dict(first=np.zeros((8, 4), np.float32), second=np.zeros(8, np.float32))
left = train_on(comm, weights, gradients_of, 40, Path(sys.argv[1]) / "states")
near = all(np.allclose(each, 1, atol=0.2) for each in weights.values())
report = [left.size, near, len(set(left.allgather(b"".join(each.tobytes() for each in weights.values()))))]
"""
TORCH_TRAINING = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from mpi4py import MPI
import gqallreduce as gq
import gqallreduce.torch as gqt

{functions}

comm, dies = MPI.COMM_WORLD, {dies!r}
me = comm.rank
torch.set_num_threads(1)

def loss_of(model, comm, step):
    if dies.get(me) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1000 * step + comm.rank))
    return (model(inputs) - inputs[:, :1] * inputs[:, 1:2]).square().mean()

torch.manual_seed(me)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
left = train_on(comm, model, optimizer, loss_of, 150, Path(sys.argv[1]) / "states" / "state.pt")
with torch.no_grad():
    near = float(loss_of(model, left, 9999)) < 0.4  # of 1 at the beginning
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
report = [left.size, near, len(set(left.allgather(weights)))]
"""


def function_of(page, name):
    """The source of a function in the Python of a page."""
    for block in re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text(), re.M | re.S):
        for each in ast.parse(block).body:
            if getattr(each, "name", "") == name:
                return ast.get_source_segment(block, each)
    raise LookupError(name)


@pytest.mark.parametrize(
    ("page", "names", "script"),
    [("trainers.md", ["train_on", "draw_gradients"], TRAINING), ("pytorch.md", ["train_on"], TORCH_TRAINING)],
    ids=["numpy", "pytorch"],
)
@pytest.mark.parametrize(
    ("dies", "survivors"),
    [({1: 7, 3: 12}, 2), ({0: 12, 2: 12}, 2), pytest.param({2: 0}, 3, marks=pytest.mark.slow)],
    ids=["one by one", "two at once", "at the first step"],
)
def test_the_training_of_a_page_goes_on_without_ranks_that_are_killed(tmp_path, page, names, script, dies, survivors):
    """dies: rank -> the step at which it is killed."""
    scripts.require_ulfm()
    if page == "pytorch.md":
        pytest.importorskip("torch", reason="torch is not installed: make test-torch")
    (tmp_path / "states").mkdir()
    functions = "\n\n".join(function_of(page, name) for name in names)
    source = script.format(functions=functions, dies=dies)
    done = scripts.launch(tmp_path, source, 4, 100, scripts.ULFM, end_of("left"))
    for rank in set(range(4)) - dies.keys():
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [survivors, True, 1]

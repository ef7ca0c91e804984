"""A rank that is killed at an instruction of a call: the others raise TimeoutError in time, and go on without it.

The launchers of Open MPI and MPICH end the others too, unless they are asked not to; now and then
MPICH's does it even so.
"""

import json
import subprocess

import pytest
import scripts

SECONDS = 1.0
SCRIPT = """
import json, os, signal, sys, time
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce import _kernels

signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # MPICH's launcher sends it to the ranks that are left
comm, scheme, number, dies = MPI.COMM_WORLD, {scheme!r}, {number}, MPI.COMM_WORLD.size - 1
allreduce = gq.Allreduce(scheme, comm=comm, timeout=60)
values = np.random.default_rng(comm.rank).standard_normal(4000).astype(np.float32)
allreduce(values.copy(), key="w")
allreduce.timeout = {seconds}
before = allreduce.residual("w").tobytes()
comm.Barrier()
if comm.rank == dies:
    _kernels.stop_at_instruction(number, signal.SIGKILL)
began, said = time.perf_counter(), None
try:
    allreduce(values.copy(), key="w")
except gq.TimeoutError as error:
    said = error.ranks
seconds = time.perf_counter() - began
kept = allreduce.residual("w").tobytes() == before
# MPI_Comm_create_group needs those alone that are in the new communicator.
alive = comm.Create_group(comm.group.Excl([dies]))
ones = np.ones(4000, np.float32)
others = gq.Allreduce(scheme, comm=alive, timeout=60, verify=1)
others(values, key="w")  # compares replicas
gq.Allreduce("raw", comm=alive, timeout=60)(ones)
report = [sorted(said or []), seconds, kept, bool((ones == alive.size).all())]
"""
END = """
os._exit(0)  # MPI_Finalize waits for all ranks, with Open MPI's User-Level Failure Mitigation now and then
"""


@pytest.mark.parametrize(
    ("scheme", "number"),
    [
        ("direct/onebit/ef", 1),
        ("direct/onebit/ef", 8),
        pytest.param("direct/onebit/ef", 5, marks=pytest.mark.slow),
        pytest.param("ring/qsgd(bits=4)/ef", 3, marks=pytest.mark.slow),
        pytest.param("allgather/adaptive/ef", 2, marks=pytest.mark.slow),
    ],
)
def test_the_others_go_on_without_a_rank_that_was_killed(tmp_path, scheme, number):
    script = SCRIPT.format(scheme=scheme, number=number, seconds=SECONDS)
    # PRRTE of Open MPI 5 and the older ORTE both know the first option, MPICH's Hydra the other.
    option = "--enable-recovery" if scripts.is_open_mpi() else "-disable-auto-cleanup"
    for _ in range(8):
        done = scripts.launch(tmp_path, script, 3, 60, [option], END)
        if (tmp_path / "0.json").exists() or scripts.is_open_mpi():
            break
    else:
        pytest.skip("MPICH's launcher ended the other ranks each time, though it was asked not to")
    assert not (tmp_path / "2.json").exists(), "the third rank went on"
    named = set()
    for rank in range(2):
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        ranks, seconds, kept, right = json.loads((tmp_path / f"{rank}.json").read_text())
        assert ranks, "no timeout"
        named.update(ranks)
        assert seconds < SECONDS + 2
        assert kept, "the residual changed in a call that failed"
        assert right
    assert 2 in named  # by a rank that waited for it; another may have waited for that one


ULFM = ["--with-ft", "ulfm"]
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
unused = comm.Dup()
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
tell(lambda: gq.Allreduce(scheme, comm=unused, timeout=120))
seconds = time.perf_counter() - began
alive = comm.Shrink()
others = gq.Allreduce(scheme, comm=alive, timeout=120, verify=1)
others.load_state_dict(before)
ones = np.ones((40, 50), np.float32)
others(values, key="w")
gq.Allreduce("raw", comm=alive, timeout=120)(ones)
report = [said, seconds, bool((ones == alive.size).all())]
"""


def require_ulfm():
    """Skips a test where the MPI has not what it needs."""
    if not scripts.is_open_mpi() or subprocess.run([scripts.MPIRUN, *ULFM, "-n", "1", "true"]).returncode:
        pytest.skip("this MPI has no User-Level Failure Mitigation: it does not tell of processes that have ended")


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
    require_ulfm()
    done = scripts.launch(tmp_path, ENDED.format(scheme=scheme, known=known), 4, 100, ULFM, END)
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
comm = MPI.COMM_WORLD
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
    require_ulfm()
    done = scripts.launch(tmp_path, ONE_BY_ONE.format(scheme=scheme, first=first, step=step), 8, 100, ULFM, END)
    for rank in range(2):
        assert (tmp_path / f"{rank}.json").exists(), done.stdout
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [[first + turn * step, True, True] for turn in range(6)], found

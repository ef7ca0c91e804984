"""Scripts with an mpirun of their own: for ranks that hang, leave or are interrupted."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")
INTERRUPTED = """
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
"""
WITHOUT_FINALIZE = """
os._exit(0)  # MPI_Finalize waits for all ranks, with Open MPI's User-Level Failure Mitigation now and then
"""
ULFM = ["--with-ft", "ulfm"]  # options of mpirun
TAIL = """
with open(f"{sys.argv[1]}/{comm.rank}.json", "w") as file:
    json.dump(report, file)
"""


def is_open_mpi():
    """Is the MPI of this environment Open MPI? Asked without starting it."""
    about = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout
    return "Open MPI" in about


@functools.cache
def has_ulfm():
    """Does the MPI of this environment tell of processes that have ended?"""
    return is_open_mpi() and not subprocess.run([MPIRUN, *ULFM, "-n", "1", "true"]).returncode


def require_ulfm():
    """Skips a test where the MPI does not tell of processes that have ended."""
    if not has_ulfm():
        pytest.skip("this MPI has no User-Level Failure Mitigation: it does not tell of processes that have ended")


def run(folder, script, size, seconds):
    """What each rank of a script left in `report`; the end must be clean, and come in time."""
    done = launch(folder, script, size, seconds)
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout, done.stdout
    assert "ignal" not in done.stdout, done.stdout
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def launch(folder, script, size, seconds, options=(), end=""):
    """Runs a script, after which each rank leaves its `report` in a file, and comes to `end`. options: mpirun's."""
    (folder / "script.py").write_text(script + TAIL + end)
    return subprocess.run(
        [MPIRUN, *options, "-n", str(size), sys.executable, folder / "script.py", folder],
        env={**os.environ, "MPIEXEC_TIMEOUT": str(seconds), "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

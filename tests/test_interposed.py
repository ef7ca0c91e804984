"""A library that is loaded before the MPI, as profilers and tracers are, sees the messages of the runtime in C++.

The time that an MPI keeps a poll, in which it may lend the core, counts as waiting.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import scripts

NEEDS_MAPS = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc/self/maps on this system")
SOURCE = Path(__file__).with_name("interposed.cpp")
SCRIPT = """
import ctypes, json, os, sys
import numpy as np
from mpi4py import MPI
import gqallreduce as gq

comm, loaded = MPI.COMM_WORLD, ctypes.CDLL(None)
allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=60)
array = np.ones(700_000, np.float32)
allreduce(array, key="w")
before = loaded.counted_sends(), loaded.counted_receives()
allreduce(array, key="w")
seen = loaded.counted_sends() - before[0], loaded.counted_receives() - before[1]
native = allreduce.home.link.requests.native is not None
report = [native, *seen, allreduce.stats.last.messages, bool((array == comm.size**2).all())]
"""
KEPT = """
import ctypes, json, sys
import numpy as np
from mpi4py import MPI
import gqallreduce as gq

LONG = 2e-3
comm, loaded = MPI.COMM_WORLD, ctypes.CDLL(None)
allreduce = gq.Allreduce("direct/onebit/ef", comm=comm, timeout=60)
array = np.ones(700_000, np.float32)
allreduce(array, key="w")
loaded.keep_polls(int(LONG * 1e6))
before = loaded.counted_polls()
allreduce(array, key="w")
polls = loaded.counted_polls() - before
loaded.keep_polls(0)
report = [polls, allreduce.stats.last.wait / LONG]
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("interposed") / "interposed.so"
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, SOURCE, "-o", built, "-ldl"], check=True)
    return built


@pytest.fixture(scope="module")
def mpi():
    """The file of the MPI, which mpi4py loads for itself alone; a profiler is linked with it."""
    program = "from mpi4py import MPI; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return next(word for word in maps.split() if Path(word).name.startswith(("libmpi.so", "libmpich.so")))


@NEEDS_MAPS
def test_every_message_is_seen(tmp_path, library, mpi, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", f"{library} {mpi}")
    for native, sends, receives, messages, right in scripts.run(tmp_path, SCRIPT, 2, 60):
        assert native
        assert right
        assert sends >= messages > 1
        assert receives >= messages


@NEEDS_MAPS
@pytest.mark.parametrize("runtime", ["native", "python"])
def test_what_polls_take_is_waiting(tmp_path, library, mpi, monkeypatch, runtime):
    """Also where a lane had something to do before the poll."""
    monkeypatch.setenv("LD_PRELOAD", f"{library} {mpi}")
    monkeypatch.setenv("GQALLREDUCE_RUNTIME", runtime)
    for polls, waited in scripts.run(tmp_path, KEPT, 2, 60):
        assert waited > polls - 1.5 > 2, "one of them may be of an exchange before"

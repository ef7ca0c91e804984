"""How many threads a call uses: a rule on the environment and the affinity mask. And Python's lock."""

import subprocess
import sys
from pathlib import Path

import pytest

from gqallreduce import _kernels, threads

VARIABLES = ("GQALLREDUCE_THREADS", "OMP_NUM_THREADS", *threads._LOCAL_RANKS)


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GQALLREDUCE_SIMD", raising=False)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(12)), raising=False)


def test_all_cores_of_the_mask_by_default():
    assert threads.default_threads() == 12


def test_local_ranks_share_the_cores(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "5")
    assert threads.default_threads() == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "64")
    assert threads.default_threads() == 1


def test_slurm_counts_nodes_in_parentheses(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "4(x16)")
    assert threads.default_threads() == 3


def test_the_own_variable_comes_before_openmps(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert threads.default_threads() == 4
    monkeypatch.setenv("GQALLREDUCE_THREADS", "7")
    assert threads.default_threads() == 7


NO_NUMBERS = ["0", "-1", "many", "1.5", "4x", ",4", "\u00b2", "9" * 5000]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_number_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("GQALLREDUCE_THREADS", text)
    with pytest.raises(ValueError, match="GQALLREDUCE_THREADS"):
        threads.default_threads()


@pytest.mark.parametrize("name", ["GQALLREDUCE_THREADS", "OMP_NUM_THREADS"])
@pytest.mark.parametrize("text", ["4", " 4", "4 ", "\t4 ,2", "4, 2,1", "04"])
def test_spaces_and_lists_are_read_as_openmp_does(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    assert threads.default_threads() == 4


@pytest.mark.parametrize("text", ["", " ", *NO_NUMBERS])
def test_what_cannot_be_read_in_openmps_variable_is_as_if_it_were_not_there(monkeypatch, text):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads.default_threads() == 12


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_variable_of_our_own_says_nothing(monkeypatch, text):
    monkeypatch.setenv("GQALLREDUCE_THREADS", text)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.default_threads() == 3


@pytest.mark.parametrize("name", ["GQALLREDUCE_THREADS", "OMP_NUM_THREADS"])
def test_more_threads_than_a_call_can_use_are_as_many_as_it_can(monkeypatch, name):
    monkeypatch.setenv(name, "99999999999")
    before = _kernels.threads()
    try:
        threads.configure()
        assert _kernels.threads() == 256
    finally:
        _kernels.set_threads(before)


def test_configure_applies_both(monkeypatch):
    before = _kernels.threads(), _kernels.simd_level()
    try:
        monkeypatch.setenv("GQALLREDUCE_THREADS", "3")
        monkeypatch.setenv("GQALLREDUCE_SIMD", "scalar")
        threads.configure()
        assert (_kernels.threads(), _kernels.simd_level()) == (3, "scalar")
    finally:
        _kernels.set_threads(before[0])
        _kernels.use_simd_level(before[1])


@pytest.mark.parametrize("names", [{}, {"_is_gil_enabled": lambda: True}])
def test_a_python_with_its_lock_is_taken(names, monkeypatch):
    monkeypatch.delattr(sys, "_is_gil_enabled", raising=False)
    for name, value in names.items():
        monkeypatch.setattr(sys, name, value, raising=False)
    threads.require_lock()


def test_a_python_without_its_lock_is_refused_at_import():
    program = "import sys; sys._is_gil_enabled = lambda: False; import gqallreduce"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: gqallreduce got a free-threaded Python" in done.stderr
    assert "leave out PYTHON_GIL=0 and -X gil=0" in done.stderr


def test_the_extension_does_not_declare_that_it_needs_no_lock():
    """So a free-threaded Python turns it on when it loads the extension."""
    root = Path(threads.__file__).parents[1]
    sources = [root / "setup.py", *(root / "gqallreduce").glob("**/*.px[di]"), root / "gqallreduce" / "_kernels.pyx"]
    assert not [path for path in sources if "freethreading_compatible" in path.read_text()]

"""How many threads a call uses: a rule on the environment and the affinity mask."""

import pytest

from gqallreduce import _kernels, threads

VARIABLES = ("GQALLREDUCE_THREADS", "OMP_NUM_THREADS", *threads._LOCAL_RANKS)


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
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


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_number_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("GQALLREDUCE_THREADS", text)
    with pytest.raises(ValueError, match="GQALLREDUCE_THREADS"):
        threads.default_threads()


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

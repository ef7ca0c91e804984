"""`calibrate` under MPI: every part is measured, and `auto/` decides by the profile where it is told to try nothing."""

import argparse

import numpy as np
import pytest

import gqallreduce as gq
from gqallreduce.cli import calibrate, machine
from gqallreduce.scheduling import profile

pytestmark = pytest.mark.mpi


@pytest.fixture
def quick(monkeypatch):
    """Few repetitions of small sums."""
    monkeypatch.setattr(calibrate, "SECONDS", 1e-3)
    monkeypatch.setattr(calibrate, "MOST", 3)
    monkeypatch.setattr(calibrate, "ROUNDS", 2)
    monkeypatch.setattr(calibrate, "CODED", 1 << 12)
    monkeypatch.setattr(machine, "last_level_cache", lambda: 1 << 14)
    monkeypatch.setattr(calibrate, "MESSAGE_MOST", 1 << 12)
    monkeypatch.setattr(calibrate, "OVERLAP_BYTES", 1 << 12)
    monkeypatch.setattr(calibrate, "CHECKED", (("direct/onebit/ef",), (1 << 12,)))


def test_a_profile_is_measured_and_found_by_the_next_object(comm, quick, tmp_path, monkeypatch, capsys):
    where = comm.bcast(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", where)
    monkeypatch.setenv("GQALLREDUCE_HOST", f"host {comm.rank // 2}")
    monkeypatch.setenv("GQALLREDUCE_AUTO", "model")
    status = calibrate.run_on(comm, argparse.Namespace(max=1 << 12, output=None))
    if comm.size == 1:
        assert status == 2
        assert "got 1 rank, expected those of a job: mpirun" in capsys.readouterr().err
        return
    assert status == 0
    with gq.Allreduce("auto/onebit/ef", comm=comm) as allreduce:
        jobs = allreduce.home.link.jobs
        found = profile.load(jobs.path)
        assert allreduce.plans.profile == found
        assert sum(jobs.ranks) == comm.size
        assert len(found.dense) == 6
        assert set(found.rates) == {entry.name for entry in gq.schemes() if entry.kind == "codec"}
        assert 0 <= found.overlap <= 1
        assert min(found.copy, found.call + found.alpha + found.software) > 0
        allreduce(np.ones(1000, np.float32), key="w")
        assert str(jobs.path) in allreduce.stats.last.reason or allreduce.rank > 0
    if comm.rank == 0:
        assert f"written: {jobs.path}" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_named(comm, quick, tmp_path, capsys):
    if comm.size == 1:
        pytest.skip("calibrate wants several ranks")
    where = str(tmp_path / "file")
    (tmp_path / "file").write_text("")
    arguments = argparse.Namespace(max=64, output=f"{where}/profile.json")
    assert calibrate.run_on(comm, arguments) == 2  # before anything is measured
    told = capsys.readouterr()
    assert not told.out
    assert ("calibrate: the profile cannot be written: " in told.err) == (comm.rank == 0)

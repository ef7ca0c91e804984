"""The harness of tests/mpi: every test that is meant to fail, hang or crash runs in an mpirun of its own.

Not in tests/mpi, because pytest-mpi takes all that lies in a folder named mpi for marked.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "mpi" / "conftest.py"
MPIRUN = Path(sys.executable).with_name("mpirun")
HEAD = "import os, sys, time\nimport pytest\npytestmark = pytest.mark.mpi\n"
LAST = "def test_last(comm):\n    assert comm.allreduce(1) == comm.size\n"


def run_pytest(folder, *launcher, **variables):
    """Run the tests of `folder` with MPI; pytest loads no other plugin, which halves the time of all these runs."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "MPIEXEC_TIMEOUT": "60", "NO_COLOR": "1"}
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "pytest", "--with-mpi", "-p", "pytest_mpi", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture
def session(tmp_path):
    """Return a function that runs the given test source on some ranks: (exit status, what the terminal shows)."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 20\nfaulthandler_exit_on_timeout = true\n")

    def run(source, ranks=3, patience=30):
        (tmp_path / "test_sample.py").write_text(HEAD + source)
        return run_pytest(tmp_path, MPIRUN, "-n", str(ranks), GQALLREDUCE_TEST_PATIENCE=str(patience))

    return run


def test_one_clean_report_comes_from_rank_0(session, tmp_path):
    status, shown = session(LAST)
    assert status == 0
    assert shown.count("1 passed") == 1
    (folder,) = (tmp_path / ".pytest-logs").iterdir()
    logs = sorted(folder.glob("*.log"))
    assert [log.name for log in logs] == ["rank1.log", "rank2.log"]
    assert all("1 passed" in log.read_text() for log in logs)
    assert (folder / "finished").exists()


def test_a_failure_on_one_rank_fails_on_every_rank_with_its_text_and_the_session_goes_on(session, tmp_path):
    status, shown = session("def test_one(comm):\n    assert comm.rank != 2, 'two is unwell'\n\n" + LAST)
    assert status != 0
    texts = [shown, *(log.read_text() for log in tmp_path.glob(".pytest-logs/*/*.log"))]
    assert len(texts) == 3
    for text in texts:
        assert "=== failed on rank 2 ===" in text
        assert "two is unwell" in text
        assert "=== passed on ranks 0, 1 ===" in text
        assert re.search("1 failed, 1 passed", text)


def test_a_failure_in_a_fixture_of_one_rank_keeps_all_ranks_from_the_test(session):
    source = """
@pytest.fixture
def partial(comm):
    assert comm.rank != 1, 'no fixture for one'

def test_one(comm, partial):
    comm.Barrier()
"""
    status, shown = session(source + LAST)
    assert status != 0
    assert "no fixture for one" in shown
    assert "1 passed, 1 error" in shown


def test_what_the_failing_rank_printed_is_shown(session):
    _, shown = session("def test_one(comm):\n    print('from', comm.rank)\n    assert comm.rank != 1\n")
    assert "from 1" in shown
    assert "from 2" not in shown


def test_a_rank_that_skips_alone_is_a_failure(session):
    status, shown = session("def test_one(comm):\n    if comm.rank == 1: pytest.skip('not me')\n" + LAST)
    assert status != 0
    assert "=== skipped on rank 1 ===" in shown
    assert "1 failed, 1 passed" in shown


def test_an_expected_failure_stays_one(session):
    status, shown = session("@pytest.mark.xfail\ndef test_one(comm):\n    assert False\n" + LAST)
    assert status == 0
    assert "1 passed, 1 xfailed" in shown


@pytest.mark.parametrize("absent", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_rank_that_never_arrives_is_named_and_the_job_aborted(session, absent):
    status, shown = session(f"def test_one(comm):\n    if comm.rank == {absent}: time.sleep(1000)\n" + LAST, patience=4)
    assert status != 0
    assert f"test_one (call): rank {absent} did not arrive within 4 s; aborting the job" in shown
    assert "passed" not in shown


def test_a_rank_that_crashes_fails_the_job(session, tmp_path):
    status, shown = session("def test_one(comm):\n    if comm.rank == 1: os.abort()\n" + LAST)
    assert status != 0
    assert "passed" not in shown
    assert not list(tmp_path.glob(".pytest-logs/*/finished"))


def test_a_rank_that_leaves_quietly_leaves_no_mark_of_the_end(session, tmp_path):
    _, shown = session("def test_one(comm):\n    if comm.rank == 1: os._exit(0)\n" + LAST)
    assert "passed" not in shown
    assert not list(tmp_path.glob(".pytest-logs/*/finished"))


def test_a_deadlock_of_all_ranks_ends_with_their_stacks(session, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 3\nfaulthandler_exit_on_timeout = true\n")
    status, shown = session("def test_one(comm):\n    comm.recv(source=(comm.rank + 1) % comm.size)\n")
    assert status != 0
    assert "Timeout" in shown
    assert "in test_one" in shown


def test_ranks_that_collect_different_tests_are_named(session):
    source = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1:\n    def test_extra(comm): pass\n"
    status, shown = session(source + LAST)
    assert status != 0
    assert "rank 1 collected other tests than rank 0" in shown


def test_a_launcher_of_another_mpi_is_refused(session, tmp_path):
    session(LAST, ranks=1)
    status, shown = run_pytest(tmp_path, OMPI_COMM_WORLD_SIZE="4")
    assert status != 0
    assert "OMPI_COMM_WORLD_SIZE is 4, yet COMM_WORLD has 1 ranks" in shown
    assert "passed" not in shown


def test_without_mpi_the_marked_tests_are_skipped_and_mpi_is_not_imported(session, tmp_path):
    session(LAST, ranks=1)
    probe = "import sys, pytest; status = pytest.main(); sys.exit('mpi4py.MPI' in sys.modules or int(status))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout

"""Keeps the ranks of a test session together, so that one failure is one clean report and never a hang.

After every phase (setup, call, teardown) of every test the ranks tell each other how it went. If it failed anywhere it
fails everywhere, with the text of the ranks where it failed, and all go on to the next test. If a rank does not arrive
in time, the others print its number and abort the job. Rank 0 reports to the terminal, the others to
`.pytest-logs/<MPI>-<size>/rank<r>.log`; a rank that is killed leaves its stacks there. When all ranks have come to the
end, rank 0 leaves the file `finished` beside: the exit status alone is not proof, since MPICH's mpirun can return 0
after a rank left early with 0.

Without `--with-mpi` nothing here imports MPI.
"""

import atexit
import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

# How long the first rank to finish a phase waits for the last one; generous, since it is spent only when one is lost.
PATIENCE_SECONDS = float(os.environ.get("GQALLREDUCE_TEST_PATIENCE", "30"))
# What launchers tell a rank about the size of its job.
LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
TAG = 7


class Missing(Exception):
    """Some ranks did not arrive in time; the first argument is the list of them."""


class Ranks:
    """The roll call, on a communicator of its own so that no test can disturb it."""

    def __init__(self, comm, log, folder):
        self.comm = comm.Dup()
        self.log = log
        self.folder = folder
        self.place = "the start of the session"

    def exchange(self, word, patience=PATIENCE_SECONDS):
        """Return the words of all ranks, by rank. Raises Missing after `patience` seconds without some of them.

        Point to point rather than a collective: a collective cannot tell who is missing.
        """
        rank, size = self.comm.rank, self.comm.size
        words = {rank: word}
        sent = [self.comm.isend(word, dest=other, tag=TAG) for other in range(size) if other != rank]
        deadline = time.monotonic() + patience
        while len(words) < size:
            for other in set(range(size)) - words.keys():
                if (message := self.comm.improbe(source=other, tag=TAG)) is not None:
                    words[other] = message.recv()
            if len(words) < size and time.monotonic() > deadline:
                raise Missing(sorted(set(range(size)) - words.keys()))
            time.sleep(0)
        for request in sent:
            request.wait()
        return [words[other] for other in range(size)]

    def meet(self, place, word):
        """Return the words of all ranks at `place`; abort the job if a rank is missing or somewhere else."""
        self.place = place
        try:
            replies = self.exchange((place, word))
        except Missing as missing:
            self.abort(missing.args[0], f"did not arrive within {PATIENCE_SECONDS:g} s")
        places = [reply[0] for reply in replies]
        strays = [rank for rank, where in enumerate(places) if where != places[0]]
        if strays:
            self.abort(strays, f"came to {sorted({places[rank] for rank in strays})}, rank 0 to {places[0]}")
        return [reply[1] for reply in replies]

    def abort(self, culprits, what):
        """End the job. The lowest of the other ranks prints; the rest give it the time to."""
        present = [rank for rank in range(self.comm.size) if rank not in culprits] or [0]
        text = f"{self.place}: {name_ranks(culprits)} {what}; aborting the job"
        for stream in {self.log, sys.stderr} if self.comm.rank == present[0] else {self.log}:
            print(f"\n{text}", file=stream, flush=True)
        time.sleep(0.5 if self.comm.rank == present[0] else 5)
        self.comm.Abort(1)


def name_ranks(ranks):
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def check_launcher(size):
    """A launcher of another MPI starts every rank as a job of its own, and every test would pass on one rank."""
    for name in LAUNCHER_SIZES:
        promised = os.environ.get(name)
        if promised is not None and int(promised) != size:
            pytest.exit(f"{name} is {promised}, yet COMM_WORLD has {size} ranks: mpirun is not of this MPI", 3)
        if promised is not None:
            return


def open_log(config, rank, folder):
    """Rank 0 reports to the terminal, any other to its log; both leave their stacks when they are killed."""
    if rank == 0:
        log = sys.stderr
    else:
        log = (folder / f"rank{rank}.log").open("w", buffering=1)
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(pytest.TerminalReporter(config, log), "terminalreporter")
    faulthandler.register(signal.SIGTERM, file=log, all_threads=True, chain=True)
    atexit.register(faulthandler.unregister, signal.SIGTERM)  # later the stacks are no longer sound, and it might crash
    return log


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if not config.getoption("--with-mpi"):
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    check_launcher(comm.size)
    name = MPI.get_vendor()[0].replace(" ", "").lower()
    folder = config.rootpath / ".pytest-logs" / f"{name}-{comm.size}"
    folder.mkdir(parents=True, exist_ok=True)
    config.ranks = Ranks(comm, open_log(config, comm.rank, folder), folder)
    # In one folder for all, ranks that clean up at the end remove each other's files, which is an error for pytest.
    own = tempfile.mkdtemp(prefix=f"rank{comm.rank}-")
    os.environ["PYTEST_DEBUG_TEMPROOT"] = own
    atexit.register(shutil.rmtree, own, ignore_errors=True)


def pytest_collection_finish(session):
    ranks = getattr(session.config, "ranks", None)
    if ranks is not None:
        collected = ranks.meet("the end of the collection", [item.nodeid for item in session.items])
        strays = [rank for rank, tests in enumerate(collected) if tests != collected[0]]
        if strays:
            ranks.abort(strays, "collected other tests than rank 0")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    ranks = getattr(session.config, "ranks", None)
    if ranks is not None:
        ranks.meet("the end of the session", None)
        if ranks.comm.rank == 0:
            (ranks.folder / "finished").touch()


def outcome_of(report):
    """Return (outcome, text): what the other ranks need to know of a phase."""
    outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
    if outcome != "failed":
        return outcome, ""
    captured = [f"--- {title} ---\n{content}" for title, content in report.sections]
    return outcome, "\n".join([report.longreprtext, *captured])


def describe(outcomes):
    """Return one text for the outcomes of all ranks: each different failure once, headed by its ranks."""
    by_outcome = {}
    for rank, outcome in enumerate(outcomes):
        by_outcome.setdefault(outcome, []).append(rank)
    blocks = [f"=== {outcome} on {name_ranks(ranks)} ===\n{text}" for (outcome, text), ranks in by_outcome.items()]
    return "\n".join(blocks).rstrip()


def pytest_runtest_setup(item):
    if item.get_closest_marker("native") and os.environ.get("GQALLREDUCE_RUNTIME") == "python":
        pytest.skip("tests the runtime in C++, and GQALLREDUCE_RUNTIME=python")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    ranks = getattr(item.config, "ranks", None)
    if ranks is None or item.get_closest_marker("mpi") is None:
        return report
    outcomes = ranks.meet(f"{item.nodeid} ({call.when})", outcome_of(report))
    # Ranks that skip and ranks that go on would meet at different places from here: that is a failure too.
    if len({outcome for outcome, _ in outcomes}) > 1 or outcomes[0][0] == "failed":
        report.outcome = "failed"
        report.longrepr = describe(outcomes)
        report.sections = []
        report.__dict__.pop("wasxfail", None)
    return report


@pytest.fixture
def comm(request):
    """COMM_WORLD; the test that asks for it is marked `mpi`."""
    assert request.node.get_closest_marker("mpi"), "a test that uses comm is marked: @pytest.mark.mpi"
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def folder(comm):
    """A folder of rank 0's; pytest's tmp_path is not made for several processes that start and end together."""
    made = tempfile.mkdtemp() if comm.rank == 0 else None
    yield Path(comm.bcast(made))
    if made:
        shutil.rmtree(made)

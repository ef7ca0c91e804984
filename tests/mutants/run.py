"""Do the tests notice a fault? `make mutate` plants each one of the list in a copy of the tree and runs its tests.

The list is the patches beside this file, `git diff -U1` of one fault each, with a header before the diff:

    Fault: a step counter that wraps at 2^16.
    Tests: tests/codecs/test_qsgd.py -k steps
    Tests: mpirun -n 3 tests/mpi/test_state.py
    Harmless: why it changes no behaviour          (only where that is so)

A fault is noticed if pytest says that a test failed, or if a test's own guard ended it. The tests must pass without the
fault, and a patch that does not apply, a build that fails or tests that cannot be collected are errors of the list.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path("tests/mutants")
COMPILER = Path(__file__).with_name("compiler.py")
OBJECTS = ROOT / "build" / "mutate"
BUILT = ("gqallreduce/_kernels.cpp", "gqallreduce/_kernels*.so")
CYTHON = (".pyx", ".pxd", ".pxi")
SOURCES = ("csrc/*", *("*" + suffix for suffix in CYTHON), "setup.py")
SECONDS = 600  # the outer guard of one command: a test that hangs without a guard of its own is an error of the list
NOTICED, UNSEEN, HARMLESS, ERROR = "noticed", "NOT NOTICED", "harmless", "ERROR"
FIELDS = ("Fault", "Tests", "Harmless")


class ListError(Exception):
    """Something is wrong with a fault's patch or tests."""


@dataclass
class Fault:
    """One patch, and what its header says."""

    path: Path
    fault: str = ""
    tests: list[str] = field(default_factory=list)
    harmless: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def files(self) -> list[str]:
        """The files that it changes."""
        return re.findall(r"^\+\+\+ b/(\S+)$", self.path.read_text(), re.MULTILINE)

    @property
    def needs_build(self) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for name in self.files for pattern in SOURCES)


def read(path: Path) -> Fault:
    """The fault of a patch; ListError if its header is not complete."""
    header, _, diff = path.read_text().partition("diff --git ")
    said: dict[str, list[str]] = {name: [] for name in FIELDS}
    for line in filter(None, map(str.strip, header.splitlines())):
        name, colon, text = line.partition(": ")
        if not colon or name not in said:
            raise ListError(f"header line {line!r}, expected one of {', '.join(FIELDS)}, a colon and a text")
        said[name].append(text)
    if len(said["Fault"]) != 1 or not said["Tests"] or len(said["Harmless"]) > 1 or not diff:
        raise ListError("expected one line 'Fault:', one or more 'Tests:', at most one 'Harmless:', and a diff")
    return Fault(path, said["Fault"][0], said["Tests"], *said["Harmless"])


def command(tests: str) -> list[str]:
    """What a line of tests stands for: pytest in one process, or under mpirun."""
    words = shlex.split(tests)
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    if words[0] != "mpirun":
        return [*pytest, *words]
    launch = [str(Path(sys.executable).with_name("mpirun")), *words[1:3]]
    return [*launch, *pytest, "--with-mpi", "-o", "faulthandler_timeout=60", *words[3:]]


# --- copies of the tree ---


@contextlib.contextmanager
def copy_of(root: Path):
    """A temporary folder with the files of the tree, committed or not, and what was built in it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    names += [str(path.relative_to(root)) for pattern in BUILT for path in root.glob(pattern)]
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        for name in filter(None, names):
            source, target = root / name, Path(folder, name)
            if source.is_symlink() or source.is_file():  # else deleted, and not committed yet
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        yield Path(folder)


def environment(folder: Path) -> dict[str, str]:
    """For what runs in a copy: its own package, the same random examples each time."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GQALLREDUCE_"))}
    launch = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    launch |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
    fixed = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true", "NO_COLOR": "1"}
    build = {"CC": str(COMPILER), "CXX": str(COMPILER), "MUTATE_OBJECTS": str(OBJECTS)}
    return mine | launch | fixed | build | {"GIT_CEILING_DIRECTORIES": str(folder.parent), "OMP_NUM_THREADS": "1"}


def run(words: list[str], folder: Path, what: str) -> subprocess.CompletedProcess:
    """A command in a copy; ListError if it does not end."""
    try:
        return subprocess.run(
            words, cwd=folder, env=environment(folder), timeout=SECONDS, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ListError(f"{what} did not end within {SECONDS} s") from None


def plant(fault: Fault, folder: Path) -> None:
    """Apply the patch and build what it touches."""
    done = run(["git", "apply", "--whitespace=nowarn", str(fault.path)], folder, "git apply")
    if done.returncode:
        raise ListError(f"the patch does not apply: {_last_line(done.stdout)}")
    if fault.needs_build:
        for name in BUILT if any(name.endswith(CYTHON) for name in fault.files) else BUILT[1:]:
            for path in folder.glob(name):
                path.unlink()
        done = run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], folder, "the build")
        if done.returncode:
            raise ListError(f"the build failed: {_last_line(done.stdout)}")


# --- verdicts ---


def fails(tests: str, folder: Path) -> bool:
    """Did a test fail? ListError if the tests could not be run."""
    done = run(command(tests), folder, tests)
    summary = re.search(r"\d+ (failed|error)", done.stdout) or "Timeout (" in done.stdout or "aborting" in done.stdout
    if done.returncode == 1 and summary:
        return True
    if done.returncode:
        raise ListError(f"{tests}: exit status {done.returncode}: {_last_line(done.stdout)}")
    return False


class Soundness:
    """Do tests pass in the tree as it is? Each command is run once, when it is first asked for."""

    def __init__(self, root: Path):
        self.root, self.locks, self.known = root, collections.defaultdict(threading.Lock), {}

    def require(self, tests: str) -> None:
        """ListError unless they pass."""
        with self.locks[tests]:
            if tests not in self.known:
                self.known[tests] = self._wrong(tests)
        if self.known[tests]:
            raise ListError(f"without the fault: {self.known[tests]}")

    def _wrong(self, tests: str) -> str:
        try:
            with copy_of(self.root) as folder:
                return f"{tests} fails" if fails(tests, folder) else ""
        except ListError as error:
            return str(error)


def judge(fault: Fault, root: Path, soundness: Soundness) -> tuple[str, str]:
    """(verdict, the tests that noticed it or what is wrong with it)."""
    try:
        for tests in fault.tests:
            soundness.require(tests)
        with copy_of(root) as folder:
            plant(fault, folder)
            found = next((tests for tests in fault.tests if fails(tests, folder)), None)
    except ListError as error:
        return ERROR, str(error)
    if fault.harmless:
        return (HARMLESS, fault.harmless) if found is None else (ERROR, f"called harmless, but it fails {found}")
    return (UNSEEN, fault.fault) if found is None else (NOTICED, found)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "(no output)"


# --- the command ---


def choose(folder: Path, words: list[str]) -> tuple[list[Fault], list[tuple[str, str]]]:
    """(the faults whose names are given, by name or glob, or all; what is wrong with those that cannot be read)."""
    faults, broken = [], []
    for path in sorted(folder.glob("*.patch")):
        if not words or any(fnmatch.fnmatch(path.stem, word) for word in words):
            try:
                faults.append(read(path))
            except ListError as error:
                broken.append((path.stem, str(error)))
    return faults, broken


@contextlib.contextmanager
def progress(total: int):
    """A function to call when one of `total` things is done; draws a bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda what: bar.update(task, advance=1, description=f"after {what}")


def verdicts(faults: list[Fault], root: Path, jobs: int):
    """(name, verdict, more) of each fault, in order."""
    soundness = Soundness(root)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool, progress(len(faults)) as done:
        for fault, found in zip(faults, pool.map(lambda fault: judge(fault, root, soundness), faults), strict=True):
            done(fault.name)
            yield fault.name, *found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of faults, or globs; all if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time; more than cores / 2 disturbs mpirun's")
    parser.add_argument("--list", action="store_true", help="only say what the faults are")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree; by default the one that this file is in")
    arguments = parser.parse_args()
    faults, rows = choose(arguments.root / PLACE, arguments.names)
    rows = [(name, ERROR, more) for name, more in rows]
    if not faults and not rows:
        print(f"no fault is called {' or '.join(arguments.names)}", file=sys.stderr)
        return 2
    width = max(len(name) for name in [*(fault.name for fault in faults), *(row[0] for row in rows)])
    if arguments.list:
        for fault in faults:
            print(f"{fault.name:{width}}  {fault.fault}")
        return 0
    for row in rows:
        print(f"{row[0]:{width}}  {row[1]:{len(UNSEEN)}}  {row[2]}")
    for row in verdicts(faults, arguments.root, max(1, arguments.jobs)):
        print(f"{row[0]:{width}}  {row[1]:{len(UNSEEN)}}  {row[2]}", flush=True)
        rows.append(row)
    return tell([verdict for _, verdict, _ in rows])


def tell(found: list[str]) -> int:
    """Print the count; the exit status."""
    count = {verdict: found.count(verdict) for verdict in (NOTICED, UNSEEN, HARMLESS, ERROR)}
    more = [f"{count[HARMLESS]} harmless"] * bool(count[HARMLESS]) + [f"{count[ERROR]} errors"] * bool(count[ERROR])
    print(f"{count[NOTICED]} of {len(found) - count[HARMLESS]} faults noticed", *more, sep=", ")
    return 1 if count[UNSEEN] or count[ERROR] else 0


if __name__ == "__main__":
    sys.exit(main())

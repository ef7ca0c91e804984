"""What the pages say can be done can be done: their Python runs, their commands and links lead somewhere."""

import ast
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import gqallreduce

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE_BY_RUNNING = ("bench/results/",)
# Pages for jobs of several ranks, whose Python has to work, and to print the same, on each of them.
ON_RANKS = [ROOT / "docs" / name for name in ("pytorch.md", "trainers.md")]
MPIRUN = Path(sys.executable).with_name("mpirun")
ONE_RANK = """
import contextlib, runpy, sys
from mpi4py import MPI
with open(f"printed{MPI.COMM_WORLD.rank}", "w") as file, contextlib.redirect_stdout(file):
    runpy.run_path(sys.argv[1], run_name="__main__")
"""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page, language):
    """(line number, text) of every fenced block of a language."""
    text = page.read_text()
    return [(text[: m.start(2)].count("\n") + 1, m[2]) for m in FENCE.finditer(text) if m[1] == language]


def program(page):
    """The Python blocks of a page as one program, every line where it stands in the page."""
    lines = []
    for number, text in blocks(page, "python"):
        lines += [""] * (number - 1 - len(lines)) + text.splitlines()
    return "\n".join(lines) + "\n"


def alone():
    """The environment for a process of its own with this package, also when this test runs under mpirun."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMI", "PMIX"))}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(gqallreduce.__file__).parents[1]), env.get("PYTHONPATH", "")])
    return env


def promised_output(source):
    """What `print(...)  # this` promises, in order."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", source, re.MULTILINE)


def shell_commands():
    """(page name, command words) of every line of a shell block; a comment or a continued line is none."""
    found = []
    for page in PAGES:
        for _, text in blocks(page, "bash"):
            joined = text.replace("\\\n", " ")
            found += [(page.name, line) for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_and_prints_what_it_says(page, tmp_path):
    script = written(page, tmp_path)
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, capture_output=True, text=True, env=alone(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    require_promised(page, done.stdout)


@pytest.mark.parametrize("page", ON_RANKS, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_on_two_ranks_and_prints_what_it_says_on_each(page, tmp_path):
    script, rank = written(page, tmp_path), tmp_path / "rank.py"
    if not MPIRUN.exists():
        pytest.skip("there is no mpirun beside this Python")
    rank.write_text(ONE_RANK)
    # With -m mpi4py an error of one rank ends the job.
    command = [MPIRUN, "-n", "2", sys.executable, "-W", "error", "-m", "mpi4py", rank, script]
    environment = {**alone(), "MPIEXEC_TIMEOUT": "300", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for each in range(2):
        require_promised(page, (tmp_path / f"printed{each}").read_text())


def written(page, folder):
    """The Python of a page as a script in a folder; skips the test where a package is not there."""
    source = program(page)
    for name in ("torch", "jax"):
        if re.search(f"^import {name}$", source, re.MULTILINE):
            pytest.importorskip(name, reason=f"{name} is not installed: make test-{name}")
    script = folder / f"page_{page.stem}.py"
    script.write_text(source)
    return script


def require_promised(page, output):
    promised, printed = promised_output(program(page)), output.splitlines()
    assert len(printed) == len(promised), f"prints {printed}, says {promised}"
    wrong = [(said, got) for said, got in zip(promised, printed, strict=True) if not fnmatch(got, _literal(said))]
    assert not wrong


def _literal(said):
    """A pattern in which only `...` stands for anything."""
    return re.sub(r"([*?\[])", r"[\1]", said).replace("...", "*")


@every_page
def test_no_fence_is_left_open_and_every_block_says_what_it_is(page):
    fences = re.findall(r"^```.*$", page.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert [fence for fence in fences[::2] if fence == "```"] == []
    assert {fence[3:] for fence in fences[::2]} <= {"python", "bash", "text"}


@pytest.mark.parametrize(("page", "line"), shell_commands())
def test_a_command_names_what_exists(page, line):
    words = [word for word in shlex.split(line, comments=True) if "=" not in word or word.startswith("-")]
    assert _known(words), f"{page}: {line}"


def _known(words):
    first = words[0]
    if first == "make":
        targets = set(re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return all(word in targets or re.sub(r"\d+$", "%", word) in targets for word in words[1:])
    if first == "pip":
        project = (ROOT / "pyproject.toml").read_text()
        wanted = [extra for text in re.findall(r"\[([\w,]+)\]", words[-1]) for extra in text.split(",")]
        return words[1] == "install" and all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in wanted)
    if first in ("mpirun", "srun"):
        return _known(words[words.index("python") :])
    if first == "sbatch":
        return (ROOT / words[-1]).exists()
    if first == "slurm/local":
        return (ROOT / first).exists() and _known(words[1:])
    if first == "bench/netbed":
        return (ROOT / first).exists() and _known(words[words.index("--") + 1 :])
    if words[:3] == ["python", "-m", "gqallreduce"]:
        return (ROOT / "gqallreduce" / "cli" / f"{words[3]}.py").exists()
    if words[:3] == ["python", "-m", "pytest"]:
        return all((ROOT / word).exists() for word in words[3:] if not word.startswith("-"))
    if first == "python":
        return (ROOT / words[1]).exists() or _written_by_a_page(words[1])
    return first in ("git", "cd", "bash", "export")


def _written_by_a_page(name):
    """A script that a page shows in full: a Python block that begins with its name."""
    return any(text.startswith(f"# {name}\n") for page in PAGES for _, text in blocks(page, "python"))


COMMANDS = [line for _, line in shell_commands() if re.match(r"python -m gqallreduce (info|schemes|plan)\b", line)]


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_commands_for_one_process_run(line, tmp_path):
    words = shlex.split(line, comments=True)[1:]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=alone(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@every_page
def test_links_lead_to_files_and_headings(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and anchor not in _anchors(found)):
            broken.append(target)
    assert broken == []


def _without_code(text):
    return FENCE.sub("", text)


def _anchors(page):
    """The headings of a page as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|pyx|hpp|cpp|md|toml|cu|jsonl)|(?:[\w.-]+/)+)`")
NO_FOLDERS = ("auto/",)


@every_page
def test_files_that_are_named_exist(page):
    named = {name for name in FILE.findall(_without_code(page.read_text())) if "NAME" not in name} - set(NO_FOLDERS)
    missing = [name for name in named if not name.startswith(MADE_BY_RUNNING) and not _exists(name)]
    assert sorted(missing) == []


def _exists(name):
    """From the root, or, for a part of the package as `codecs/qsgd.py`, from the package."""
    return (ROOT / name).exists() or (ROOT / "gqallreduce" / name).exists()


def test_pages_that_docstrings_name_exist():
    package = ROOT / "gqallreduce"
    sources = [
        *package.rglob("*.py"),
        package / "_kernels.pyx",
        *package.rglob("*.px[di]"),
        *(ROOT / "csrc").rglob("*.?pp"),
    ]
    named = {name for source in sources for name in re.findall(r"docs/\w+\.md", source.read_text())}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@every_page
def test_every_page_is_in_the_reading_order(page):
    if page.name not in ("index.md", "README.md", "CHANGELOG.md"):
        assert f"]({page.name})" in (ROOT / "docs" / "index.md").read_text()


def test_results_that_are_quoted_are_files():
    form = re.compile(r"bench/results/[\w.-]+\.(?:jsonl|png|svg)")
    quoted = {name for page in PAGES for name in form.findall(page.read_text())}
    assert [name for name in sorted(quoted) if not (ROOT / name).exists()] == []


@every_page
def test_no_page_names_a_machine_or_leaves_a_gap(page):
    text = page.read_text()
    assert not re.search(r"/(?:home|root|tmp|work|mnt|Users)/", text)
    assert not re.search(r"\b(TODO|TBD|FIXME|XXX|placeholder)\b", text, re.IGNORECASE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_names_only_what_the_package_has(page):
    """Attributes of `gq` in a page, so that a rename is noticed also in code that a guard leaves out."""
    names = {
        node.attr
        for node in ast.walk(ast.parse(program(page)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gq"
    }
    assert [name for name in sorted(names) if name not in gqallreduce.__all__ and not hasattr(gqallreduce, name)] == []

"""The list of planted faults is in order, and its runner (`make mutate`) tells what is noticed from what is not."""

import difflib
import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "mutants"
PATCHES = sorted(FOLDER.glob("*.patch"))
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git on this system")


def load():
    spec = importlib.util.spec_from_file_location("mutants", FOLDER / "run.py")
    module = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = load()
every_patch = pytest.mark.parametrize("patch", PATCHES, ids=[path.stem for path in PATCHES])


@every_patch
def test_every_patch_applies_to_the_tree(patch):
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@every_patch
def test_every_patch_says_what_is_wrong_and_which_tests_notice_it(patch):
    fault = mutants.read(patch)
    assert fault.files
    assert all(not name.startswith("tests/") for name in fault.files)
    assert fault.fault.endswith(".")
    for tests in fault.tests:
        files = [word for word in shlex.split(tests) if word.startswith("tests/")]
        assert files
        assert all((ROOT / name.partition("::")[0]).exists() for name in files)
        assert any("tests/mpi" in name for name in files) == tests.startswith("mpirun -n ")


# --- the runner, on a tree of one module and one test file ---

TREE = {
    "thing.py": "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n",
    "tests/test_thing.py": "from thing import double\n\n\ndef test_double():\n    assert double(3) == 6\n",
    "tests/test_broken.py": "def test_broken():\n    raise AssertionError\n",
}
FAULTS = {
    "doubles_wrongly": ("2 * x", "3 * x", "tests/test_thing.py", ""),
    "halves_wrongly": ("x / 2", "x / 3", "tests/test_thing.py", ""),
    "says_it_otherwise": ("2 * x", "x + x", "tests/test_thing.py", "Harmless: the same number.\n"),
    "is_harmless_they_say": ("2 * x", "4 * x", "tests/test_thing.py", "Harmless: so they say.\n"),
    "does_not_apply": ("2*x", "3*x", "tests/test_thing.py", ""),
    "cannot_be_collected": ("def double", "def treble", "tests/test_thing.py", ""),
    "has_tests_that_fail_anyway": ("2 * x", "3 * x", "tests/test_broken.py", ""),
    "has_no_tests": ("2 * x", "3 * x", "tests/test_thing.py -k nothing", ""),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    for name, text in TREE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tests" / "mutants").mkdir()
    for name, (old, new, tests, more) in FAULTS.items():
        text = f"Fault: {name}.\nTests: {tests}\n{more}\n{diff(old, new)}"
        (folder / "tests" / "mutants" / f"{name}.patch").write_text(text)
    (folder / "tests" / "mutants" / "has_no_header.patch").write_text("Fault: none.\n")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def diff(old, new):
    """What turns `old` into `new` in the module; where it has no `old`, a patch that does not apply."""
    before = TREE["thing.py"] if old in TREE["thing.py"] else f"{old}\n"
    lines = (text.splitlines(keepends=True) for text in (before, before.replace(old, new)))
    return "diff --git a/thing.py b/thing.py\n" + "".join(difflib.unified_diff(*lines, "a/thing.py", "b/thing.py", n=1))


def run(tree, *words):
    """(exit status, first words of each row by name, the last line)"""
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--root", tree, *words], capture_output=True, text=True, check=False
    )
    *rows, last = done.stdout.splitlines()
    return done.returncode, {row.split()[0]: row.split(maxsplit=1)[1].strip() for row in rows}, last


@pytest.mark.slow
def test_the_runner_tells_noticed_from_not_noticed_and_from_what_is_no_verdict(tree):
    status, rows, last = run(tree)
    verdicts = {name: row.split("  ")[0] for name, row in rows.items()}
    assert verdicts == {
        "doubles_wrongly": "noticed",
        "halves_wrongly": "NOT NOTICED",
        "says_it_otherwise": "harmless",
        **dict.fromkeys([*list(FAULTS)[3:], "has_no_header"], "ERROR"),
    }
    assert "does not apply" in rows["does_not_apply"]
    assert "exit status 2" in rows["cannot_be_collected"]
    assert "without the fault" in rows["has_tests_that_fail_anyway"]
    assert "exit status 5" in rows["has_no_tests"]
    assert "called harmless" in rows["is_harmless_they_say"]
    assert last == "1 of 8 faults noticed, 1 harmless, 6 errors"
    assert status == 1


@pytest.mark.slow
def test_faults_are_chosen_by_name_and_all_is_well_if_those_are_noticed(tree):
    assert run(tree, "doubles*", "says*") == (
        0,
        {"doubles_wrongly": "noticed      tests/test_thing.py", "says_it_otherwise": "harmless     the same number."},
        "1 of 1 faults noticed, 1 harmless",
    )
    assert run(tree, "halves_wrongly")[0] == 1
    assert run(tree, "--list", "halves_wrongly", "doubles_wrongly")[1:] == (
        {"doubles_wrongly": "doubles_wrongly."},
        "halves_wrongly   halves_wrongly.",
    )


def test_the_tree_is_left_as_it_was(tree):
    assert {name: (tree / name).read_text() for name in TREE} == TREE

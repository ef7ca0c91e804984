"""The command line without MPI: what it offers, what it refuses, and that it starts quickly."""

import importlib.metadata
import subprocess
import sys

import pytest

from gqallreduce import __main__
from gqallreduce.cli import codecs, info


def python(*words):
    """Runs `python words...` alone; (status, output, errors)."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [[], ["nonsense"], ["bench", "--nonsense"]])
def test_what_is_not_a_command_is_refused(capsys, words):
    with pytest.raises(SystemExit) as refusal:
        __main__.main(words)
    assert refusal.value.code == 2


@pytest.mark.parametrize("command", ["info", "bench"])
def test_every_command_explains_itself(capsys, command):
    with pytest.raises(SystemExit) as end:
        __main__.main([command, "--help"])
    assert end.value.code == 0
    assert command in capsys.readouterr().out


def test_asking_for_help_imports_neither_mpi_nor_matplotlib():
    program = (
        "import sys; from gqallreduce.__main__ import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit: assert not {'mpi4py.MPI', 'matplotlib', 'rich'} & set(sys.modules)"
    )
    status, _, errors = python("-c", program)
    assert (status, errors) == (0, "")


def test_info_names_the_parts_and_works_without_mpi4py():
    hide = "import sys; sys.modules['mpi4py'] = None\nfrom gqallreduce.__main__ import main; sys.exit(main(['info']))"
    status, output, errors = python("-c", hide)
    assert (status, errors) == (0, "")
    for name in ("python", "gqallreduce", "mpi4py", "SIMD level", "threads", "profile", "MPI "):
        assert any(line.startswith(name) for line in output.splitlines()), output
    assert "not available" in output


def test_info_finds_packages_by_their_own_names_and_by_those_of_their_distributions(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="a package whose distribution has another name")
    version = importlib.metadata.version
    assert info._version("numpy") == version("numpy")
    assert info._version("sklearn") == version("scikit-learn")
    (tmp_path / "of_no_distribution").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert {info._version(name) for name in ("of_no_distribution", "no_such_package")} == {"not installed"}


@pytest.mark.parametrize(("text", "nbytes"), [("4096", 4096), ("256KiB", 1 << 18), ("64MiB", 1 << 26)])
def test_sizes_are_read(text, nbytes):
    assert codecs.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "5", "-4", "64MB", "KiB", "1.5MiB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="size"):
        codecs.parse_size(text)

"""CONTRIBUTING.md names every verb of the Makefile and gives a reason for every dependency."""

import re
from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import load_file

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PROJECT = load_file(ROOT / "pyproject.toml")
INTERNAL = {"build", "venv", "test-alone", "test-harness", "test-ranks", "test-mpich"}


def verbs():
    """Return the phony targets that people call; `build` is `make` alone."""
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return sorted(set(line.split()) - INTERNAL | {"test-N"})


def dependencies():
    project = PROJECT["project"]
    groups = [PROJECT["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[\w.-]+", requirement).group() for group in groups for requirement in group}
    return sorted(names - {"gqallreduce"})


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_of_the_makefile_is_explained(verb):
    assert re.search(rf"^\| `make {verb}` \| \S+", TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", dependencies())
def test_every_dependency_has_its_reason(name):
    assert re.search(rf"^\| {re.escape(name)} \| \S+.*\| \S{{2,}}.* \|$", TEXT, re.MULTILINE)


def test_no_reason_is_given_for_what_is_not_a_dependency():
    (table,) = re.findall(r"^\| dependency \|.*\n\|[-| ]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert sorted(row.split("|")[1].strip() for row in table.splitlines()) == dependencies()


def test_the_files_it_points_to_exist():
    named = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []

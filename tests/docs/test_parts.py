"""The table of parts in docs/design.md names every module of the package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gqallreduce"
# The table names these as a whole, for what each file in them is.
WHOLE = ("cli/", "codecs/", "schedules/", "backends/cuda/")


def table():
    """(folder, second cell) of each row of the table of parts; an empty first cell stands for the one above it."""
    section = (ROOT / "docs" / "design.md").read_text().split("\n## The parts\n")[1].split("\n## ")[0]
    folder, found = "", []
    for line in re.findall(r"^\| .*$", section, re.MULTILINE)[1:]:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        folder = cells[0].strip("`") or folder
        found.append((folder, cells[1]))
    return found


def named():
    """The files that the table names, from the root of the package."""
    return {
        name if folder == "gqallreduce/" else folder + name
        for folder, cell in table()
        for name in re.findall(r"`([\w/]+\.py)`", cell)
    }


def modules():
    """Every module that the table should name."""
    paths = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py"))]
    return [path for path in paths if not path.endswith("__.py") and not path.startswith(WHOLE)]


@pytest.mark.parametrize("path", modules())
def test_the_table_of_parts_names_a_module(path):
    assert path in named()


@pytest.mark.parametrize("folder", WHOLE)
def test_what_is_named_as_a_whole_is_in_the_table(folder):
    assert folder in {folder for folder, _ in table()} or any(f"`{folder}`" in cell for _, cell in table())

"""`make site`: the pages and the public names as a site, without a warning."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gqallreduce as gq

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("sphinx", "myst_parser", "furo", "torch") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed (make site)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-c",
        "docs/site",
        ".",
        str(folder),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_there_with_its_docstring(site):
    text = (site / "docs" / "site" / "api.html").read_text()
    for name in gq.__all__:
        assert f'id="gqallreduce.{name}"' in text or re.search(rf'id="gqallreduce\.[\w.]*\.{name}"', text), name
    for name in importlib.import_module("gqallreduce.torch").__all__:
        assert re.search(rf'id="gqallreduce\.torch\.([\w.]*\.)?{name}"', text), name
    assert "<dt>timeout</dt>" in text  # of a docstring's list of options


def test_every_page_is_in_the_site_and_in_its_search(site):
    index = (site / "searchindex.js").read_text()
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        name = page.relative_to(ROOT).with_suffix("")
        assert (site / f"{name}.html").exists()
        assert f'"{name}"' in index
    assert "README.html" in (site / "index.html").read_text()

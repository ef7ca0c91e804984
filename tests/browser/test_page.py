"""The page of `report`, in a browser: every plot is drawn, nothing is logged, tables sort, colours follow."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gqallreduce.__main__ import main

ROOT = Path(__file__).parents[2]
FILES = "latency_1", "codecs", "train_char", "mem_sgd", "isgq", "gradiveq", "sparse_sums", "netbed_4x1gbit_64MiB"
FILES += "first_look_1gbit", "train_slow_1gbit"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="plotly is not installed (extra `bench`)"),
    pytest.mark.skipif(importlib.util.find_spec("PySide6") is None, reason="no browser: PySide6 (make test-report)"),
]


@pytest.fixture(scope="module", autouse=True)
def browser():
    """A skip where the browser misses a library of the system; whatever else it does not do is a failure."""
    words = [sys.executable, "-c", "import PySide6.QtWebEngineWidgets"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"QtWebEngine does not start here: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    files = [str(ROOT / "bench" / "results" / f"{name}.jsonl") for name in FILES]
    assert main(["report", *files, "-o", str(path)]) == 0
    return path


def look(page, width, *words):
    script = Path(__file__).with_name("look.py")
    words = [sys.executable, str(script), str(page), str(page.with_suffix(f".{width}.png")), str(width), *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip(), done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_plot_is_drawn_and_nothing_is_logged(page):
    found = look(page, 1200)
    assert found["logged"] == []
    assert len(found["plots"]) > 15
    assert all(found["plots"])
    assert found["hovered"] > 0
    assert found["up"] == sorted(found["up"])
    assert found["down"] == found["up"][::-1]
    assert found["background"] == "rgb(255, 255, 255)"


def test_on_a_telephone_in_the_dark(page):
    found = look(page, 400, "dark")
    assert found["logged"] == []
    assert not found["wide"]
    assert found["background"] == "rgb(20, 25, 31)"
    assert found["ink"] == "rgb(219, 226, 234)"

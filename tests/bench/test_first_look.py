"""What `make bench` runs, and the three lines that it ends with."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gqallreduce.cli import report, verdict

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
SHARED = {"ranks": 4, "link": "shared memory"}
PACED = {"ranks": 4, "link": "paced link, 1 Gbit/s, 4 hosts"}


def rows(speedups, errors):
    """Of sizes of 1, 2, 4, ... KiB: scheme -> its speed-ups; every scheme has an error."""
    found = []
    for scheme, values in {"MPI_Allreduce": [1.0] * 3, **speedups}.items():
        for number, value in enumerate(values):
            more = {"error": errors.get(scheme, 0.0), "seconds": [0.004 / value], "dense": scheme == "MPI_Allreduce"}
            found.append({"scheme": scheme, "bytes": 1024 << number, "speedup": value, **more})
    return found


def test_the_lines_say_who_wins_by_how_much_and_from_where_on():
    errors = {"direct/onebit/ef": 0.72, "direct/qsgd(bits=4)": 0.25}
    slow = rows({"direct/onebit/ef": [0.1, 0.3, 0.5], "direct/qsgd(bits=4)": [0.1, 0.1, 0.2]}, errors)
    fast = rows({"direct/onebit/ef": [2.0, 0.5, 14.0], "direct/qsgd(bits=4)": [0.5, 2.0, 7.0]}, errors)
    assert verdict.lines([(SHARED, slow), (PACED, fast)]) == [
        "4 ranks, shared memory: MPI's own allreduce wins; the fastest scheme takes 2.0 times as long at 4 KiB.",
        "4 ranks, paced link, 1 Gbit/s, 4 hosts: direct/onebit/ef is 14.0 times as fast as the better dense allreduce "
        "at 4 KiB (0.286 ms) and faster from 4 KiB on; the error of a sum is 72 %, which is added to later sums.",
        "There, without feedback: direct/qsgd(bits=4) is 7.0 times as fast as the better dense allreduce at 4 KiB "
        "(0.571 ms) and faster from 2 KiB on; the error of a sum is 25 %.",
    ]


def test_other_schemes_than_the_usual_have_their_line_too():
    only = rows({"direct/onebit/ef": [2.0, 3.0, 4.0]}, {})
    assert len(verdict.lines([(SHARED, only)])) == 1
    assert "only MPI's own allreduce" in verdict.lines([(SHARED, rows({}, {}))])[0]


def test_make_writes_no_file_that_is_tracked():
    asked = ["make", "--dry-run", "bench", "BENCH_ARGUMENTS=--max 64"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert "first_look.py --ranks 4 --output build/bench/first_look --max 64" in said.stdout
    assert "/build/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed (extra `bench`)")
@pytest.mark.parametrize("network", [True, False])
def test_both_links_or_one_and_why(network, tmp_path, monkeypatch):
    """Without a network: with a PATH that has no `ip`."""
    if not network:
        for name in ("unshare", "mount", "nsenter", "setpriv", "python3"):
            (tmp_path / name).symlink_to(Path("/usr/bin") / name)
        monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--ranks", "2", "--max", "64", "--seconds", "0.2", "--repetitions", "2", "--output", str(tmp_path / "x")]
    schemes = ["--schemes", "direct/onebit/ef", "direct/qsgd(bits=4)"]
    done = subprocess.run(
        [sys.executable, str(BENCH / "first_look.py"), *words, *schemes], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "x_shared_memory.jsonl").read_text().splitlines()[0])["ranks"] == 2
    made = (tmp_path / "x_1gbit.jsonl").exists()
    assert made is not ("No emulated network here" in done.stdout)
    # Who wins, and so how many lines say it, depends on the machine.
    files = [tmp_path / f"x_{link}.jsonl" for link in ("shared_memory", "1gbit")[: 1 + made]]
    expected = verdict.lines([report.read(file, "sum") for file in files])
    assert done.stdout.rstrip().splitlines()[-len(expected) :] == expected
    assert network or not made

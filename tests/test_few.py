"""What `--few` leaves of the promises: each test, and in the tests of a file each codec and each schedule."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gqallreduce.registry import CODECS, SCHEDULES

pytestmark = pytest.mark.slow  # each test collects a file twice
ROOT = Path(__file__).parents[1]
REGISTERED = {*CODECS, *SCHEDULES}
# without mpirun, whose tests are only collected here
COMMAND = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]


def collected(part, path):
    """{test: the codecs and schedules that its parameters name}."""
    done = subprocess.run([*COMMAND, part, path], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for line in done.stdout.splitlines():
        test, _, values = line.partition("[")
        if "::" in test:
            found.setdefault(test, set()).update(REGISTERED.intersection(re.findall(r"\w+", values)))
    return found


@pytest.mark.parametrize(
    ("path", "everything"),
    [
        ("tests/whole/test_promises.py", SCHEDULES),
        ("tests/codecs/test_contract.py", ()),
        ("tests/mpi/test_results.py", REGISTERED),
    ],
)
def test_each_codec_and_each_schedule_is_left(path, everything):
    few, each = collected("--few", path), collected("--each", path)
    assert few.keys() == each.keys()
    assert set().union(*few.values()) == set().union(*each.values()) >= set(everything)

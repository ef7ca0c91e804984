"""Where the system starts no more threads, a call goes on with those there are and gives the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("few_threads.cpp")
SIZE = 6 * 16384 + 77
# Prints what every codec made of the same values, and how many threads the process has.
PROGRAM = f"""
import hashlib, json, os
import numpy as np
import gqallreduce as gq
from gqallreduce.registry import CODECS

values = np.random.default_rng(0).standard_normal({SIZE}, dtype=np.float32)

def made():
    digest = hashlib.sha256()
    for name in sorted(CODECS):
        scheme = gq.Scheme.parse(CODECS[name].example)
        message = scheme.encode(values)
        digest.update(message)
        digest.update(scheme.decode(message, values.size))
    return digest.hexdigest(), len(os.listdir("/proc/self/task"))

first = made()
os.environ["FEW_THREADS"] = "100"
print(json.dumps([first, made()]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """What makes pthread_create fail, for LD_PRELOAD."""
    built = tmp_path_factory.mktemp("few") / "few_threads.so"
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, SOURCE, "-o", built, "-ldl"], check=True)
    return built


def run(few, preloaded):
    environment = {**os.environ, "GQALLREDUCE_THREADS": "4", "OPENBLAS_NUM_THREADS": "1", "FEW_THREADS": str(few)}
    environment["LD_PRELOAD"] = " ".join([os.environ.get("LD_PRELOAD", ""), *map(str, preloaded)])
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc/self/task on this system")
@pytest.mark.parametrize("few", [0, 1, 2])
def test_a_call_goes_on_with_the_threads_that_there_are(library, few):
    (expected, all_threads), _ = run(few, [])
    assert all_threads == 4
    (made, count), (later, full) = run(few, [library])
    assert count == 1 + few
    assert made == expected
    assert (later, full) == (expected, all_threads)  # a later call starts what is missing, if it can

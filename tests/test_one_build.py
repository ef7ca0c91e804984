"""One build of the extension serves every MPI: it is linked to none, and finds the functions of what is loaded."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gqallreduce import _kernels

ROOT = Path(__file__).parents[1]
PYTHONS = {"Open MPI": ROOT / ".venv/bin/python", "MPICH": ROOT / ".venv-mpich/bin/python"}
SCRIPT = """
import hashlib, json
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce import _kernels
with gq.Allreduce("direct/qsgd(bits=4)", comm=MPI.COMM_SELF) as allreduce:
    allreduce(np.ones(100, np.float32))
    native = allreduce.home.link.requests.native is not None
digest = hashlib.sha256(open(_kernels.__file__, "rb").read()).hexdigest()
print(json.dumps([MPI.get_vendor()[0], native, digest]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads an ELF file")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm (binutils) is missing")
def test_the_extension_asks_the_linker_for_no_mpi():
    command = ["nm", "-D", "--undefined-only", _kernels.__file__]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    symbols = re.findall(r" U (\S+)", asked.stdout)
    assert "PyObject_GetBuffer" in symbols
    assert [each for each in symbols if re.match("P?MPI_|[op]mpi_|MPIR_", each)] == []


def test_one_build_runs_under_both_mpis():
    found = {}
    for python in PYTHONS.values():
        if not python.exists():
            pytest.skip(f"{python.relative_to(ROOT)} is missing: make build, and make build MPI=mpich")
        done = subprocess.run([python, "-c", SCRIPT], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
        vendor, native, digest = json.loads(done.stdout.splitlines()[-1])
        assert native, f"functions of {vendor} are not found"
        found[vendor] = digest
    assert sorted(found) == sorted(PYTHONS)
    assert len(set(found.values())) == 1

"""The Slurm files: thin, without paths of a machine, and, where Slurm is installed, a real job of four ranks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LOCAL = ROOT / "slurm" / "local"
BATCH = sorted((ROOT / "slurm").glob("*.sbatch"))
# What the smoke test needs and the Debian package that has it.
COMMANDS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "setpriv": "util-linux"}
PLUGINS = {"auth_none.so": "slurm-wlm-basic-plugins", "mpi_pmix.so": "slurm-wlm-basic-plugins"}

every_file = pytest.mark.parametrize("path", BATCH, ids=lambda path: path.name)


@pytest.mark.parametrize("path", [*BATCH, LOCAL], ids=lambda path: path.name)
def test_a_slurm_file_is_a_shell_script(path):
    subprocess.run(["bash", "-n", path], check=True)


@every_file
def test_a_batch_file_is_thin_and_one_command_under_srun(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 12
    assert [line for line in lines if line.startswith("srun")] == lines[-1:]


@every_file
def test_a_batch_file_holds_no_path_of_a_machine(path):
    text = path.read_text().removeprefix("#!/bin/bash\n")
    assert re.findall(r"(?<![\w.$})\"])/[\w.]+", text) == []


@every_file
def test_what_a_batch_file_calls_a_variable_it_sets_before_the_command(path):
    text = path.read_text()
    used = set(re.findall(r'"\$(\w+)"|\$(\w+)\b', text))
    mine = {first or second for first, second in used} - {"SLURM_JOB_ID"}
    assert mine <= set(re.findall(r"^(\w+)=", text, re.MULTILINE))


# Says which options it got, and starts one process here.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do echo "$1"; shift; done
exec "$@"
"""
NO_GPU = r"bench: rank 0: (buffers in GPU memory need CuPy|no GPU can be used)"


def test_the_batch_file_for_gpus_binds_ranks_and_says_what_is_missing(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    results = tmp_path / "results"
    given = {"PYTHON": sys.executable, "OUTPUT": str(results), "CUDA_VISIBLE_DEVICES": "", "MPI": "pmix"}
    env = {**environment(), "PATH": path, **given}
    command = ["bash", "slurm/gpu.sbatch"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=100)
    assert done.returncode == 2
    assert re.match(NO_GPU, done.stderr)
    assert done.stdout.split() == ["--mpi=pmix", "--cpu-bind=cores", "--distribution=block:block"]
    assert list(tmp_path.iterdir()) == [srun]


@pytest.fixture(scope="module")
def slurm():
    """Skips, with the missing package by name, where Slurm and its plugins are not installed."""
    missing = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    folders = [*Path("/usr/lib").glob("*/slurm*"), *Path("/usr/lib").glob("*/slurm")]
    missing |= {package for name, package in PLUGINS.items() if not any((f / name).exists() for f in folders)}
    if not [*Path("/usr/lib").glob("*/pmix*/lib/libpmix.so"), *Path("/usr/lib").glob("*/libpmix.so")]:
        missing.add("libpmix-dev")
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")


PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
comm = MPI.COMM_WORLD
result = gq.quantized_allreduce(np.full(5000, comm.rank, np.float32), "qsgd(bits=4)")
everyone = comm.gather(result.tobytes())
if comm.rank == 0:
    print(comm.size, len(set(everyone)), abs(result - 6).max() < 1)
"""


def environment():
    """That of a process of its own with this package: under srun only srun says which rank it is."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMI", "SLURM"))}
    return env | {"PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])}


def interface():
    """What this environment's MPI speaks with srun."""
    mpirun = Path(sys.executable).with_name("mpirun")
    version = subprocess.run([mpirun if mpirun.exists() else "mpirun", "--version"], capture_output=True, text=True)
    return "pmix" if "Open MPI" in version.stdout else "pmi2"


def test_four_ranks_under_srun_sum_to_the_same_bits(slurm):
    command = [LOCAL, "srun", f"--mpi={interface()}", "-n", "4", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 1 True\n"


def test_ranks_under_srun_say_once_that_there_is_no_gpu(slurm, tmp_path):
    words = ["bench/allreduce_synthetic.py", "--device", "cuda", "--output", str(tmp_path / "results")]
    command = [LOCAL, "srun", f"--mpi={interface()}", "-n", "2", sys.executable, *words]
    env = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=100)
    assert done.returncode == 2
    assert len(re.findall(NO_GPU, done.stderr)) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_local_slurm_passes_on_the_status_and_leaves_nothing(slurm, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([LOCAL, "srun", "-n", "2", "sh", "-c", "exit 7"], capture_output=True, env=env, timeout=100)
    assert done.returncode == 7
    assert list(tmp_path.iterdir()) == []


def test_the_local_slurm_says_what_is_missing(tmp_path):
    command = [shutil.which("bash"), LOCAL, "true"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (77, "slurm/local: no slurmctld here\n")

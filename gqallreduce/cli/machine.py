"""What a benchmark ran on: processor, memory, MPI, launcher, link, commit. No host names, no user's paths.

Nothing here needs MPI except `nodes`; `describe` is told about it.
"""

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy

import gqallreduce
from gqallreduce import _kernels
from gqallreduce.scheduling.profile import processor, usable_cores

# In this order: a launcher inside a Slurm allocation sets its own beside Slurm's. Slurm's count is that of the
# allocation unless srun started this process, which SLURM_PROCID tells.
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


def launched(environ=None):
    """(variable, number of ranks) that the launcher announced; ("", 1) if there is none."""
    environ = os.environ if environ is None else environ
    for name in LAUNCHERS:
        started = not name.startswith("SLURM") or "SLURM_PROCID" in environ
        if started and environ.get(name, "").isdecimal():
            return name, int(environ[name])
    return "", 1


def launched_rank(environ=None):
    """The rank that the launcher announced to this process, without asking MPI; 0 if there is none."""
    environ = os.environ if environ is None else environ
    return next((int(environ[name]) for name in LAUNCHER_RANKS if environ.get(name, "").isdecimal()), 0)


def wrong_launcher(size, environ=None):
    """What is wrong if MPI has another number of ranks than the launcher started; "" if nothing is."""
    name, expected = launched(environ)
    if not name or size == expected:
        return ""
    return (
        f"MPI sees {size} of the {expected} ranks that the launcher started ({name}): "
        "mpirun or srun belongs to another MPI than the one mpi4py loaded"
    )


def launcher():
    """mpirun of the MPI that mpi4py has loaded, in whose environment it is."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else "mpirun"


def last_level_cache():
    """Bytes of the largest cache that core 0 sees; 32 MiB where the system does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdecimal() and text[-1] in "KM":
            sizes.append(int(text[:-1]) << (10 if text[-1] == "K" else 20))
    return max(sizes, default=32 << 20)


def free_memory():
    """Bytes that this machine can still give: the system's available memory, or less where a cgroup bounds it."""
    import psutil

    return min([psutil.virtual_memory().available, *cgroup_rest(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_rest(membership, root):
    """What each memory-limited cgroup above this process has left (version 2 hierarchy; batch systems use it)."""
    try:
        own = next(line[3:] for line in membership.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    group = root / own.strip("/")
    for folder in [group, *group.parents]:
        try:
            limit, used = (folder / "memory.max").read_text(), (folder / "memory.current").read_text()
        except OSError:
            continue
        if limit.strip().isdecimal():
            yield max(0, int(limit) - int(used))


def commit():
    """The commit of the source this package runs from, with + if files differ from it; None outside a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        name = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=folder, capture_output=True, text=True, timeout=10,
        )  # fmt: skip
        tracked = subprocess.run(["git", "ls-files", "--error-unmatch", __file__], cwd=folder, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return name.stdout.strip() if name.returncode == 0 and tracked.returncode == 0 else None


def command(arguments=None):
    """The command line with paths shortened to their last part."""
    words = sys.argv if arguments is None else arguments
    return " ".join(Path(word).name if word.startswith("/") else word for word in words)


def link(nodes, environ=None):
    """What joins the ranks: a test bed names its links in GQALLREDUCE_LINK, otherwise it follows from the nodes."""
    said = (os.environ if environ is None else environ).get("GQALLREDUCE_LINK")
    return said or f"network between {nodes} nodes" if nodes > 1 else "shared memory"


@contextlib.contextmanager
def ranks_of_node(comm):
    """A communicator of the ranks of this node, freed at the end. Collective."""
    from mpi4py import MPI

    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        yield local
    finally:
        local.Free()


def nodes(comm):
    """Nodes that the ranks of a communicator are on. Collective."""
    with ranks_of_node(comm) as local:
        return comm.allreduce(int(local.rank == 0))


def simd_levels():
    """The SIMD levels that this processor and build can run, from the plainest on; leaves the level as it was."""
    now, found = _kernels.simd_level(), []
    try:
        for level in ("scalar", "avx2", "avx512"):
            with contextlib.suppress(ValueError):
                _kernels.use_simd_level(level)
                found.append(level)
    finally:
        _kernels.use_simd_level(now)
    return found


def describe(**more):
    """The machine's description as a dict of plain values; `more` adds what only MPI or a device knows."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "cores_per_rank": usable_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "gqallreduce": gqallreduce.__version__,
        "simd": _kernels.simd_level(),
        "threads": _kernels.threads(),
        "commit": commit(),
        "command": command(),
        **more,
    }


def describe_job(comm, named=None, **more):
    """The same of all ranks of a job, with their number, nodes and MPI, and the link, by the name that it was given."""
    found = nodes(comm)
    return describe(ranks=comm.size, nodes=found, link=named or link(found), **describe_mpi(), **more)


def describe_mpi():
    """Versions of the MPI and of mpi4py; imports mpi4py.MPI."""
    import mpi4py

    from gqallreduce.transport.link import mpi_text

    return {"mpi": mpi_text(), "mpi4py": mpi4py.__version__}


def describe_gpu(runtime):
    """A GPU, and the versions of what it is reached by."""
    about = {"device": runtime.name, "architecture": runtime.architecture, "device_memory": runtime.memory}
    return about | runtime.versions

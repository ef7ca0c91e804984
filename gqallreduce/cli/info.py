"""`info`: what is installed and what it can do here. Works without mpi4py or a launcher."""

import importlib.metadata
import importlib.util
import os
import platform

import gqallreduce
from gqallreduce import _kernels
from gqallreduce.backends.cuda import awareness, runtime
from gqallreduce.backends.processor import Host
from gqallreduce.cli import machine
from gqallreduce.errors import Error
from gqallreduce.scheduling.profile import folder as profile_folder

PACKAGES = ("numpy", "mpi4py", "cupy", "torch")
OVERRIDES = (
    "GQALLREDUCE_SIMD", "GQALLREDUCE_THREADS", "GQALLREDUCE_RUNTIME", "GQALLREDUCE_PROGRESS",
    "GQALLREDUCE_AUTO", "GQALLREDUCE_HOST", "GQALLREDUCE_MAX_MESSAGE", "OMP_NUM_THREADS",
)  # fmt: skip


def add_arguments(parser):
    """`info` has no options."""


def run(arguments):
    """Prints one line per fact, on rank 0 only; 0 always, since a missing part is a fact like others."""
    facts = [*_versions(), ("processor", _processor()), *_simd(), *_mpi(), *_gpu(), ("overrides", _overrides())]
    facts.append(("profiles", _profiles()))
    if machine.launched_rank() == 0:
        width = max(len(name) for name, _ in facts)
        for name, value in facts:
            print(f"{name:{width}}  {value}")
    return 0


def _versions():
    yield "gqallreduce", gqallreduce.__version__
    yield "python", platform.python_version()
    for package in PACKAGES:
        yield package, _version(package)
    yield "commit", machine.commit() or "not run from a checkout"


def _version(package):
    """Also of a package whose distribution has another name, as those of CuPy; to look for that takes a while."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        found = importlib.util.find_spec(package) and importlib.metadata.packages_distributions().get(package)
        return importlib.metadata.version(found[0]) if found else "not installed"


def _processor():
    return f"{machine.processor()}, {os.cpu_count()} cores, {machine.usable_cores()} of them for this process"


def _simd():
    yield "SIMD level", f"{_kernels.simd_level()} (of {', '.join(machine.simd_levels())})"
    yield "threads", f"{_kernels.threads()} for one call"


def _mpi():
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:  # RuntimeError: mpi4py is there, the MPI library is not
        yield "MPI", f"not available: {problem}"
        return
    first_line = MPI.Get_library_version().strip("\0").splitlines()[0]
    yield "MPI", first_line.split(", package")[0]
    yield "ranks", machine.wrong_launcher(MPI.COMM_WORLD.size) or MPI.COMM_WORLD.size
    runtime = _runtime(MPI.COMM_WORLD)
    yield "runtime", runtime
    yield "progress", _progress(runtime)
    yield "CUDA-aware", "yes" if awareness.mpi_is_cuda_aware() else "no"


def _runtime(comm):
    from gqallreduce.transport.requests import native_transport

    try:
        if Host().pool is None:
            return "Python"
    except ValueError as problem:  # a variable that says neither
        return str(problem)
    return "C++" if native_transport(comm) is not None else "Python: functions of this MPI cannot be looked up"


def _progress(runtime):
    from gqallreduce.transport.link import why_no_thread

    try:
        hindrance = why_no_thread() if runtime == "C++" else "the runtime is not C++"
    except ValueError as problem:
        return str(problem)
    return f"in calls only: {hindrance}" if hindrance else "by a thread between calls"


def _gpu():
    try:
        device = runtime.runtime(0)
    except Error as problem:
        yield "GPU", problem
    else:
        yield "GPU", f"{device.name}, {device.architecture}, {device.memory >> 30} GiB"


def _profiles():
    folder = profile_folder()
    count = len(list(folder.glob("*.json")))
    return f"{count} in {folder}" if count else "none: `python -m gqallreduce calibrate` under mpirun makes one"


def _overrides():
    return ", ".join(f"{name}={os.environ[name]}" for name in OVERRIDES if name in os.environ) or "none"

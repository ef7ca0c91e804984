"""The GPU's kernels on the CPU: each family compiled by g++ as a serial grid, and a `launch` for it."""

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.cuda import sources
from gqallreduce.coding.layout import Grid, Region

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "build" / "serial"
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # under `make sanitize` the kernels are checked as well
STANDARD = ["-std=c++17", "-ffp-contract=off", "-fno-fast-math", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LIBRARY = ["-O2", "-shared", "-fPIC", *(SANITIZERS if SANITIZED else [])]


@cache
def library(family: str) -> ctypes.CDLL:
    """The family's kernels."""
    found = ctypes.CDLL(built(family, "serial.cpp", LIBRARY))
    found.launch.restype = ctypes.c_bool
    return found


def built(family: str, source: str, flags: list[str]) -> Path:
    """The family's kernels within a source, compiled once for all processes and sessions, until a source changes.

    A family may also be the path of another .cu file, without its ending.
    """
    kernels = " ".join(f"KERNEL({name})" for name in sources.kernels(family))
    definitions = [f'-DFAMILY="{family}.cu"', f"-DKERNELS={kernels}"]
    flags = [*STANDARD, *flags]
    texts = [path.read_text() for path in sorted(HERE.glob("*.[ch]pp"))]
    about = sources.options(), sources.source(family), texts, source, flags
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    found = CACHE / f"{Path(family).name}-{key}"
    if not found.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = found.with_suffix(f".{os.getpid()}")
        includes = [f"-I{sources.FOLDER}", f"-I{HERE}"]
        subprocess.run(["g++", *flags, *includes, *definitions, HERE / source, "-o", fresh], check=True)
        fresh.rename(found)
    return found


class SerialDevice:
    """A `launch` that runs the grid's threads in ascending or descending order."""

    def __init__(self, descending: bool = False):
        self.descending = descending

    def __call__(self, family, kernel, blocks, threads, *arguments):
        values = [_argument(argument) for argument in arguments]
        sizes = (ctypes.c_size_t * len(values))(*(value.nbytes for value in values))
        addresses = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        name, count = kernel.encode(), ctypes.c_size_t(len(values))
        done = library(family).launch(
            name, count, sizes, addresses, ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_bool(self.descending)
        )
        assert done, f"{kernel} of {family} does not take these arguments"


def _argument(value) -> np.ndarray:
    """What the kernel reads: a scalar, or an address."""
    if value is None:
        return np.array(0, np.uint64)
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return np.array(value.ctypes.data if value.size else 0, np.uint64)
    assert isinstance(value, np.generic), f"got {type(value).__name__}, expected a NumPy scalar"
    return np.asarray(value)


def status() -> np.ndarray:
    return np.zeros(1, np.uint32)


def region(n: int, start: int, run: int, parts: int = 1) -> Region:
    return Region(start, n, Grid(run, parts), start + n)


def shifted(array, shift: int):
    """A copy that begins `shift` elements after an address that is a multiple of 16."""
    room = np.empty(array.size + shift + 16, array.dtype)
    begin = -room.ctypes.data % 16 // room.itemsize + shift
    found = room[begin : begin + array.size]
    found[:] = array
    return found


def on_device(levels: _kernels.Levels) -> np.ndarray:
    return np.frombuffer(levels.packed, np.uint8)

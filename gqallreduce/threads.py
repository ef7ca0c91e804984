"""How many threads a kernel call uses, and which SIMD level: from the environment, once. Neither changes a bit.

Also the check that Python's own threads run under its global interpreter lock.
"""

from __future__ import annotations

import os
import re
import sys

from gqallreduce import _kernels

_MOST = 256  # kMostThreads of csrc/gq/door.hpp
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")


def default_threads() -> int:
    """GQALLREDUCE_THREADS, else OMP_NUM_THREADS, else the cores of the affinity mask shared among local ranks."""
    own = os.environ.get("GQALLREDUCE_THREADS", "")
    number = _first_number(own)
    if own.strip() and not number:
        raise ValueError(f"GQALLREDUCE_THREADS={own!r}, expected a number of threads from 1 on")
    number = number or _first_number(os.environ.get("OMP_NUM_THREADS", ""))  # not ours: no error if it is none
    if number:
        return number
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = (re.match(r"\d+", os.environ.get(name, "")) for name in _LOCAL_RANKS)  # Slurm writes 16(x4)
    ranks = next((int(match[0]) for match in found if match), 1)
    return max(1, cores // max(ranks, 1))


def _first_number(text: str) -> int:
    """The first of a list such as "4, 2", which OpenMP allows; 0 if it is none. Never more than a call can use."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*(,.*)?", text, re.ASCII | re.DOTALL)
    return min(int(match[1]), _MOST) if match else 0


def require_lock() -> None:
    """ImportError if Python runs without its global interpreter lock.

    A free-threaded Python turns it on when it loads the extension, unless PYTHON_GIL=0 or -X gil=0 forbids that.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "gqallreduce got a free-threaded Python whose global interpreter lock is forced off, expected one that may "
            "turn it on: leave out PYTHON_GIL=0 and -X gil=0, or take a Python that is not free-threaded"
        )


def configure() -> None:
    """Apply the environment; GQALLREDUCE_SIMD=scalar|avx2|avx512 lowers the SIMD level."""
    _kernels.set_threads(default_threads())
    level = os.environ.get("GQALLREDUCE_SIMD")
    if level:
        _kernels.use_simd_level(level)

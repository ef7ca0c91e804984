"""How many threads a kernel call uses, and which SIMD level: from the environment, once. Neither changes a bit."""

from __future__ import annotations

import os
import re

from gqallreduce import _kernels

_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")


def default_threads() -> int:
    """GQALLREDUCE_THREADS, else OMP_NUM_THREADS, else the cores of the affinity mask shared among local ranks."""
    for name in ("GQALLREDUCE_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0]
        if text:
            if not text.isdigit() or int(text) < 1:
                raise ValueError(f"{name}={text!r}, expected a number of threads from 1 on")
            return int(text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = (re.match(r"\d+", os.environ.get(name, "")) for name in _LOCAL_RANKS)  # Slurm writes 16(x4)
    ranks = next((int(match[0]) for match in found if match), 1)
    return max(1, cores // max(ranks, 1))


def configure() -> None:
    """Apply the environment; GQALLREDUCE_SIMD=scalar|avx2|avx512 lowers the SIMD level."""
    _kernels.set_threads(default_threads())
    level = os.environ.get("GQALLREDUCE_SIMD")
    if level:
        _kernels.use_simd_level(level)

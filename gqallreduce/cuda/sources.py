"""The kernels' sources, one file per family of codecs, and what NVRTC is told with them.

They share headers with the CPU's kernels (the folder `gq`, which is csrc/gq). Arithmetic is IEEE's, operation by
operation: the wire has the same bytes whoever wrote it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).parent
FAMILIES = tuple(sorted(path.stem for path in FOLDER.glob("*.cu")))
ARITHMETIC = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


def source(family: str) -> str:
    """The text of a family's .cu file."""
    return (FOLDER / f"{family}.cu").read_text()


def kernels(family: str) -> list[str]:
    """The names of a family's kernels."""
    return re.findall(r"^GQ_KERNEL (?:GQ_THREADS\(\w+\)\s+)?(\w+)\(", source(family), re.MULTILINE)


@functools.cache
def options() -> tuple[str, ...]:
    """What NVRTC is given, but for the architecture.

    The functions of the shared headers carry no annotations, so all are compiled for the device. CuPy caches by the
    source and the options alone: a digest of all sources makes it compile again when a header changes.
    """
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.hpp"), *FOLDER.glob("gq/*.hpp")]):
        digest.update(path.read_bytes())
    return (
        "-std=c++17",
        f"-I{FOLDER}",
        "--device-as-default-execution-space",
        "--device-int128",
        *ARITHMETIC,
        f"-DGQ_SOURCES={digest.hexdigest()[:16]}",
    )


@functools.cache
def module(family: str):
    """The family as a cupy.RawModule; compiled when its first kernel is fetched. ImportError without CuPy."""
    import cupy

    return cupy.RawModule(code=source(family), options=options(), backend="nvrtc")

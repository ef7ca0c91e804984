"""The kernels' sources, one file per family of codecs, and what NVRTC is told with them.

They share headers with the CPU's kernels (the folder `gq`, which is csrc/gq). Arithmetic is IEEE's, operation by
operation: the wire has the same bytes on either device. So CuPy's RawModule is not for them: it appends `-ftz=true` to
all options, and the compiler goes by the last.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
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
    return re.findall(r"^GQ_KERNEL (?:GQ_THREADS\([\w, ]+\)\s+)?(\w+)\(", source(family), re.MULTILINE)


@functools.cache
def options() -> tuple[str, ...]:
    """What NVRTC is given, but for the architecture.

    The functions of the shared headers carry no annotations, so all are compiled for the device. What is compiled is
    kept by the source and the options alone: a digest of all sources makes it compile again when a header changes.
    """
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.hpp"), *FOLDER.glob("gq/*.hpp")]):
        digest.update(path.read_bytes())
    return (
        "-std=c++17",
        f"-I{FOLDER}",
        "--device-as-default-execution-space",
        *ARITHMETIC,
        f"-DGQ_SOURCES={digest.hexdigest()[:16]}",
    )


def machine_code(family: str) -> bytes:
    """For the current device, from the folder of what CuPy compiles; compiled now if it is not there."""
    from cupy.cuda import Device, compiler, nvrtc

    about = source(family), options(), Device().compute_capability, nvrtc.getVersion()
    kept = _folder() / f"gqallreduce-{family}-{hashlib.sha256(repr(about).encode()).hexdigest()[:32]}"
    with contextlib.suppress(OSError):
        return kept.read_bytes()
    code, _ = compiler.compile_using_nvrtc(source(family), options(), filename=f"{family}.cu")
    with contextlib.suppress(OSError):  # a folder that cannot be written costs time only
        _keep(kept, code)
    return code


def _folder() -> Path:
    return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))


def _keep(path: Path, code: bytes) -> None:
    """Whole or not at all, also while other processes do the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(code)
    part.replace(path)

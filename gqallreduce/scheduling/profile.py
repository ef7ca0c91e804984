"""What a machine takes, for the cost model: the usual one, or one that `python -m gqallreduce calibrate` has measured.

A measured profile is a file of the user's, one for each MPI, number of ranks on each host and kind of processor. A rank
reads its own; what is decided by it, rank 0 decides.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gqallreduce.hashing import hash64

FORMAT, VERSION = "gqallreduce profile", 1


@dataclass(frozen=True)
class Profile:
    """What a machine takes: the defaults are a cluster with 10 Gbit/s links and one core per rank.

    The cores of a rank share out a pass over a vector, up to what the memory of its node can do.

    call, alpha, software
        seconds of a call, whatever it sums; per round in which hosts talk; and per message.
    beta
        seconds per byte of a host's link, which its ranks share.
    near
        seconds per byte between ranks of a host; 0: two passes of memcpy.
    copy
        seconds per byte of float32 that memcpy takes on one core, or in a measured profile with all ranks at work;
        codec rates are multiples of it.
    threads
        cores of a rank, among which passes are shared out; 1 in a measured profile, whose rates are those of all.
    memory
        seconds per byte that memcpy takes at least, with the ranks of a node at work at once; 0: no such limit.
    overlap
        share, from 0 to 1, of the possible overlap of transfer and arithmetic that is reached: less than 1 where ranks
        have no core to spare for what moves their messages.
    rates
        codec -> (encode, decode-and-add) time as multiples of memcpy's. By default the mean of AVX2 and AVX-512 in
        bench/results/codecs.jsonl, of 64 MiB, with feedback where only that was measured; of `topk`, `randk` and
        `powersgd` estimates.
    dense
        (bytes, seconds) of MPI_Allreduce as measured, by size; empty if it was not.
    source
        where all this comes from.
    """

    call: float = 0.0
    alpha: float = 20e-6
    software: float = 5e-6
    beta: float = 8 / 10e9
    near: float = 0.0
    copy: float = 1 / 10e9
    threads: int = 1
    memory: float = 0.0
    overlap: float = 1.0
    rates: dict = field(
        default_factory=lambda: {
            "raw": (0.95, 0.9),
            "float16": (1.5, 0.75),
            "bfloat16": (1.5, 0.75),
            "onebit": (2.05, 0.5),
            "qsgd": (1.65, 0.65),
            "nuqsgd": (2.6, 0.65),
            "natural_dithering": (2.5, 0.65),
            "natural": (1.75, 0.7),
            **dict.fromkeys(("alq", "alq_n", "amq", "amq_n"), (2.75, 0.65)),
            "fp8": (1.15, 0.7),
            "mx": (2.65, 1.15),
            "eden": (4.35, 3.1),
            "drive": (3.65, 3.25),
            "thc": (4.8, 2.75),
            "adaptive": (2.4, 0.55),
            "threshold": (2.7, 0.7),
            "terngrad": (2.2, 0.6),
            "randk": (3.0, 0.5),
            "powersgd": (2.0, 2.0),
            "topk": (3.0, 0.5),
        }
    )

    dense: tuple[tuple[int, float], ...] = ()
    source: str = "a cluster with 10 Gbit/s links"

    def a_pass(self, multiple: float = 1.0) -> float:
        """Seconds per byte of what takes so many times as long as memcpy on one core."""
        return max(multiple * self.copy / self.threads, self.memory)

    def require_lawful(self) -> None:
        """ValueError for numbers that no machine has."""
        numbers = [self.call, self.alpha, self.software, self.beta, self.near, self.copy, self.memory]
        rates = [each for pair in self.rates.values() for each in pair]
        sizes, seconds = [nbytes for nbytes, _ in self.dense], [each for _, each in self.dense]
        lawful = all(math.isfinite(each) and each >= 0 for each in (*numbers, *rates))
        lawful = (
            lawful
            and self.threads >= 1
            and 0 <= self.overlap <= 1
            and all(math.isfinite(each) and each > 0 for each in seconds)
        )
        if not lawful or sizes != sorted({each for each in sizes if each > 0}):
            raise ValueError(
                "expected numbers that are finite and not negative, overlap at most 1, threads at least 1, "
                "sizes of sums that ascend"
            )

    def dense_seconds(self, nbytes: int) -> float:
        """Between two sizes that were measured a line on logarithmic scales; above the last one by its rate."""
        (least, first), (most, last) = self.dense[0], self.dense[-1]
        if nbytes <= least:
            return first
        if nbytes >= most:
            return last * nbytes / most
        for (low, before), (high, after) in itertools.pairwise(self.dense):
            if nbytes <= high:
                part = math.log(nbytes / low) / math.log(high / low)
                return before * (after / before) ** part
        raise AssertionError("sizes of a profile ascend")


class Class(NamedTuple):
    """The jobs that a profile is for: an MPI, how many ranks on each host (sorted), a processor, cores of a rank."""

    mpi: str
    ranks: tuple[int, ...]
    processor: str
    cores: int

    @property
    def path(self) -> Path:
        """Of its file."""
        alike = len(set(self.ranks)) == 1
        hosts = f"{len(self.ranks)}x{self.ranks[0]}" if alike else f"{len(self.ranks)}-{hash64(self.ranks):016x}"
        words = [_word(self.mpi), hosts, _word(self.processor), f"{self.cores}-cores"]
        return folder() / ("_".join(words) + ".json")


def folder() -> Path:
    """Where profiles are: in $XDG_CONFIG_HOME, or ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "gqallreduce", "profiles")


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def processor() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def usable_cores() -> int:
    """Cores this process may run on, which a launcher's binding makes fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def save(profile: Profile, about: Class, more: dict, path: str | Path | None = None) -> Path:
    """Write it, with what else was measured, atomically, to where `find` looks for it, or to a path; returns that.

    OSError where that cannot be.
    """
    path, found = Path(path or about.path), dataclasses.asdict(profile)
    del found["source"]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "version": VERSION, "for": about._asdict(), "profile": found, **more}
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(path)
    return path


def require_writable(path: str | Path) -> None:
    """OSError if no file can be written there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.touch()
    part.unlink()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")


def load(path: Path) -> Profile:
    """ValueError for a file that is none, or of another version; OSError if it cannot be read."""
    return read(path)[0]


def read(path: Path) -> tuple[Profile, Class]:
    """A profile, and the jobs that it is for; errors as of `load`."""
    content = Path(path).read_bytes()
    try:
        content = json.loads(content)
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"of {content['format']!r} version {content['version']}, expected version {VERSION}")
        found, about = content["profile"], content["for"]
        jobs = Class(str(about["mpi"]), tuple(map(int, about["ranks"])), str(about["processor"]), int(about["cores"]))
        rates = {name: (float(encode), float(decode)) for name, (encode, decode) in found.pop("rates").items()}
        dense = tuple((int(nbytes), float(seconds)) for nbytes, seconds in found.pop("dense"))
        numbers = {name: type(getattr(Profile, name))(value) for name, value in found.items()}
        made = Profile(**numbers, rates=rates, dense=dense, source=os.fspath(path))
        made.require_lawful()
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as problem:
        raise ValueError(
            f"{path} is no profile: {problem}; make another by `python -m gqallreduce calibrate`"
        ) from None
    return made, jobs


def find(about: Class) -> Profile:
    """That of these jobs; the usual one if there is none, or none that can be read, which its `source` says."""
    try:
        return load(about.path)
    except FileNotFoundError:
        return Profile()
    except (OSError, ValueError) as problem:
        return Profile(source=f"{Profile.source}, since {problem}")

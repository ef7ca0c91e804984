"""What there is: every codec and schedule with its options, source and promises."""

from __future__ import annotations

from dataclasses import dataclass

from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.scheme import Scheme


@dataclass(frozen=True)
class Entry:
    """name, kind ("codec" or "schedule"), options (name -> default), source, promises (name -> bool), example, omega.

    omega
        of a codec with its default options: E|Q(v) - v|^2 <= omega |v|^2 for every vector v. None: no such number.
    """

    name: str
    kind: str
    options: dict
    source: str
    promises: dict[str, bool]
    example: str
    omega: float | None = None

    @property
    def without_schedule(self) -> str:
        """The example without its schedule."""
        return self.example.removeprefix(f"{Scheme.parse(self.example).schedule}/")


def schemes() -> list[Entry]:
    """Every codec, then every schedule, by name."""
    codecs = [
        Entry(name, "codec", codec.options(), codec.source, codec.promises(), codec.example, codec().omega)
        for name, codec in sorted(CODECS.items())
    ]
    schedules = [
        Entry(
            name,
            "schedule",
            dict(schedule.options),
            schedule.source,
            {"any_size": True, "replica_identity": True},
            f"{name}/raw",
        )
        for name, schedule in sorted(SCHEDULES.items())
    ]
    return codecs + schedules

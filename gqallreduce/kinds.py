"""What runs for a buffer, and why: which schedule and codec, or MPI's own allreduce. Workers are made once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gqallreduce import model
from gqallreduce.hashing import hash64
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.scheme import AUTO, Scheme
from gqallreduce.stats import Spent
from gqallreduce.worker import Worker

RAW = "/raw"
EXACT = "ring/raw"


@dataclass(slots=True)
class Kind:
    """A key with a form, agreed on: what runs for it, why, and what its frames and random streams are told by."""

    what: str
    why: str
    signature: int
    stream: int
    worker: Worker | None


class Kinds:
    """Decides and makes Kinds for one scheme on P ranks. A choice is a schedule, with or without /raw, or "dense"."""

    def __init__(self, scheme: Scheme, rank: int, size: int, average: bool, workspace):
        self.scheme, self.rank, self.size = scheme, rank, size
        self.average, self.workspace = average, workspace
        self.profile = model.Profile()
        self._workers: dict[tuple, Worker] = {}

    @staticmethod
    def choices() -> list[str]:
        """All that can be chosen, in an order that is alike on every rank."""
        return [model.DENSE, EXACT, *sorted(SCHEDULES)]

    def choose(self, shape, dtype: str) -> tuple[str, str]:
        """(choice, why): the schedule of the scheme, the fixed rule's, or what the model finds best."""
        elements, codec = math.prod(shape), self.scheme.codec.bind(dtype)
        if self.scheme.schedule is None:
            return model.fixed_schedule(self.size, codec, elements), "fixed rule on P, bytes and codec"
        if self.scheme.schedule != AUTO:
            return self.scheme.schedule, "as written"
        raw = CODECS["raw"]().bind(dtype)
        return model.choose(codec, raw, self.size, elements, raw.itemsize, self.profile)

    def make(self, choice: str, why: str, signature: int, stream: int, shape, order: str, dtype: str) -> Kind:
        """The Kind of a choice, with the Worker of its form."""
        if choice == model.DENSE:
            return Kind(model.DENSE, why, signature, stream, None)
        schedule, raw, _ = choice.partition(RAW)
        codec = CODECS["raw"]() if raw else self.scheme.codec
        what = choice + "/ef" * self.scheme.feedback if raw else self.scheme.resolved(schedule)
        form = (choice, shape, order, dtype)
        if form not in self._workers:
            self._workers[form] = Worker(
                schedule, codec, self.rank, self.size, shape, order, dtype, self.average, self.workspace, Spent()
            )
        return Kind(what, why, signature, stream, self._workers[form])

    def exact(self, size: int, signature: int) -> Kind:
        """For `flush`: the exact sum of float32 vectors."""
        schedule = model.fixed_schedule(self.size, CODECS["raw"](), size)
        return self.make(schedule + RAW, "flush", signature, hash64(), (size,), "C", "float32")

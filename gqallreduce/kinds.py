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
    """A key with a form, agreed on: what runs for it, why, and what its frames and random streams are told by.

    form
        (choice, shape, order, dtype), by which Workers are known.
    """

    what: str
    why: str
    signature: int
    stream: int
    form: tuple

    @property
    def dense(self) -> bool:
        return self.form[0] == model.DENSE


class Kinds:
    """Decides and makes Kinds for one scheme on P ranks. A choice is a schedule, with or without /raw, or "dense"."""

    def __init__(self, scheme: Scheme, rank: int, size: int, average: bool):
        self.scheme, self.rank, self.size, self.average = scheme, rank, size, average
        self.profile = model.Profile()
        self._workers: dict[tuple, Worker] = {}

    @staticmethod
    def choices() -> list[str]:
        """All that can be chosen, in an order that is alike on every rank."""
        return [model.DENSE, EXACT, *sorted(SCHEDULES)]

    def choose(self, shape, dtype: str, on_device: bool = False) -> tuple[str, str]:
        """(choice, why): the schedule of the scheme, the fixed rule's, or what the model finds best.

        For a buffer on a device that is never MPI's own allreduce, but our exact one: CUDA-aware MPIs are safe point to
        point only, and the others would need the buffer copied to the host.
        """
        elements, codec = math.prod(shape), self.scheme.codec.bind(dtype)
        if self.scheme.schedule is None:
            return model.fixed_schedule(self.size, codec, elements), "fixed rule on P, bytes and codec"
        if self.scheme.schedule != AUTO:
            return self.scheme.schedule, "as written"
        raw = CODECS["raw"]().bind(dtype)
        choice, why = model.choose(codec, raw, self.size, elements, raw.itemsize, self.profile)
        if choice == model.DENSE and on_device:
            return EXACT, f"{why}; for a GPU buffer our own"
        return choice, why

    def make(self, choice: str, why: str, signature: int, stream: int, shape, order: str, dtype: str) -> Kind:
        """The Kind of a choice."""
        schedule, raw, _ = choice.partition(RAW)
        if choice == model.DENSE:
            what = choice
        else:
            what = choice + "/ef" * self.scheme.feedback if raw else self.scheme.resolved(schedule)
        return Kind(what, why, signature, stream, (choice, shape, order, dtype))

    def worker(self, kind: Kind, processor) -> Worker:
        """The Worker of a Kind on a processor; made once."""
        place = (*kind.form, processor)
        if place not in self._workers:
            choice, *form = kind.form
            schedule, raw, _ = choice.partition(RAW)
            codec = CODECS["raw"]() if raw else self.scheme.codec
            self._workers[place] = Worker(
                schedule, codec, self.rank, self.size, *form, self.average, processor, Spent()
            )
        return self._workers[place]

    def exact(self, size: int, signature: int) -> Kind:
        """For `flush`: the exact sum of float32 vectors."""
        schedule = model.fixed_schedule(self.size, CODECS["raw"](), size)
        return self.make(schedule + RAW, "flush", signature, hash64(), (size,), "C", "float32")

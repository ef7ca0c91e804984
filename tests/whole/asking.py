"""A codec that asks all ranks for everything that can be asked for, and learns from call to call."""

from dataclasses import dataclass

import numpy as np

from gqallreduce.coding.plain import PlainCodec
from gqallreduce.coding.preparing import FROM_RANK, LARGEST, SUM, Ask, Prepared
from gqallreduce.registry import CODECS


def enter() -> None:
    """Into the registry, for tests only."""
    CODECS["asking"] = Asking


def leave() -> None:
    CODECS.pop("asking", None)


@dataclass(frozen=True)
class Asking(PlainCodec):
    """The values as they are. It learns how often it was prepared, and what all ranks have told since."""

    name = "asking"
    source = "tests"
    example = "ring/asking/ef"
    learns = True

    def prepare(self, parts):
        return self._ask(parts)

    def _ask(self, parts):
        values = np.concatenate([[0.0], *(parts[at][1] for at in range(len(parts)))])
        yield None
        calls = int(parts.learned.get("calls", 0))
        mine = np.array([values.max(), -values.min()])
        largest = yield Ask(LARGEST, mine)
        total = yield Ask(SUM, np.array([values.size - 1.0, values.sum(), parts.rank]))
        yield None
        root = calls % parts.size
        told = yield Ask(FROM_RANK, np.array([parts.rank, values.size], np.int64), root)
        history = parts.learned.get("told", np.zeros((0, 7)))
        row = np.concatenate([largest, total, told])
        return Prepared(self, None, {"calls": calls + 1, "told": np.vstack([history, row])})

    def relearned(self, learned, form):
        told = np.asarray(learned["told"], np.float64)
        if told.shape != (learned["calls"], 7):
            raise ValueError(f"got {told.shape} numbers told, expected {(learned['calls'], 7)}")
        return {"calls": int(learned["calls"]), "told": told}

"""What a call cost, as the calling rank saw it."""

from __future__ import annotations

from collections.abc import Callable

from gqallreduce import _kernels
from gqallreduce._kernels import Spent, ratio_of

__all__ = ["Spent", "Statistics", "ratio_of"]


class Statistics(_kernels.Recorded):
    """`last`: the last call, None before one; `total`: all calls since `reset()`."""

    def __init__(self, norm: Callable[[], float]):
        self._norm = norm
        self.reset()

    def reset(self) -> None:
        self.last, self.total = None, Spent(norm=self._norm)

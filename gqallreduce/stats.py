"""What a call cost, as the calling rank saw it."""

from __future__ import annotations

from collections.abc import Callable

from gqallreduce._kernels import Spent, ratio_of

__all__ = ["Spent", "Statistics", "ratio_of"]


class Statistics:
    """`last`: the last call, None before one; `total`: all calls since `reset()`."""

    def __init__(self, norm: Callable[[], float]):
        self._norm = norm
        self.reset()

    def reset(self) -> None:
        self.last: Spent | None = None
        self.total = Spent(norm=self._norm)

    def record(self, spent: Spent, norm: Callable[[], float]) -> None:
        """A call has succeeded; `norm` is that of the residual that it left."""
        self.last = spent
        spent.norm = norm
        self.total.scheme = spent.scheme
        self.total.add(spent)

"""What a call cost, as the calling rank saw it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields


def ratio_of(dense_bytes: float, bytes_sent: float) -> float:
    """Bytes that exact values would take / bytes sent; 1.0 where either is none."""
    return dense_bytes / bytes_sent if bytes_sent and dense_bytes else 1.0


@dataclass
class Spent:
    """Of one call (`stats.last`) or of all since `reset` (`stats.total`).

    scheme
        fully resolved; with auto/ also what ran and why (`reason`).
    bytes_sent, bytes_received, messages
        handed to MPI point to point, headers included; a dense MPI_Allreduce counts its buffer once and no message, and
        that of mpi/ its integers.
    ratio
        bytes a dense ring would send / bytes sent; with mpi/ those of the buffer / those of the integers; 1.0 when
        dense, for P = 1 or size 0.
    encode, decode, wait, total
        wall seconds.
    selected
        values encoded by `adaptive`, `randk` or `topk`, not forwarded ones; 0 for other codecs.
    saturated
        values that a codec clipped in this rank's encodings, since it could not send as much; on host buffers only.
    residual_norm
        Euclidean norm of this rank's residual of the key after the call (in `total`: of all keys, now); 0.0 without
        /ef. Computed when it is read, or before the residual's array is used again.
    """

    scheme: str = ""
    reason: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    dense_bytes: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    wait: float = 0.0
    total: float = 0.0
    selected: int = 0
    saturated: int = 0
    dense: bool = False
    norm: Callable[[], float] = field(default=lambda: 0.0, repr=False)

    @property
    def ratio(self) -> float:
        return 1.0 if self.dense else ratio_of(self.dense_bytes, self.bytes_sent)

    @property
    def residual_norm(self) -> float:
        return self.norm()

    def also(self, reason: str) -> None:
        """Adds to `reason` what it does not say yet."""
        if reason not in self.reason:
            self.reason += f"; {reason}" if self.reason else reason

    def add(self, other: Spent) -> None:
        mine, others = self.__dict__, other.__dict__
        for name in _SUMMED:
            if value := others[name]:
                mine[name] += value


_SUMMED = tuple(each.name for each in fields(Spent) if each.name not in ("scheme", "reason", "dense", "norm"))


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

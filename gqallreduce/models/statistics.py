"""What the sums of a model cost, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gqallreduce.plain_table import plain_table
from gqallreduce.stats import ratio_of

_SECONDS = "encode", "decode", "wait"
_SUMS = "bytes_sent", "bytes_received", "messages", "dense_bytes", *_SECONDS
_COLUMNS = "tensor", "scheme", "values", "sent", "ratio", "error", "residual"


@dataclass(frozen=True)
class TensorStats:
    """One tensor in the last step.

    rule, scheme
        the scheme of its rule, and what ran, fully resolved.
    size
        elements.
    bytes_sent, dense_bytes, encode, decode, wait
        of this rank: bytes, what a ring of exact values would send, seconds. Messages hold several tensors: of what
        a bucket took each has its share by elements in memory.
    error
        |sum - exact sum|^2 / |exact sum|^2 of the last step that was compared; None before one. With /ef the sum has
        residuals of earlier steps in it.
    residual
        what `residual_norm` computes when it is read.
    """

    rule: str
    scheme: str
    size: int
    bytes_sent: float
    dense_bytes: float
    encode: float
    decode: float
    wait: float
    error: float | None
    residual: Callable[[], float]

    @property
    def ratio(self) -> float:
        return ratio_of(self.dense_bytes, self.bytes_sent)

    @property
    def residual_norm(self) -> float:
        """The Euclidean norm of this rank's residual, now; 0.0 without /ef."""
        return self.residual()


class ModelStats:
    """Of a Reducer: `print` shows a table, `scalars` is a dict for loggers.

    steps
        how many have taken effect.
    bytes_sent, bytes_received, messages, dense_bytes, encode, decode, wait
        of all tensors in the last step; seconds of the calls, which may have gone on side by side.
    """

    def __init__(self, residual_norm: Callable[[str], float]):
        self.steps, self._residual_norm = 0, residual_norm
        self._buckets, self._spents, self._order, self._errors = (), (), (), {}
        for name in _SUMS:
            setattr(self, name, 0)

    def record(self, buckets, spents, order) -> None:
        """A step has taken effect: what each bucket cost."""
        self.steps += 1
        self._buckets, self._spents, self._order = buckets, spents, order
        for name in _SUMS:
            setattr(self, name, sum([getattr(spent, name) for spent in spents]))

    def note_errors(self, errors: dict[str, float]) -> None:
        """Of the step before, whose sums were compared, by name."""
        self._errors |= errors

    @property
    def tensors(self) -> dict[str, TensorStats]:
        """name -> what it cost in the last step, in the order of the model; empty before the first step."""
        found = {}
        for bucket, spent in zip(self._buckets, self._spents, strict=True):
            for tensor in bucket.tensors:
                share = tensor.nbytes / bucket.nbytes if bucket.nbytes else 1 / len(bucket.tensors)
                found[tensor.name] = TensorStats(
                    bucket.scheme,
                    spent.scheme,
                    tensor.form.size,
                    *[share * getattr(spent, what) for what in ("bytes_sent", "dense_bytes", *_SECONDS)],
                    self._errors.get(tensor.name),
                    partial(self._residual_norm, tensor.name),
                )
        return {name: found[name] for name in self._order}

    @property
    def ratio(self) -> float:
        """Bytes that a ring of exact values would send / bytes sent."""
        return ratio_of(self.dense_bytes, self.bytes_sent)

    @property
    def error(self) -> float | None:
        """The largest of the tensors' errors; None if none was compared."""
        return max((each.error for each in self.tensors.values() if each.error is not None), default=None)

    @property
    def residual_norm(self) -> float:
        """Of all residuals together."""
        return sum(each.residual_norm**2 for each in self.tensors.values()) ** 0.5

    def scalars(self) -> dict[str, float]:
        """Everything as numbers: "model/ratio", "fc1.weight/bytes_sent", ..."""
        found = {}
        for name, each in {"model": self, **self.tensors}.items():
            for what in ("bytes_sent", "ratio", "residual_norm", "error"):
                if (value := getattr(each, what)) is not None:
                    found[f"{name}/{what}"] = float(value)
        return found

    def __str__(self) -> str:
        tensors = self.tensors
        rows = [(name, each.rule, f"{each.size}", *_cells(each)) for name, each in tensors.items()]
        if rows:
            size = sum(each.size for each in tensors.values())
            rows.append((f"all, step {self.steps}", "", f"{size}", *_cells(self)))
        return plain_table(_COLUMNS, rows, right=_COLUMNS[2:])


def _cells(each) -> tuple[str, str, str, str]:
    error = "" if each.error is None else f"{each.error:.2e}"
    return f"{each.bytes_sent:.0f} B", f"{each.ratio:.1f}", error, f"{each.residual_norm:.3g}"

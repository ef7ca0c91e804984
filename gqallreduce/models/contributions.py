"""What a rank gives to the sums of a step in place of its plain gradients: clipped ones, and their momentum."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from numbers import Real

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.processor import Processors
from gqallreduce.models.model import Tensor
from gqallreduce.models.momentum import clip_factor, momentum_of, wide_norm
from gqallreduce.runtime.memory import sum_of_squares

_DTYPES = "float32", "float64"


class Contributions:
    """What this rank gives of the tensors of a Reducer, by its options.

    clip
        the largest norm of all gradients of this rank together; None for no bound.
    momentum
        a Momentum, a MomentumCorrection, or None.
    options, kind
        all of them, for the comparison of ranks; what a state keeps, in words.
    processors
        of an Allreduce: where gradients lie, and who computes on them there. To be set before anything is prepared.
    """

    processors: Processors

    def __init__(self, clip: float | None, momentum: float, correction: float, average: bool, size: int):
        number = isinstance(clip, Real) and not isinstance(clip, bool)
        if clip is not None and not (number and 0 < clip < math.inf):
            raise ValueError(f"clip={clip!r}, expected the largest norm of a rank's gradients, a number > 0, or None")
        self.clip, self._homes = clip, {}  # name -> the processor in whose memory its momentum lies
        self.momentum = momentum_of(momentum, correction, average, size)
        self.options = clip, momentum, correction
        self.kind = "no momentum" if self.momentum is None else self.momentum.kind

    @property
    def plain(self) -> bool:
        """Are gradients summed as they are?"""
        return self.clip is None and self.momentum is None

    def require(self, tensors: Iterable[Tensor]) -> None:
        """ValueError for tensors that these options are not made for, or that a state has in another form."""
        for tensor in () if self.plain else tensors:
            if tensor.form.dtype != "float32" and (tensor.device != "in host memory" or tensor.form.dtype != "float64"):
                expected = "float32, or float64 in host memory, for clip and momentum"
                raise ValueError(f"{tensor.name!r}: got {tensor.form.dtype} {tensor.device}, expected {expected}")
        if self.momentum is not None and self.momentum.kept:
            _require_forms(self.momentum.kept, tensors)

    def factor(self, gradients: Iterable) -> float:
        """What all gradients of a step are multiplied by."""
        return 1.0 if self.clip is None else clip_factor(self.clip, map(self._norm, map(Buffer, gradients)))

    def _norm(self, buffer: Buffer) -> float:
        """Of a float32 buffer alike in whatever memory."""
        if buffer.dtype != "float32":
            return wide_norm(buffer.array)
        processor = self.processors.of(buffer)
        with processor.active(buffer.located, None):
            vector = processor.arithmetic.contiguous(buffer.memory).reshape(-1)
            return math.sqrt(sum_of_squares(processor, vector))

    def prepare(self, name: str, gradient, out, factor: float):
        """Make a gradient what this rank gives, in place or in `out`; the array that was written."""
        buffer = source = Buffer(gradient)
        if out is not None:
            gradient, buffer = out, Buffer(out)
        processor, array = self.processors.of(buffer), buffer.array
        with processor.active(buffer.located, name), np.errstate(all="ignore"):  # the sum reports what leaves float32
            if out is not None:
                array[...] = source.array
            if factor != 1.0:
                array *= factor
            if self.momentum is not None:
                self._bring(name, processor)
                self.momentum.add_to(name, array)
        return gradient

    def _bring(self, name: str, processor) -> None:
        """What is kept of a tensor lies in this processor's memory from now on."""
        home, kept = self._homes.get(name, self.processors.host), self.momentum.kept
        if name in kept and home is not processor:
            kept[name] = processor.adopt(np.ascontiguousarray(home.on_host(kept[name])))
        self._homes[name] = processor

    def following(self, step) -> dict[str, np.ndarray] | None:
        """What has to be kept once a Step with its results has taken effect, for `take_over`. Its `given` is read only
        if there is a momentum."""
        if self.momentum is None:
            return None
        sums = {name: Buffer(each).array for name, each in step.given.items()}
        with self._active():
            return self.momentum.following(sums)

    def _active(self) -> contextlib.ExitStack:
        """A context for work on all that is kept, which is done at its end."""
        stack = contextlib.ExitStack()
        for processor in set(self._homes.values()):
            stack.enter_context(processor.active(None, None))
        return stack

    def take_over(self, following: dict[str, np.ndarray] | None) -> None:
        """The step has taken effect."""
        if self.momentum is not None:
            self.momentum.take_over(following)

    def rescale(self, factor: float) -> None:
        """Gradients are from now on in other units: so many times as large."""
        if self.momentum is not None:
            with self._active():
                for kept in self.momentum.kept.values():
                    kept *= factor

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """What kind of momentum there is, and name -> momentum, copied."""
        kept = {} if self.momentum is None else self.momentum.kept
        return {"kind": self.kind, "kept": {name: self._on_host(name, each).copy() for name, each in kept.items()}}

    def _on_host(self, name: str, kept) -> np.ndarray:
        return self._homes.get(name, self.processors.host).on_host(kept)

    def checked(self, states: list[dict], several: bool, rank: int, size: int, tensors) -> dict[str, np.ndarray]:
        """name -> momentum of these tensors, for `restore`, from the state of this rank, or of `several`, by rank.

        What is alike on all ranks stays so; of ranks' own momenta the sum over ranks stays the same. ValueError for
        what does not fit.
        """
        found = [self._kept(state) for state in states]
        forms = [{name: each.shape for name, each in kept.items()} for kept in found]
        if any(each != forms[0] for each in forms):
            raise ValueError("states of ranks have momenta of other tensors than each other")
        if found[0]:
            _require_forms(found[0], tensors)
        if not several or self.momentum is None or self.momentum.alike:
            return {name: each.copy() for name, each in found[0].items()}
        total = {name: np.zeros_like(each) for name, each in found[0].items()}
        for kept in found[rank::size]:
            for name, each in kept.items():
                total[name] += each
        return total

    def _kept(self, state) -> dict[str, np.ndarray]:
        if not isinstance(state, dict) or state.keys() != {"kind", "kept"} or state["kind"] != self.kind:
            got = state.get("kind") if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"state has the momentum {got!r}, expected {self.kind!r}")
        if not isinstance(state["kept"], dict) or not all(map(_is_momentum, state["kept"].values())):
            raise ValueError("state has an unfit momentum, expected finite arrays of float32 or float64 by name")
        return state["kept"]

    def restore(self, kept: dict[str, np.ndarray]) -> None:
        """Take over what `checked` has returned."""
        if self.momentum is not None:
            self.momentum.kept, self._homes = kept, {}


def _require_forms(kept: dict[str, np.ndarray], tensors: Iterable[Tensor]) -> None:
    """ValueError for momenta of a state that are not those of these tensors, once they are known."""
    tensors = list(tensors)
    if tensors and kept.keys() != {tensor.name for tensor in tensors}:
        raise ValueError(f"the state has momenta of {', '.join(kept)}, expected those of all tensors of this model")
    for tensor in tensors:
        found = kept[tensor.name]
        if (found.shape, found.dtype.name) != (tensor.form.shape, tensor.form.dtype):
            got, expected = f"{found.dtype} {found.shape}", f"{tensor.form.dtype} {tensor.form.shape}"
            raise ValueError(f"{tensor.name!r}: the state has a momentum {got}, expected {expected}")


def _is_momentum(value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in _DTYPES and bool(np.isfinite(value).all())

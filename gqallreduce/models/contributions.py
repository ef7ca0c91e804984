"""What a rank gives to the sums of a step in place of its plain gradients: clipped ones, and their momentum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real

import numpy as np

from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.processor import Processors
from gqallreduce.models.model import Tensor
from gqallreduce.models.momentum import Kept, clip_factor, momentum_of, wide_norm
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
        self.clip = clip
        self._kept: dict[str, Kept] = {}
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
            _require_fit(tensor.name, tensor.form.dtype, tensor.device)
        if self._kept:
            _require_forms({name: (each.form.shape, each.form.dtype) for name, each in self._kept.items()}, tensors)

    def require_given(self, name: str, gradient, out) -> None:
        """ValueError for a gradient that these options are not made for, or whose sum is to be written elsewhere."""
        source, target = Buffer(gradient), None if out is None else Buffer(out)
        _require_fit(name, source.dtype, source.device)
        if target is None:
            return
        if target.device != source.device:
            raise ValueError(f"{name!r}: out is {target.device}, expected {source.device} as the gradient")
        if source.overlaps_partly(target):
            raise ValueError(f"{name!r}: out overlaps the gradient partly; expected the same memory or other memory")

    def factor(self, gradients: Iterable) -> float:
        """What all gradients of a step are multiplied by."""
        return 1.0 if self.clip is None else clip_factor(self.clip, map(self._norm, gradients))

    def _norm(self, gradient) -> float:
        """The Euclidean norm; of float32 with the same bits on host and GPU, for which it waits."""
        vector = _vector_of(gradient)
        if vector is not None and vector.dtype == np.float32:
            return math.sqrt(sum_of_squares(self.processors.host, vector))
        buffer = Buffer(gradient)
        if buffer.dtype != "float32":
            return wide_norm(buffer.array)
        processor = self.processors.of(buffer)
        with processor.active(buffer.located, None):
            vector = processor.arithmetic.contiguous(buffer.memory).reshape(-1)
            return math.sqrt(sum_of_squares(processor, vector))

    def prepare(self, tensors: Iterable[Tensor], given: dict, into: dict, factor: float) -> None:
        """Make their gradients what this rank gives, in place or in what `into` has; `given` has what was written."""
        with np.errstate(all="ignore"):  # the sums report what leaves float32
            for tensor in tensors:
                gradient, out = given[tensor.name], into.pop(tensor.name, None)
                vector = _vector_of(gradient) if out is None else None
                if vector is None:
                    given[tensor.name] = self._prepare_buffer(tensor, gradient, out, factor)
                else:
                    self._prepare_vector(tensor, vector, self.processors.host, factor)

    def _prepare_vector(self, tensor: Tensor, vector, processor, factor: float) -> None:
        """Of a gradient's elements in memory order."""
        if factor != 1.0:
            processor.arithmetic.multiply(vector, factor, vector)
        if self.momentum is None:
            return
        kept = self._kept.get(tensor.name)
        if kept is None:
            kept = self._kept[tensor.name] = Kept(processor, tensor.form)
        kept.move(processor, tensor.form)
        self.momentum.add_to(kept, vector)

    def _prepare_buffer(self, tensor: Tensor, gradient, out, factor: float):
        """Of a gradient with gaps, on a device, or with an `out`; the array that was written."""
        source = Buffer(gradient)
        buffer, processor = source if out is None else Buffer(out), self.processors.of(source)
        arithmetic, memory = processor.arithmetic, buffer.memory
        with processor.active(source.located, tensor.name):
            if out is not None:
                arithmetic.copy(buffer.array, source.array)
            vector = arithmetic.contiguous(memory).reshape(-1)
            self._prepare_vector(tensor, vector, processor, factor)
            if not memory.flags.c_contiguous:
                arithmetic.copy(memory, vector.reshape(memory.shape))
            if buffer.located is not None and buffer.located.stream != source.located.stream:
                processor.finish()  # the sum is put on the other stream
        return gradient if out is None else out

    def note(self, names: Iterable[str], step) -> None:
        """Take down what has to be kept of sums if the Step that they are of takes effect. Its `given` is read only if
        there is a momentum."""
        if self.momentum is None:
            return
        for home, mine in self._by_home(names).items():
            with home.active(None, None):
                for name in mine:
                    vector = _vector_of(step.given[name])
                    memory = Buffer(step.given[name]).memory if vector is None else vector
                    self.momentum.note(self._kept[name], memory)

    def _by_home(self, names: Iterable[str]) -> dict:
        """processor -> those of them that it keeps."""
        found: dict = {}
        for name in names:
            found.setdefault(self._kept[name].processor, []).append(name)
        return found

    def take_over(self) -> None:
        """The step has taken effect."""
        for each in self._kept.values():
            each.take_over()

    def rescaled(self, factor: float) -> list[Kept]:
        """Of those that have a momentum, times a factor; it is the momentum after `take_over`.

        ValueError if one leaves its format.
        """
        found = []
        for home, names in self._by_home(self._kept).items():
            with home.active(None, None):
                for name in names:
                    kept = self._kept[name]
                    if kept.now is None:
                        continue
                    if not kept.scale(factor):
                        raise ValueError(f"factor: got {factor!r}, by which the momentum of {name!r} leaves its format")
                    found.append(kept)
        return found

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """What kind of momentum there is, and name -> momentum, copied to host memory."""
        return {
            "kind": self.kind,
            "kept": {name: each.array for name, each in self._kept.items() if each.now is not None},
        }

    def checked(self, states: list[dict], several: bool, rank: int, size: int, tensors) -> dict[str, np.ndarray]:
        """name -> momentum of these tensors, for `restore`, from the state of this rank, or of `several`, by rank.

        What is alike on all ranks stays so; of ranks' own momenta the sum over ranks stays the same. ValueError for
        what does not fit.
        """
        found = [self._momenta_of(state) for state in states]
        forms = [{name: each.shape for name, each in kept.items()} for kept in found]
        if any(each != forms[0] for each in forms):
            raise ValueError("states of ranks have momenta of other tensors than each other")
        if found[0]:
            _require_forms({name: (each.shape, each.dtype.name) for name, each in found[0].items()}, tensors)
        if not several or self.momentum is None or self.momentum.alike:
            return {name: each.copy() for name, each in found[0].items()}
        total = {name: np.zeros_like(each) for name, each in found[0].items()}
        for kept in found[rank::size]:
            for name, each in kept.items():
                total[name] += each
        return total

    def _momenta_of(self, state) -> dict[str, np.ndarray]:
        if not isinstance(state, dict) or state.keys() != {"kind", "kept"} or state["kind"] != self.kind:
            got = state.get("kind") if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"state has the momentum {got!r}, expected {self.kind!r}")
        if not isinstance(state["kept"], dict) or not all(map(_is_momentum, state["kept"].values())):
            raise ValueError("state has an unfit momentum, expected finite arrays of float32 or float64 by name")
        return state["kept"]

    def restore(self, kept: dict[str, np.ndarray]) -> None:
        """Take over what `checked` has returned."""
        self._kept = {name: Kept.of_array(each, self.processors.host) for name, each in kept.items()}


def _vector_of(array) -> np.ndarray | None:
    """The elements of a NumPy array in memory order, as a view; None if there are gaps, or for another array."""
    if type(array) is not np.ndarray:
        return None
    if array.flags.c_contiguous:
        return array.reshape(-1)
    return array.reshape(-1, order="F") if array.flags.f_contiguous else None


def _require_fit(name: str, dtype: str, device: str) -> None:
    """ValueError for values that are neither clipped nor added to a momentum."""
    if dtype != "float32" and (device, dtype) != ("in host memory", "float64"):
        expected = "float32, or float64 in host memory, for clip and momentum"
        raise ValueError(f"{name!r}: got {dtype} {device}, expected {expected}")


def _require_forms(kept: dict[str, tuple], tensors: Iterable[Tensor]) -> None:
    """ValueError for momenta of a state, (shape, dtype) by name, that are not those of these tensors, once known."""
    tensors = list(tensors)
    if tensors and kept.keys() != {tensor.name for tensor in tensors}:
        raise ValueError(f"the state has momenta of {', '.join(kept)}, expected those of all tensors of this model")
    for tensor in tensors:
        shape, dtype = kept[tensor.name]
        if (shape, dtype) != (tensor.form.shape, tensor.form.dtype):
            got, expected = f"{dtype} {shape}", f"{tensor.form.dtype} {tensor.form.shape}"
            raise ValueError(f"{tensor.name!r}: the state has a momentum {got}, expected {expected}")


def _is_momentum(value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in _DTYPES and bool(np.isfinite(value).all())

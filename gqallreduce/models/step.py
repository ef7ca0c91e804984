"""A step of a Reducer that is under way: what has come, and the calls that sum it."""

from __future__ import annotations

import numpy as np

from gqallreduce.allreduce import Allreduce
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import Outer
from gqallreduce.coding.order import to_array
from gqallreduce.models.buckets import Bucket, Tensor
from gqallreduce.models.comparison import Comparison
from gqallreduce.runtime.steps import step


class Step:
    """It begins when it is made; whoever made it leaves `context` at its end, by the error if there is one.

    given
        name -> (gradient, out) of what has come.
    context
        of all objects together (runtime/steps.py): it ends the step.
    """

    def __init__(self, allreduces: dict[str, Allreduce], buckets: list[Bucket], comparison: Comparison | None):
        self._allreduces, self._buckets, self.comparison = allreduces, buckets, comparison
        self.given: dict[str, tuple] = {}
        self._requests: list = []
        if comparison is not None:
            comparison.begin()
        self.context = step(*allreduces.values())
        self.context.__enter__()

    def give(self, tensor: Tensor, gradient, out) -> None:
        if tensor.name in self.given:
            raise ValueError(f"{tensor.name!r} was started before in this step")
        if not isinstance(gradient, Outer) and tensor.known.look(gradient) is None:
            form = Buffer(gradient).form
            if form != tensor.form:
                raise ValueError(f"{tensor.name!r}: got shape, order, dtype {form.kept}, expected {tensor.form.kept}")
        self.given[tensor.name] = gradient, out
        if self.comparison is not None:
            self.comparison.give(tensor, gradient, out)

    def advance(self) -> None:
        """Start the next buckets, as far as their gradients have come."""
        while len(self._requests) < len(self._buckets):
            bucket = self._buckets[len(self._requests)]
            names = bucket.names
            if any(name not in self.given for name in names):
                return
            buffers, outs = zip(*(self.given[name] for name in names), strict=True)
            into = None
            if any(out is not None for out in outs):
                into = [buffer if out is None else out for buffer, out in zip(buffers, outs, strict=True)]
            self._requests.append(self._allreduces[bucket.scheme].start(list(buffers), key=names, out=into))

    def fill(self, tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """Give zeros for all that has not come, and start what is left; returns them by name."""
        missing = {name: _zeros(tensor) for name, tensor in tensors.items() if name not in self.given}
        for name, zeros in missing.items():
            self.give(tensors[name], zeros, None)
        self.advance()
        return missing

    def wait(self) -> list:
        """Until all are done: what each cost. Raises the first error, in the order of the buckets."""
        errors = []
        for request in self._requests:
            try:
                request.wait()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return [request.stats for request in self._requests]


def _zeros(tensor: Tensor) -> np.ndarray:
    """In the form of a tensor."""
    if tensor.device != "in host memory":
        raise ValueError(f"{tensor.name!r}, {tensor.device}, was not started; give zeros where there is no gradient")
    if tensor.form.dtype == "bfloat16":
        import ml_dtypes  # noqa: F401  (which makes NumPy know the name)
    vector = np.zeros(tensor.form.size, np.dtype(tensor.form.dtype))
    return to_array(vector, tensor.form.shape, tensor.form.order)

"""How far the sums of a step are from exact ones."""

from __future__ import annotations

import math

import numpy as np

from gqallreduce.allreduce import Allreduce
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import source_of
from gqallreduce.errors import Error


class Comparison:
    """Of the gradients of a step: copies in float64, summed exactly by `raw`."""

    def __init__(self, options: dict):
        self._allreduce = Allreduce("raw", **options)
        self.begin()

    def begin(self) -> None:
        """Forget the last step."""
        self._exact: dict[str, np.ndarray] = {}
        self._results: dict[str, object] = {}

    def give(self, tensor, gradient, out) -> None:
        """A gradient before it is summed, and where its sum will be."""
        into = Buffer(gradient if out is None else out)
        source = source_of(gradient, into)
        self._exact[tensor.name] = self._values(source)
        self._results[tensor.name] = into

    def errors(self) -> dict[str, float]:
        """|sum - exact sum|^2 / |exact sum|^2 of each tensor, alike on all ranks. Collective.

        NaN on a rank where a sum cannot be copied to the host: the step has taken effect then.
        """
        names = sorted(self._exact)
        self._allreduce([self._exact[name] for name in names], key=[f"exact {name}" for name in names])
        found = {}
        for name in names:
            try:
                exact, result = self._exact[name], self._values(self._results[name])
            except Error:
                found[name] = math.nan
                continue
            lost, exact_squared = float(((result - exact) ** 2).sum()), float((exact**2).sum())
            found[name] = lost / exact_squared if exact_squared else float(lost > 0)
        self.begin()
        return found

    def close(self) -> None:
        self._allreduce.close()

    def _values(self, buffer) -> np.ndarray:
        """A copy of all elements in host memory, as float64."""
        if buffer.located is not None:
            processor = self._allreduce.processors.of(buffer)
            buffer.arithmetic = processor.arithmetic
            with processor.active(buffer.located, None):
                buffer = buffer.copied_to_host(processor)
        vector = np.empty(buffer.size, np.float64 if buffer.form.dtype == "float64" else np.float32)
        buffer.load(0, buffer.size, vector)
        return vector.astype(np.float64)

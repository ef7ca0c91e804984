"""How far the sums of a training's gradients are from the exact ones, every so many steps."""

import numpy as np


class SumErrors:
    """Compares the sums of a step with exact ones, in float64. Collective."""

    def __init__(self, comm, every):
        self._comm, self.every = comm, every

    def is_due(self, step):
        """Is a step, counted from 1, compared?"""
        return self.every > 0 and step % self.every == 0

    def before(self, weights):
        """Of gradients that are not summed yet; returns what gives the error once they are.

        That is |sum - exact sum|^2 / |exact sum|^2 over all weights together, the same on every rank.
        """
        exact = []
        for weight in weights:
            mine = np.array(weight.gradient, np.float64)
            total = np.empty_like(mine)
            self._comm.Allreduce(mine, total)
            exact.append(total)

        def after():
            lost = sum(np.sum((weight.gradient - each) ** 2) for weight, each in zip(weights, exact, strict=True))
            return float(lost / max(sum(np.sum(each**2) for each in exact), np.finfo(float).tiny))

        return after

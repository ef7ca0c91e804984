"""Optimizers that update a Weight in place by its gradient; each keeps its state per weight, step count included.

A weight may be updated more often than another: an extra step at the end of an epoch concerns only those with a
residual. Updates go by blocks that stay in the cache, over the memory with its gaps: all states of a gap are zero.
"""

import math

import numpy as np

BLOCK = 1 << 15  # elements; four arrays of them and the scratch fit a level 2 cache


class Momentum:
    """m := momentum m + g; w := w - rate m. Source: Polyak 1964; the rate outside of m, as trainers have it today."""

    rate = 0.01

    def __init__(self, rate=rate, momentum=0.9):
        self.rate, self.momentum = rate, momentum
        self._states = {}

    def update(self, weight):
        """One step on the weight."""
        (moment,) = _state(self._states, weight, 1)
        for value, gradient, mean, scratch in _blocks(weight, moment):
            mean *= self.momentum
            mean += gradient
            np.multiply(mean, self.rate, out=scratch)
            value -= scratch


class AdaGrad:
    """s := s + g^2; w := w - rate g / (sqrt(s) + epsilon). Source: Duchi, Hazan, Singer, JMLR 2011."""

    rate = 0.01

    def __init__(self, rate=rate, epsilon=1e-8):
        self.rate, self.epsilon = rate, epsilon
        self._states = {}

    def update(self, weight):
        """One step on the weight."""
        (squares,) = _state(self._states, weight, 1)
        for value, gradient, square, scratch in _blocks(weight, squares):
            np.multiply(gradient, gradient, out=scratch)
            square += scratch
            np.sqrt(square, out=scratch)
            scratch += self.epsilon
            np.divide(gradient, scratch, out=scratch)
            scratch *= self.rate
            value -= scratch


class Adam:
    """Source: Kingma and Ba, ICLR 2015, algorithm 1; differs: the moments are kept without their factors 1 - beta.

    With m' = m / (1 - beta1), v' = v / (1 - beta2) and c^2 = (1 - beta2) / (1 - beta2^t), the same step is
    w := w - rate (1 - beta1) / ((1 - beta1^t) c) m' / (sqrt(v') + epsilon / c), in fewer passes.
    """

    rate = 0.001

    def __init__(self, rate=rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
        self.rate, self.beta1, self.beta2, self.epsilon = rate, beta1, beta2, epsilon
        self._states, self._steps = {}, {}

    def update(self, weight):
        """One step on the weight."""
        first, second = _state(self._states, weight, 2)
        step = self._steps[weight.name] = self._steps.get(weight.name, 0) + 1
        correction = math.sqrt((1 - self.beta2) / (1 - self.beta2**step))
        rate = self.rate * (1 - self.beta1) / ((1 - self.beta1**step) * correction)
        for value, gradient, mean, square, scratch in _blocks(weight, first, second):
            mean *= self.beta1
            mean += gradient
            square *= self.beta2
            np.multiply(gradient, gradient, out=scratch)
            square += scratch
            np.sqrt(square, out=scratch)
            scratch += self.epsilon / correction
            np.divide(mean, scratch, out=scratch)
            scratch *= rate
            value -= scratch


OPTIMIZERS = {"adam": Adam, "adagrad": AdaGrad, "sgd": Momentum}


def _state(states, weight, count):
    """`count` arrays of the size of the weight's memory, zeros at first."""
    if weight.name not in states:
        states[weight.name] = [np.zeros_like(weight.value_memory) for _ in range(count)]
    return states[weight.name]


def _blocks(weight, *states):
    """Blocks of (value, gradient, *states, scratch) that stay in the cache."""
    arrays = weight.value_memory, weight.gradient_memory, *states
    scratch = np.empty(min(BLOCK, arrays[0].size), arrays[0].dtype)
    for start in range(0, arrays[0].size, BLOCK):
        parts = [array[start : start + BLOCK] for array in arrays]
        yield *parts, scratch[: parts[0].size]

"""A multilayer perceptron: dense layers with ReLU between them, softmax and cross-entropy at the end.

Every sample is a column, as in LBANN: a layer's activations are (width, samples) in Fortran order, its weight is
(width, width below). Nothing is allocated after construction but vectors of one number per sample.
"""

from itertools import pairwise

import numpy as np

from gqallreduce.cli.training.weights import Weight


class Dense:
    """One layer: output = weight @ input + bias, for at most `most` samples at a time."""

    def __init__(self, name, inputs, outputs, most, align, dtype):
        self.weight = Weight(f"{name}.weight", (outputs, inputs), align, dtype)
        self.bias = Weight(f"{name}.bias", (outputs,), align, dtype)
        self._output = np.empty((outputs, most), dtype, order="F")
        self._delta = np.empty((inputs, most), dtype, order="F")

    def draw(self, random):
        """Starts the weight normally distributed with variance 2 / inputs (He et al. 2015), the bias at zero."""
        outputs, inputs = self.weight.value.shape
        self.weight.value[...] = random.standard_normal((outputs, inputs)) * np.sqrt(2.0 / inputs)
        self.bias.value[...] = 0

    def forward(self, inputs):
        """The output (outputs, samples), valid until the next call."""
        self._input = inputs
        output = self._output[:, : inputs.shape[1]]
        np.matmul(self.weight.value, inputs, out=output)
        output += self.bias.value[:, None]
        return output

    def backward(self, delta):
        """Sets both gradients from the loss's derivative by the output.

        The weight's factors are this layer's memory, valid until the next mini-batch.
        """
        np.matmul(delta, self._input.T, out=self.weight.gradient)
        self.weight.factors = self._input.T, delta.T
        np.sum(delta, axis=1, out=self.bias.gradient)

    def delta_below(self, delta):
        """The loss's derivative by the input (inputs, samples), valid until the next call."""
        below = self._delta[:, : delta.shape[1]]
        np.matmul(self.weight.value.T, delta, out=below)
        return below


class Network:
    """Dense layers of the given widths, from the input to the classes, named fc1, fc2, ...

    most
        samples in one call at most.
    align
        leading dimensions are multiples of this.
    """

    def __init__(self, widths, most, align=16, dtype=np.float32):
        self.most = most
        self._layers = [
            Dense(f"fc{number}", *pair, most, align, dtype) for number, pair in enumerate(pairwise(widths), start=1)
        ]
        self.weights = [weight for layer in self._layers for weight in (layer.weight, layer.bias)]
        self._positive = [np.empty((width, most), bool, order="F") for width in widths[1:-1]]

    def draw(self, seed):
        """Starts anew from this seed."""
        random = np.random.default_rng(seed)
        for layer in self._layers:
            layer.draw(random)

    def loss_and_gradients(self, images, labels, scale, made=None):
        """Sum of the cross-entropies of (pixels, samples) images; gradients of `scale` times that sum are set.

        made
            called with each weight as soon as its gradient is there.
        """
        logits = self._forward(images)
        loss = cross_entropy(logits, labels)
        softmax_error(logits, labels, scale)
        self._backward(logits, made)
        return loss

    def evaluate(self, images, labels):
        """(sum of cross-entropies, number classified rightly) of any number of samples."""
        loss, right = 0.0, 0
        for start in range(0, len(labels), self.most):
            part = slice(start, start + self.most)
            logits = self._forward(images[:, part])
            loss += cross_entropy(logits, labels[part])
            right += int(np.count_nonzero(logits.argmax(axis=0) == labels[part]))
        return loss, right

    def _forward(self, images):
        values = images
        for layer, positive in zip(self._layers, [*self._positive, None], strict=True):
            values = layer.forward(values)
            if positive is not None:
                np.maximum(values, 0, out=values)
                np.greater(values, 0, out=positive[:, : values.shape[1]])
        return values

    def _backward(self, delta, made):
        masks = [None, *self._positive]  # of each layer's input
        for layer, positive in zip(reversed(self._layers), reversed(masks), strict=True):
            layer.backward(delta)
            for weight in (layer.bias, layer.weight) if made else ():
                made(weight)
            if positive is not None:
                delta = layer.delta_below(delta)
                delta *= positive[:, : delta.shape[1]]


def cross_entropy(logits, labels):
    """Sum over samples of log(sum(exp(logits))) - logits[label]; logits are (classes, samples)."""
    if not len(labels):
        return 0.0
    most = logits.max(axis=0)
    sums = np.exp(logits - most).sum(axis=0, dtype=np.float64)
    return float(np.sum(np.log(sums) + most - logits[labels, np.arange(len(labels))]))


def softmax_error(logits, labels, scale):
    """logits := scale * (softmax(logits) - one-hot labels), the derivative of `scale` times the cross-entropy."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    logits[labels, np.arange(len(labels))] -= 1
    logits *= scale

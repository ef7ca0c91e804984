"""A small convolutional network in torch, whose parameters, gradients and their factors are NumPy arrays.

conv1 (1 to 16 channels), ReLU, conv2 (16 to 16), ReLU, pool, conv3 (16 to 32), ReLU, pool, linear. Convolutions are
3 x 3 and keep height and width; pools halve both. Weights have torch's layouts: (out, in, height, width) of a
convolution, (out, in) of the linear layer. The loss is the mean of the cross-entropies of a batch.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

CHANNELS = (1, 16, 16, 32)  # of the input, and after each convolution
KERNEL, STRIDE, PADDING = (3, 3), (1, 1), (1, 1)


class Factors(NamedTuple):
    """Of one layer and batch, what the gradient of its weight is made of: x and delta, both float32.

    x
        the layer's input: (samples, channels, height, width), or (samples, inputs) of the linear layer.
    delta
        derivative of the loss by the layer's output, bias added: of the shape of that. The loss is the batch's mean.
    kernel, stride, padding
        (height, width) each; None for the linear layer.
    """

    x: np.ndarray
    delta: np.ndarray
    kernel: tuple[int, int] | None
    stride: tuple[int, int] | None
    padding: tuple[int, int] | None


class ConvNet:
    """The network for images of `data_shape` = (height, width), at least 4 x 4; the same seed gives the same weights.

    values
        name -> float32 array: the parameters themselves, so that what is written there is what the network has.

    Images are (samples, height * width), labels whole numbers. torch computes with one thread from then on: a step is
    small, and sums keep one order. Raises ModuleNotFoundError without torch.
    """

    def __init__(self, data_shape, classes, seed):
        self._torch = torch = _torch()
        torch.set_num_threads(1)
        self._shape = height, width = tuple(data_shape)
        nn = torch.nn
        convolutions = [nn.Conv2d(*pair, KERNEL, STRIDE, PADDING) for pair in pairwise(CHANNELS)]
        self._layers = {f"conv{number}": layer for number, layer in enumerate(convolutions, start=1)}
        self._layers["linear"] = nn.Linear(CHANNELS[-1] * (height // 4) * (width // 4), classes)
        first, second, third = convolutions
        pool, relu = nn.MaxPool2d(2), nn.ReLU()
        parts = first, relu, second, relu, pool, third, relu, pool, nn.Flatten(), self._layers["linear"]
        self._model = nn.Sequential(*parts)
        self._parameters = {
            f"{name}.{kind}": getattr(layer, kind)
            for name, layer in self._layers.items()
            for kind in ("weight", "bias")
        }
        self.values = {name: parameter.detach().numpy() for name, parameter in self._parameters.items()}
        self.draw(seed)

    def draw(self, seed):
        """Starts anew: weights normally distributed with variance 2 / inputs (He et al. 2015), biases zero."""
        random = np.random.default_rng(seed)
        for name, value in self.values.items():
            inputs = math.prod(value.shape[1:])
            value[...] = random.standard_normal(value.shape) * math.sqrt(2 / inputs) if name.endswith("weight") else 0

    def set(self, values):
        """Takes parameters from arrays by name; those that are not named stay."""
        for name, value in values.items():
            self.values[name][...] = value

    def loss(self, images, labels):
        """Mean of the cross-entropies."""
        with self._torch.no_grad():
            return float(self._loss(images, labels))

    def accuracy(self, images, labels):
        """The share that is classified rightly."""
        with self._torch.no_grad():
            return float(np.mean(self._model(self._images(images)).numpy().argmax(axis=1) == labels))

    def gradients(self, images, labels):
        """name -> float32 array of the parameter's shape: the gradient of the loss."""
        found = self._torch.autograd.grad(self._loss(images, labels), list(self._parameters.values()))
        return {name: each.numpy() for name, each in zip(self._parameters, found, strict=True)}

    def factors(self, images, labels):
        """Layer's name -> Factors, for each convolution and the linear layer."""
        inputs, outputs = {}, {}

        def seen(name):
            def hook(_, given, made):
                inputs[name], outputs[name] = given[0].detach(), made

            return hook

        handles = [layer.register_forward_hook(seen(name)) for name, layer in self._layers.items()]
        try:
            loss = self._loss(images, labels)
        finally:
            for handle in handles:
                handle.remove()
        deltas = self._torch.autograd.grad(loss, [outputs[name] for name in self._layers])
        shape = {name: (KERNEL, STRIDE, PADDING) if name != "linear" else (None,) * 3 for name in self._layers}
        return {
            name: Factors(inputs[name].numpy(), delta.contiguous().numpy(), *shape[name])
            for name, delta in zip(self._layers, deltas, strict=True)
        }

    def _images(self, images):
        return self._torch.from_numpy(np.ascontiguousarray(images, np.float32)).reshape(-1, 1, *self._shape)

    def _loss(self, images, labels):
        labels = self._torch.from_numpy(np.ascontiguousarray(labels, np.int64))
        return self._torch.nn.functional.cross_entropy(self._model(self._images(images)), labels)


def _torch():
    try:
        import torch
    except ImportError:
        raise ModuleNotFoundError("the convolutional network needs torch: pip install torch") from None
    return torch

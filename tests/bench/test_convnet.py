"""The convolutional network: its gradients are slopes of its loss, and its factors make its gradients."""

import importlib.util
import sys

import numpy as np
import pytest

from gqallreduce.cli.training.convnet import ConvNet

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

CONVOLUTIONS = "conv1", "conv2", "conv3"


def batch(samples, pixels):
    draws = np.random.default_rng(1)
    return draws.random((samples, pixels), np.float32), draws.integers(0, 10, samples)


def patches(x, kernel, padding):
    """A row for each sample and place: the inputs under the kernel there, in the order of a filter's weights."""
    wide = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernel, axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * kernel[0] * kernel[1])


@needs_torch
def test_the_same_seed_gives_the_same_network_and_another_does_not():
    first, second, third = (ConvNet((8, 8), 10, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(first.values[name], second.values[name]) for name in first.values)
    assert not np.array_equal(first.values["conv1.weight"], third.values["conv1.weight"])
    images, labels = batch(5, 64)
    assert first.loss(images, labels) == second.loss(images, labels) != third.loss(images, labels)
    third.set(first.values)
    assert third.loss(images, labels) == first.loss(images, labels)


@needs_torch
def test_shapes_are_those_of_torch():
    shapes = {name: value.shape for name, value in ConvNet((28, 28), 10, 0).values.items()}
    assert shapes == {
        "conv1.weight": (16, 1, 3, 3), "conv1.bias": (16,), "conv2.weight": (16, 16, 3, 3), "conv2.bias": (16,),
        "conv3.weight": (32, 16, 3, 3), "conv3.bias": (32,), "linear.weight": (10, 1568), "linear.bias": (10,),
    }  # fmt: skip


@needs_torch
@pytest.mark.parametrize("name", ["conv1.weight", "conv2.bias", "conv2.weight", "conv3.weight", "linear.weight"])
def test_a_gradient_is_the_slope_of_the_loss(name):
    net, (images, labels) = ConvNet((8, 8), 10, 0), batch(6, 64)
    gradient = net.gradients(images, labels)[name]
    direction = gradient / np.linalg.norm(gradient)  # the steepest, so that rounding of the loss matters least
    start, losses = net.values[name].copy(), []
    for step in (1e-3, -1e-3):
        net.set({name: start + np.float32(step) * direction})
        losses.append(net.loss(images, labels))
    assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(np.linalg.norm(gradient), rel=0.02)


@needs_torch
def test_input_and_delta_make_the_gradient():
    net, (images, labels) = ConvNet((8, 8), 10, 0), batch(6, 64)
    gradients, factors = net.gradients(images, labels), net.factors(images, labels)
    assert list(factors) == [*CONVOLUTIONS, "linear"]
    assert np.array_equal(factors["conv1"].x.reshape(6, 64), images)
    for name in CONVOLUTIONS:
        x, delta, kernel, stride, padding = factors[name]
        assert (kernel, stride, padding, delta.dtype) == ((3, 3), (1, 1), (1, 1), np.float32)
        outputs = delta.transpose(0, 2, 3, 1).reshape(-1, delta.shape[1])
        found = patches(x, kernel, padding).T @ outputs
        expected = gradients[f"{name}.weight"]
        assert found.T.reshape(expected.shape) == pytest.approx(expected, abs=1e-4 * float(np.abs(expected).max()))
        assert outputs.sum(axis=0) == pytest.approx(gradients[f"{name}.bias"], rel=1e-3, abs=1e-6)
    x, delta, *rest = factors["linear"]
    assert rest == [None, None, None]
    assert delta.T @ x == pytest.approx(gradients["linear.weight"], abs=1e-6)


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="pip install torch"):
        ConvNet((8, 8), 10, 0)

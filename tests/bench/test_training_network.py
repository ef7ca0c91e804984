"""The network of the training and its optimizers: slopes, formulas, and memory with gaps."""

import numpy as np
import pytest

from gqallreduce.backends.buffer import Buffer
from gqallreduce.cli.training import optimizers
from gqallreduce.cli.training.network import Network, cross_entropy
from gqallreduce.cli.training.weights import Weight


def small_network(align, most=7, widths=(6, 5, 4, 3)):
    """A network in float64, with biases that are not zero."""
    network = Network(widths, most, align, np.float64)
    network.draw(1)
    random = np.random.default_rng(2)
    for weight in network.weights:
        if weight.value.ndim == 1:
            weight.value[...] = random.standard_normal(weight.value.shape)
    return network


def small_batch(samples, pixels=6, classes=3):
    random = np.random.default_rng(3)
    return random.standard_normal((samples, pixels)).T, random.integers(0, classes, samples)


@pytest.mark.parametrize("align", [1, 4, 16])
@pytest.mark.parametrize("samples", [1, 5, 7])
def test_the_gradient_is_the_slope_of_the_loss(align, samples):
    network = small_network(align)
    images, labels = small_batch(samples)
    network.loss_and_gradients(images, labels, 0.25)
    found = {weight.name: weight.gradient.copy() for weight in network.weights}
    step = 1e-6
    for weight in network.weights:
        slopes = np.empty(weight.value.shape)
        for index in np.ndindex(slopes.shape):
            kept, losses = weight.value[index], []
            for offset in (step, -step):
                weight.value[index] = kept + offset
                losses.append(network.loss_and_gradients(images, labels, 0.25))
            weight.value[index] = kept
            slopes[index] = 0.25 * (losses[0] - losses[1]) / (2 * step)
        np.testing.assert_allclose(found[weight.name], slopes, rtol=1e-6, atol=1e-8, err_msg=weight.name)


def test_gradients_of_parts_of_a_mini_batch_add_up_to_that_of_the_whole():
    network = small_network(16)
    images, labels = small_batch(7)
    whole_loss = network.loss_and_gradients(images, labels, 1 / 7)
    whole = [weight.gradient.copy() for weight in network.weights]
    parts = [slice(0, 2), slice(2, 2), slice(2, 7)]  # a rank may have no sample
    loss, sums = 0.0, [np.zeros_like(gradient) for gradient in whole]
    for part in parts:
        loss += network.loss_and_gradients(images[:, part], labels[part], 1 / 7)
        for total, weight in zip(sums, network.weights, strict=True):
            total += weight.gradient
    assert loss == pytest.approx(whole_loss)
    for total, gradient in zip(sums, whole, strict=True):
        np.testing.assert_allclose(total, gradient, atol=1e-12)


def test_evaluation_takes_any_number_of_samples():
    network = small_network(16)
    images, labels = small_batch(20)
    loss, right = network.evaluate(images, labels)
    single = [network.evaluate(images[:, n : n + 1], labels[n : n + 1]) for n in range(20)]
    assert loss == pytest.approx(sum(each for each, _ in single))
    assert right == sum(each for _, each in single)
    assert network.evaluate(images[:, :0], labels[:0]) == (0.0, 0)


def test_the_loss_of_large_logits_does_not_overflow():
    logits = np.array([[1000.0, -1000.0], [0.0, 0.0]], np.float32)
    assert cross_entropy(logits, np.array([0, 0])) == pytest.approx(1000.0)


@pytest.mark.parametrize(("shape", "leading"), [((10, 7), 16), ((16, 3), 16), ((1, 4), 16), ((10,), 10)])
def test_weights_are_fortran_views_with_a_leading_dimension(shape, leading):
    weight = Weight("w", shape, 16, np.float32)
    for view, memory in ((weight.value, weight.value_memory), (weight.gradient, weight.gradient_memory)):
        assert view.shape == shape
        assert view.strides == (4, 4 * leading)[: len(shape)]
        assert np.shares_memory(view, memory)
        assert memory.size == leading * (shape[1] if len(shape) == 2 else 1)
    assert Buffer(weight.gradient).order == ("F" if len(shape) == 2 and shape[0] > 1 else "C")


def test_products_are_written_into_the_views_and_leave_the_gaps_zero():
    network = small_network(16)
    network.loss_and_gradients(*small_batch(7), 1.0)
    for weight in network.weights:
        assert np.abs(weight.gradient).sum() > 0
        assert np.abs(weight.gradient_memory).sum() == pytest.approx(np.abs(weight.gradient).sum())


def test_a_digest_tells_one_bit():
    weight = Weight("w", (10, 7), 16, np.float32)
    weight.value[3, 2] = 1.0
    before = weight.digest()
    weight.value[3, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert weight.digest() != before


def momentum_formula(gradients, rate=0.01, momentum=0.9):
    moment = value = 0.0
    for gradient in gradients:
        moment = momentum * moment + gradient
        value = value - rate * moment
    return value


def adagrad_formula(gradients, rate=0.01, epsilon=1e-8):
    squares = value = 0.0
    for gradient in gradients:
        squares = squares + gradient**2
        value = value - rate * gradient / (np.sqrt(squares) + epsilon)
    return value


def adam_formula(gradients, rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    first = second = value = 0.0
    for step, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        value = value - rate * (first / (1 - beta1**step)) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
    return value


FORMULAS = {"sgd": momentum_formula, "adagrad": adagrad_formula, "adam": adam_formula}


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("shape", [(5, 3), (16, 3), (7,), (300, 2 * optimizers.BLOCK // 300)])
def test_an_optimizer_follows_its_formula(name, shape):
    random = np.random.default_rng(4)
    gradients = random.standard_normal((6, *shape)) * 10.0 ** random.integers(-9, 2, shape)
    weight = Weight("w", shape, 16, np.float64)
    optimizer = optimizers.OPTIMIZERS[name]()
    for gradient in gradients:
        weight.gradient[...] = gradient
        optimizer.update(weight)
    np.testing.assert_allclose(weight.value, FORMULAS[name](gradients), rtol=1e-12, atol=1e-16)
    assert np.count_nonzero(weight.value_memory) == weight.value.size, "the gaps stay zero"


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_an_extra_step_of_one_weight_leaves_the_others_alone(name):
    weights = [Weight("a", (3,), 1, np.float64), Weight("b", (3,), 1, np.float64)]
    optimizer = optimizers.OPTIMIZERS[name]()
    for step in range(4):
        for weight in weights if step != 1 else weights[:1]:
            weight.gradient[...] = 1 + step
            optimizer.update(weight)
    for weight, steps in zip(weights, ([1, 2, 3, 4], [1, 3, 4]), strict=True):
        np.testing.assert_allclose(weight.value, FORMULAS[name](np.array(steps, float)), rtol=1e-12)

"""What messages of factors lose of gradients: by method, by number of workers, over a training, and by layer.

A worker's message is Scheme.encode of its factors, or of its gradient; the sum is that of what messages decode to.
"""

import itertools

import numpy as np

import gqallreduce as gq
from gqallreduce.cli.training.data import Batches
from gqallreduce.cli.training.network import Network
from gqallreduce.cli.training.optimizers import Momentum

HIDDEN, BATCH, RATE = (256, 128), 128, 0.02  # of the network; samples over all workers; of SGD with momentum 0.9
METHODS = {  # how the columns of a table are called
    "fixed": "isgq(method=mse, sweeps=0, scale=matrix, {bits})",
    "alternated": "isgq(method=mse, scale=matrix, {bits})",
    "sum kept": "isgq(method=mvu, scale=matrix, {bits})",
    "rows": "isgq(method=mse, {bits})",
    "rows, gains": "isgq(method=mse, gains=True, {bits})",
    "dither": "isgq(scale=matrix, {bits})",
    "dither, rows": "isgq({bits})",
}
BITS = {"1, 2": "x_bits=1, bits=2", "2, 2": "bits=2", "3, 3": "bits=3"}  # of x, of delta
DIRECT = ("onebit", "terngrad(shared=False)", "qsgd(bits=4)")
LOOKS = (20, 600)  # steps of a training with exact sums
WORKERS = (1, 4, 16, 32)
TRAINED = (
    "raw", "onebit", "qsgd(bits=4)", "isgq(bits=2)", "isgq(bits=3)", "isgq(bits=2, x_bits=1)",
    "isgq(method=mse, bits=2, scale=matrix)", "isgq(method=mse, bits=2, gains=True)",
    "isgq(method=mse, bits=3, gains=True)",
)  # fmt: skip
OF_WORKERS = (
    "isgq(bits=2)", "isgq(method=mse, bits=2, scale=matrix)", "isgq(method=mse, bits=2, gains=True)", "onebit",
)  # fmt: skip


def cases(part, data, arguments):
    """[(what is done, function that yields rows, its arguments)] of a part."""
    if part == "errors":
        return [(part, errors, (data, step)) for step in LOOKS]
    if part == "workers":
        return [(part, workers, (data, count)) for count in WORKERS]
    if part == "layers":
        return [(part, layers, (data,))]
    every = [(scheme, workers, seed) for workers in (4, 16) for scheme in TRAINED for seed in arguments.seeds]
    return [(part, training, (data, *each, arguments.steps)) for each in every]


def sent(scheme):
    """The scheme, whose factors always travel."""
    return f"{scheme[:-1]}, send=factors)" if scheme.startswith("isgq(") else scheme


def _mini_batches(data, seed):
    """(samples, images, labels), epoch after epoch."""
    for epoch in itertools.count():
        yield from Batches(data.training, BATCH, 0, 1).epoch(seed, epoch)


def decoded(scheme, x, delta, seed, step, given=None):
    """(the gradient that a worker's message stands for, bytes of the message without its header)."""
    scheme, given = gq.Scheme.parse(sent(scheme)), given or gq.Outer(x, delta)
    data = scheme.encode(given, seed=seed, step=step)
    return scheme.decode(data, given, seed=seed).reshape(given.shape), len(data) - 32


class Worker:
    """The network on a part of each mini-batch; its layers' factors are rows of samples."""

    def __init__(self, data, samples):
        self.network = Network((data.training.images.shape[1], *HIDDEN, data.classes), samples)

    def factors(self, images, labels, together):
        """[(weight, x, delta)] of all layers, for the mean loss over so many samples."""
        found = []

        def made(weight):
            if weight.factors is not None:
                found.append((weight, *(np.ascontiguousarray(each) for each in weight.factors)))

        self.network.loss_and_gradients(images, labels, 1 / together, made)
        return found[::-1]


def _at(data, step, samples, batches):
    """`batches` lists of factors of later mini-batches, after so many steps of exact training."""
    worker = Worker(data, max(BATCH, samples))
    worker.network.draw(0)
    optimizer = Momentum(RATE)
    for together, images, labels in itertools.islice(_mini_batches(data, 0), step):
        worker.network.loss_and_gradients(images, labels, 1 / together)
        for weight in worker.network.weights:
            optimizer.update(weight)
    found = []
    for number in range(batches):
        chosen = np.random.default_rng([1, number]).choice(len(data.training.labels), samples, replace=False)
        images, labels = data.training.images[chosen].T, data.training.labels[chosen]
        found.append([(x.copy(), delta.copy()) for _, x, delta in worker.factors(images, labels, samples)])
    return found


def errors(data, step):
    """Rows of kind `error`: |decoded - gradient|^2 / |gradient|^2, the mean of 8 mini-batches, for each layer."""
    batches = _at(data, step, BATCH, 8)
    schemes = [(name, bits, text.format(bits=BITS[bits])) for bits in BITS for name, text in METHODS.items()]
    schemes += [(text, "", text) for text in DIRECT]
    for name, bits, text in schemes:
        for layer in range(len(batches[0])):
            lost, nbytes = [], 0
            for number, batch in enumerate(batches):
                x, delta = batch[layer]
                exact = x.T.astype(np.float64) @ delta
                found, nbytes = decoded(text, x, delta, number, step)
                lost.append(np.sum((found - exact) ** 2) / np.sum(exact**2))
            yield "error", {
                "method": name, "bits": bits, "scheme": text, "step": step, "layer": layer,
                "error": float(np.mean(lost)), "ratio": 4 * exact.size / nbytes,
            }  # fmt: skip


def workers(data, count):
    """Rows of kind `workers`: the error of so many workers' mean gradient, 32 samples each, in the first layer."""
    for step in LOOKS:
        batches = [each[0] for each in _at(data, step, 32, count)]
        exact = sum(x.T.astype(np.float64) @ delta for x, delta in batches)
        for text in OF_WORKERS:
            found = sum(decoded(text, *each, worker, step)[0].astype(np.float64) for worker, each in enumerate(batches))
            error = np.sum((found - exact) ** 2) / np.sum(exact**2)
            yield "workers", {"scheme": text, "step": step, "workers": count, "error": float(error)}


def training(data, scheme, workers, seed, steps):
    """The row of kind `training`: the accuracy after so many steps, and how many times fewer bytes a worker sends."""
    worker, optimizer = Worker(data, BATCH), Momentum(RATE)
    worker.network.draw(seed)
    whole = (each for each in _mini_batches(data, seed) if each[0] == BATCH)
    nbytes = dense = 0
    for step, (together, images, labels) in enumerate(itertools.islice(whole, steps)):
        for weight, x, delta in worker.factors(images, labels, together):
            total = np.zeros(weight.gradient.shape[::-1], np.float32)
            for number, mine in enumerate(np.split(np.arange(BATCH), workers)):
                found, sent_bytes = decoded(scheme, x[mine], delta[mine], [seed, number], step)
                total += found
            nbytes, dense = nbytes + sent_bytes, dense + 4 * total.size
            weight.gradient[...] = total.T
        for weight in worker.network.weights:
            optimizer.update(weight)
    _, right = worker.network.evaluate(data.test.images.T, data.test.labels)
    yield "training", {
        "scheme": scheme, "workers": workers, "seed": seed, "accuracy": right / len(data.test.labels),
        "ratio": dense / nbytes, "steps": steps,
    }  # fmt: skip


def layers(data):
    """Rows of kind `layer`: what a rank of a convolutional network would send of each layer, and what travels."""
    try:
        from gqallreduce.cli.training.convnet import ConvNet
        from gqallreduce.cli.training.convolutions import shape_of

        network = ConvNet(shape_of(data), data.classes, 0)
    except ModuleNotFoundError:  # torch
        return
    for samples in (8, 32):
        images, labels = data.training.images[:samples], data.training.labels[:samples]
        for name, (x, delta, *convolution) in network.factors(images, labels).items():
            pairs = zip(("kernel", "stride", "padding"), convolution, strict=True)
            given = gq.Outer(x, delta, **{option: value for option, value in pairs if value is not None})
            exact = gq.Scheme.parse("raw").decode(gq.Scheme.parse("raw").encode(given), given)
            for text in ("isgq(bits=2)", "isgq(bits=4)"):
                found, nbytes = decoded(text, x, delta, 0, 0, given)
                shorter = len(gq.Scheme.parse(text).encode(given)) - 32 == nbytes
                yield "layer", {
                    "layer": name, "samples": samples, "scheme": text, "bytes": exact.nbytes, "sent": nbytes,
                    "error": float(np.sum((found.reshape(-1) - exact) ** 2) / np.sum(exact**2)),
                    "travels": "factors" if shorter else "gradient",
                }  # fmt: skip

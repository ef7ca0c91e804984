"""What a learned basis loses of later gradients: recorded ones, summed by the codec gradiveq of a single rank."""

import numpy as np

import gqallreduce as gq
from gqallreduce.coding.layout import Form
from gqallreduce.coding.slices import Slices
from gqallreduce.runtime.local import LocalAllreduce

WINDOW = 100  # iterations of which one mean is taken


def losses(gradients, train, after=None, **options):
    """(K, d, ||sum - g|| / ||g|| of each of the next `after` gradients) where the first `train` make the basis.

    What is no slice is sent exactly, and is left out. `options` are those of gradiveq.
    """
    written = ", ".join(f"{name}={value}" for name, value in options.items())
    scheme = gq.Scheme.parse(f"direct/gradiveq({written}, warmup=0, train={train}, compress=0)")
    local = LocalAllreduce(scheme, 1)
    slices = Slices.of(scheme.codec, Form(gradients[0].shape, "C", "float32"))
    found = []
    for number, gradient in enumerate(gradients[: None if after is None else train + after]):
        (y,) = local([gradient.copy()], key="w")
        if number >= train:
            inside, lost = (slices.ordered(each.reshape(-1))[: slices.size] for each in (gradient, gradient - y))
            found.append(float(np.linalg.norm(lost) / np.linalg.norm(inside)))
    return slices.length, len(local.memory[0].get("w").learned["basis"]), np.array(found)


def against_length(gradients, length, order, reuse, train, after):
    """A row: the mean loss for slices of so many values, an eighth of that in coefficients."""
    _, d, found = losses(gradients, train, after, K=length, d=length // 8, order=order, reuse=reuse)
    unit = units(gradients[0].shape)[order]
    return {
        "K": length, "d": d, "order": order, "reuse": reuse, "aligned": length % unit == 0, "loss": float(found.mean())
    }  # fmt: skip


def with_energy(gradients, length, order, reuse, lam, train, after):
    """A row: the d that `lam` gives, the loss that it promises, and the mean loss that it delivers."""
    _, d, found = losses(gradients, train, after, K=length, lam=lam, order=order, reuse=reuse)
    promised = float(np.sqrt(lam))
    return {
        "K": length, "d": d, "order": order, "reuse": reuse, "promised": promised, "loss": float(found.mean())
    }  # fmt: skip


def ageing(gradients, length, train):
    """A row: the energy that a basis loses, mean of each WINDOW iterations after training."""
    _, d, found = losses(gradients, train, K=length, d=length // 8)
    windows = found[: len(found) // WINDOW * WINDOW].reshape(-1, WINDOW)
    return {"K": length, "d": d, "train": train, "energy": np.mean(windows**2, axis=1).tolist()}


def units(shape):
    """order -> the values of which slices are best whole multiples: F D, or D H W, of a torch weight's shape."""
    filters, inputs, height, width = shape
    return {"hwdf": filters * inputs, "filter": inputs * height * width}

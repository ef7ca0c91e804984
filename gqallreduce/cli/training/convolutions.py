"""Data-parallel training of the convolutional network: sums of its convolutions by a scheme, of all else exactly.

A mini-batch is shared out over the ranks; gradients are divided by the whole of it and summed. The last mini-batch of
an epoch, which is smaller, is left out.
"""

import hashlib
import math
from time import perf_counter
from typing import NamedTuple

import numpy as np

import gqallreduce as gq
from gqallreduce.cli.training.convnet import ConvNet
from gqallreduce.cli.training.data import Batches
from gqallreduce.cli.training.optimizers import Momentum

EXACT = "raw"
LOOK = 25  # a state is copied to be looked at


class Setting(NamedTuple):
    """batch: samples over all ranks; rate: of SGD with momentum 0.9."""

    steps: int = 1300
    batch: int = 64
    rate: float = 0.02


class Parameter(NamedTuple):
    """What an optimizer asks of a Weight."""

    name: str
    value_memory: np.ndarray
    gradient_memory: np.ndarray


class Sums:
    """The sums of a training on one rank.

    bases
        weight's name -> (K, d) of each basis that was learned so far.
    sent
        bytes of all calls so far.
    """

    def __init__(self, comm, scheme, seed):
        self._by_scheme = gq.Allreduce(scheme, comm=comm, seed=seed)
        self._exact = gq.Allreduce(EXACT, comm=comm)
        self.bases, self._told, self.sent = {}, {}, 0

    def __call__(self, gradients):
        """Sums the gradients, by name, in place."""
        names = [name for name in gradients if name.startswith("conv") and name.endswith("weight")]
        for allreduce, some in ((self._by_scheme, names), (self._exact, [n for n in gradients if n not in names])):
            allreduce([gradients[name] for name in some], key=some)
            self.sent += allreduce.stats.last.bytes_sent

    def look(self):
        """Notes bases that are new; to be called more often than they change."""
        for name, state in self._by_scheme.state_dict()["keys"].items():
            learned = state.get("learned") or {}
            if learned.get("basis") is not None and self._told.get(name) != learned["told"]:
                self._told[name] = learned["told"]
                self.bases.setdefault(name, []).append(learned["basis"].shape[::-1])

    def close(self):
        self._by_scheme.close()
        self._exact.close()


def train(comm, data, scheme, seed, setting, recorded=None):
    """One training: a row of its results, the same on all ranks but for `sent`.

    recorded
        weight's name -> list, to which its summed gradient of every step is added.

    Raises ValueError for images that the network cannot take, or fewer samples than ranks.
    """
    net = ConvNet(shape_of(data), data.classes, seed)
    parameters = [
        Parameter(name, value.reshape(-1), np.empty(value.size, np.float32)) for name, value in net.values.items()
    ]
    optimizer, sums, began = Momentum(setting.rate), Sums(comm, scheme, seed), perf_counter()
    for step, (samples, images, labels) in enumerate(_batches(comm, data.training, seed, setting)):
        gradients = net.gradients(images.T, labels)
        for each in parameters:
            np.multiply(gradients[each.name].reshape(-1), len(labels) / samples, out=each.gradient_memory)
        summed = {each.name: each.gradient_memory.reshape(net.values[each.name].shape) for each in parameters}
        sums(summed)
        if step % LOOK == 0:
            sums.look()
        for each in parameters:
            optimizer.update(each)
        for name, kept in (recorded or {}).items():
            kept.append(summed[name].copy())
    seconds = perf_counter() - began
    sums.look()
    sums.close()
    _must_be_alike(comm, net)
    return {
        "scheme": scheme, "seed": seed, "accuracy": net.accuracy(data.test.images, data.test.labels),
        "loss": net.loss(data.training.images, data.training.labels), "sent": sums.sent / setting.steps,
        "ratio": ratio(net, sums.bases), "bases": sums.bases, "seconds": seconds,
    }  # fmt: skip


def shape_of(data):
    """(height, width) of square images."""
    side = math.isqrt(data.pixels)
    if side * side != data.pixels or side < 4:
        raise ValueError(f"images of {data.pixels} pixels, expected square ones of 4 x 4 or more")
    return side, side


def ratio(net, bases):
    """Values of all convolutions that have slices, over their coefficients: the mean of d of each; None without."""
    values = {name: net.values[name].size for name in bases}
    coefficients = sum(size * np.mean([d / length for length, d in bases[name]]) for name, size in values.items())
    return sum(values.values()) / coefficients if bases else None


def _batches(comm, samples, seed, setting):
    """As many whole mini-batches as there are steps, of one epoch after the other."""
    if not comm.size <= setting.batch <= len(samples):
        raise ValueError(f"batch {setting.batch}, expected {comm.size} samples, one for each rank, to {len(samples)}")
    batches, done, epoch = Batches(samples, setting.batch, comm.rank, comm.size), 0, 0
    while done < setting.steps:
        for found in batches.epoch(seed, epoch):
            if found[0] == setting.batch and done < setting.steps:
                yield found
                done += 1
        epoch += 1


def _must_be_alike(comm, net):
    """Replicas have the same bits, or the job ends."""
    digest = hashlib.blake2b(b"".join(value.tobytes() for value in net.values.values())).hexdigest()
    if len(set(comm.allgather(digest))) > 1:
        raise RuntimeError("replicas differ")

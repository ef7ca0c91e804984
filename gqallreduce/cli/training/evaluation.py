"""How good the model is, seen by all ranks alike: each tests its part of the images, and the sums are shared."""

import hashlib

import numpy as np

import gqallreduce as gq
from gqallreduce.cli.training.data import part


class Diverged(Exception):
    """The loss is no longer a finite number."""


class Evaluation:
    """Evaluates a network on the test images; collective."""

    def __init__(self, comm, network, samples):
        own = part(len(samples), comm.rank, comm.size)
        self._comm, self._network, self._count = comm, network, len(samples)
        self._images, self._labels = samples.images[own].T, samples.labels[own]

    def __call__(self, trainer, since):
        """(row, losses): test and training since step `since`, and the loss of every mini-batch of these.

        Bytes and seconds of the row are means over ranks of all that was done so far. Raises Diverged on every rank.
        """
        loss, right = self._network.evaluate(self._images, self._labels)
        steps = slice(since, trainer.done)
        own = [loss, right, trainer.total_sent, trainer.total_seconds, *trainer.losses[steps]]
        total = np.empty(len(own))
        self._comm.Allreduce(np.array(own, np.float64), total)
        samples = trainer.samples[steps]
        row = {
            "step": trainer.done,
            "accuracy": total[1] / self._count,
            "test_loss": total[0] / self._count,
            "training_loss": total[4:].sum() / max(1, samples.sum()),
            "sent": total[2] / self._comm.size,
            "seconds": total[3] / self._comm.size,
        }
        if not np.isfinite(row["test_loss"] + row["training_loss"]):
            raise Diverged
        return row, total[4:] / samples


def replicas_digest(comm, weights):
    """A digest of the weights, after making sure that all ranks have the same bits; ReplicaError on all if not."""
    digests = [weight.digest() for weight in weights]
    everyone = comm.allgather(digests)
    for number, weight in enumerate(weights):
        strays = [rank for rank, found in enumerate(everyone) if found[number] != everyone[0][number]]
        if strays:
            raise gq.ReplicaError(f"weight {weight.name!r} differs from rank 0's on ranks {strays}")
    return hashlib.blake2b(b"".join(digests), digest_size=8).hexdigest()

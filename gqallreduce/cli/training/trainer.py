"""One rank's training: mini-batch by mini-batch, with a clock for computing and one for communicating.

A step computes the gradients of this rank's part of the mini-batch, divided by the whole mini-batch, sums them over
ranks in the order of the backward pass, and updates the weights. Communication is the time inside the
sums. No rank waits for another elsewhere in a step, so what a sum waits for a slower rank counts as communication, and
is told apart as `wait`. In steps that overlap, a sum is started as soon as its gradient is there, and communication is
the time inside the starts and the waits: what is not hidden behind computing.
"""

from time import perf_counter

import numpy as np


class Trainer:
    """Trains a network on its part of the data; every rank has one.

    seconds
        float64[steps, 3]: computing, communicating, and of that waiting.
    sent, received, losses
        per step: bytes this rank sent, and received; sum of its samples' cross-entropies.
    samples
        per step: samples of the mini-batch over all ranks.
    overlaps
        per step: were sums started during the backward pass?
    flush_seconds, flush_sent
        of all extra steps so far.
    """

    def __init__(self, network, optimizer, sums, steps, overlap="never"):
        self._network, self._optimizer, self._sums, self._overlap = network, optimizer, sums, overlap
        self.overlaps = np.zeros(steps, bool)
        self._backward_order = list(reversed(network.weights))
        self.seconds, self.sent, self.received = np.zeros((steps, 3)), np.zeros(steps), np.zeros(steps)
        self.losses, self.samples = np.zeros(steps), np.zeros(steps, np.int64)
        self.flush_seconds, self.flush_sent = 0.0, 0.0
        self.done = 0

    @property
    def last(self):
        """Weight's name -> statistics of its sum in the last step."""
        return self._sums.tensors

    def step(self, samples, images, labels, look=None):
        """One mini-batch of `samples` over all ranks.

        look(weights) may see the gradients before they are summed; it returns what is called when they are.
        """
        overlaps = look is None and (self._overlap == "always" or (self._overlap == "alternate" and self.done % 2 == 1))
        starting = 0.0

        def start(weight):
            nonlocal starting
            before = perf_counter()
            self._sums.start(weight, samples)
            starting += perf_counter() - before

        began = perf_counter()
        loss = self._network.loss_and_gradients(images, labels, 1 / samples, start if overlaps else None)
        computed = perf_counter() - starting
        look_again = look(self._network.weights) if look else None
        ready = perf_counter() - starting
        for weight in () if overlaps else self._backward_order:
            self._sums.start(weight, samples, at_once=True)
        cost = self._sums.wait()
        summed = perf_counter()
        if look_again:
            look_again()
        looked = perf_counter()
        for weight in self._network.weights:
            self._optimizer.update(weight)
        updated = perf_counter()
        self.seconds[self.done] = computed - began + updated - looked, summed - ready, cost.wait
        self.overlaps[self.done] = overlaps
        self.sent[self.done], self.received[self.done] = cost.bytes_sent, cost.bytes_received
        self.losses[self.done], self.samples[self.done] = loss, samples
        self.done += 1

    def flush(self):
        """The residuals of schemes with feedback, summed exactly and applied as one extra step of the optimizer."""
        began = perf_counter()
        flushed, nbytes = self._sums.flush(self._backward_order)
        for weight in flushed:
            self._optimizer.update(weight)
        self.flush_seconds += perf_counter() - began
        self.flush_sent += nbytes

    @property
    def total_seconds(self):
        """Training so far, evaluation and bookkeeping left out."""
        return float(self.seconds[: self.done, :2].sum()) + self.flush_seconds

    @property
    def total_sent(self):
        """Bytes this rank sent so far."""
        return float(self.sent[: self.done].sum()) + self.flush_sent

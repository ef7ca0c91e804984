"""The gradients' sums over ranks in one run: one Allreduce object per scheme, weights told apart by their names.

Of a layer's weight `isgq` gets the two matrices whose product the gradient is; all else gets the gradient.
"""

import contextlib
import gc
from time import perf_counter

import numpy as np
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import dense
from gqallreduce.cli.training.rules import DENSE, RING
from gqallreduce.stats import Spent


class DenseSum:
    """MPI_Allreduce in place of a gradient's memory, gaps included."""

    feedback = False

    def __init__(self, name, comm, allreduce):
        self._name, self._comm, self._allreduce = name, comm, allreduce

    def __call__(self, weight, samples):
        """Sums the gradient; the call's Spent. MPI does not tell its bytes: they are what a ring would send."""
        began = perf_counter()
        self._allreduce(weight.gradient_memory)
        return self._spent(weight, perf_counter() - began)

    def start(self, weight, samples):
        """Begins the sum; returns what waits for it and returns its Spent.

        MPI's own non-blocking sum; its own choice of algorithm, also where a ring is asked for.
        """
        began = perf_counter()
        request = self._comm.Iallreduce(MPI.IN_PLACE, weight.gradient_memory)
        started = perf_counter() - began

        def finish():
            began = perf_counter()
            request.Wait()
            return self._spent(weight, started + perf_counter() - began)

        return finish

    def _spent(self, weight, seconds):
        nbytes = round(ring_bytes(weight.gradient_memory.nbytes, self._comm.size))
        spent = Spent(self._name, bytes_sent=nbytes, bytes_received=nbytes, dense_bytes=nbytes, dense=True)
        spent.wait = spent.total = seconds
        return spent


class QuantizedSum:
    """A scheme's Allreduce of the gradient's view, or of its factors."""

    def __init__(self, text, comm, seed):
        self._allreduce = gq.Allreduce(text, comm=comm, seed=seed)
        self._ranks = comm.size
        self._by_factors = self._allreduce.scheme.codec.name == "isgq"
        self.feedback = self._allreduce.scheme.feedback

    def __call__(self, weight, samples):
        """Sums the gradient; the call's Spent. Raises NonFiniteError on every rank."""
        given, out = self._given(weight, samples)
        self._allreduce(given, key=weight.name, out=out)
        return self._allreduce.stats.last

    def start(self, weight, samples):
        """Begins the sum; returns what waits for it and returns its Spent."""
        given, out = self._given(weight, samples)
        request = self._allreduce.start(given, key=weight.name, out=out)

        def finish():
            request.wait()
            return request.stats

        return finish

    def flush(self, weight):
        """Replaces the gradient by the exact sum of the residuals, which are then zero."""
        self._summed(weight)[...] = self._allreduce.flush(weight.name)

    def _given(self, weight, samples):
        """(what the Allreduce gets, the array that it writes)."""
        summed = self._summed(weight)
        if not self._takes_factors_of(weight):
            return summed, summed
        rows = None if samples is None else -(-samples // self._ranks)
        return gq.Outer(*(with_rows(each, rows) for each in weight.factors)), summed

    def _takes_factors_of(self, weight):
        return self._by_factors and weight.factors is not None

    def _summed(self, weight):
        """The gradient as the Allreduce knows it: a product of input and delta is (inputs, outputs)."""
        return weight.gradient.T if self._takes_factors_of(weight) else weight.gradient


class Sums:
    """How each weight's gradient is summed; a context, at whose end memory is let go.

    assignment
        weight's name -> scheme.
    """

    def __init__(self, assignment, comm, seed, baselines):
        self._comm = comm
        self._context = contextlib.ExitStack()
        by_scheme = {text: self._make(text, seed, baselines) for text in dict.fromkeys(assignment.values())}
        self._of = {name: by_scheme[text] for name, text in assignment.items()}
        self.schemes = dict(assignment)

    def _make(self, text, seed, baselines):
        if text not in (DENSE, RING):
            return QuantizedSum(text, self._comm, seed)
        baseline = baselines[text]
        self._context.enter_context(baseline.active())
        return DenseSum(text, self._comm, baseline)

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self._context.close()
        self._of.clear()
        gc.collect()  # statistics refer back to what they are of

    def __call__(self, weight, samples=None):
        """Sums one gradient over ranks in place; the Spent of the call.

        samples
            of the mini-batch over all ranks; None where all ranks have as many.
        """
        return self._of[weight.name](weight, samples)

    def start(self, weight, samples=None):
        """Begins the sum of one gradient; returns what waits for it and returns its Spent."""
        return self._of[weight.name].start(weight, samples)

    def flush(self, weights):
        """(weights with feedback, bytes): their gradients are now their residuals, summed exactly.

        The bytes are those that an exact sum sends from this rank, without headers.
        """
        flushed = [weight for weight in weights if self._of[weight.name].feedback]
        for weight in flushed:
            self._of[weight.name].flush(weight)
        return flushed, sum(ring_bytes(weight.gradient.nbytes, self._comm.size) for weight in flushed)


def with_rows(matrix, rows):
    """The matrix with rows of zeros added to it until it has so many: ranks must give as many samples as each other."""
    if rows is None or len(matrix) == rows:
        return matrix
    return np.concatenate([matrix, np.zeros((rows - len(matrix), matrix.shape[1]), matrix.dtype)])


def ring_bytes(nbytes, size):
    """Bytes that a bandwidth-optimal exact sum of a buffer of `nbytes` sends from each of `size` ranks."""
    return 2 * (size - 1) / size * nbytes


def baselines(comm, wanted):
    """scheme -> its contender of `cli/dense.py`, for the dense schemes wanted. Collective.

    Raises ValueError, on every rank, if a ring is wanted and this MPI cannot be told to use one.
    """
    if not {DENSE, RING} & set(wanted):
        return {}
    found, how = dense.baselines(comm)
    if RING in wanted and len(found) == 1:
        raise ValueError(f"{RING}: {how}")
    return dict(zip((DENSE, RING), found, strict=False))

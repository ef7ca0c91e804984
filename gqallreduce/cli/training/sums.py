"""The gradients' sums over ranks in one run: by a Reducer, or by MPI alone where that is what is compared with.

Of a layer's weight `isgq` gets the two matrices whose product the gradient is; all else gets the gradient.
"""

import contextlib
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

import gqallreduce as gq
from gqallreduce.cli import dense
from gqallreduce.cli.training.rules import DENSE, RING
from gqallreduce.scheme import Scheme


class Cost(NamedTuple):
    """Of the sums of one step, of this rank; wait in seconds."""

    bytes_sent: float
    bytes_received: float
    wait: float


class DenseSum:
    """MPI_Allreduce in place of a gradient's memory, gaps included; MPI's bytes are those that a ring would send."""

    ratio, encode, decode, residual_norm = 1.0, 0.0, 0.0, 0.0

    def __init__(self, weight, scheme, comm, allreduce):
        self.scheme, self._memory, self._comm, self._allreduce = scheme, weight.gradient_memory, comm, allreduce
        self.bytes_sent, self.wait, self._request = ring_bytes(self._memory.nbytes, comm.size), 0.0, None

    def start(self, at_once):
        """Sums the gradient, or begins to, by MPI's own algorithm, also where a ring is asked for."""
        began = perf_counter()
        if at_once:
            self._allreduce(self._memory)
        else:
            self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._memory)
        self.wait = perf_counter() - began

    def finish(self):
        """Waits for it."""
        began = perf_counter()
        if self._request is not None:
            self._request.Wait()
        self._request = None
        self.wait += perf_counter() - began


class Sums:
    """How each weight's gradient is summed; a context, at whose end memory is let go.

    assignment
        weight's name -> scheme.
    bucket
        of the Reducer.
    """

    def __init__(self, weights, assignment, comm, seed, baselines, bucket="4 MiB"):
        self._comm, self._context = comm, contextlib.ExitStack()
        schemes = {weight: assignment[weight.name] for weight in weights}
        exact = {weight: text for weight, text in schemes.items() if text in (DENSE, RING)}
        for text in dict.fromkeys(exact.values()):
            self._context.enter_context(baselines[text].active())
        self._dense = {weight.name: DenseSum(weight, text, comm, baselines[text]) for weight, text in exact.items()}
        rest = [weight for weight in weights if weight not in exact]
        self._by_factors = {weight.name for weight in rest if _by_factors(weight, schemes[weight])}
        self._reducer = None
        if rest:
            rules = {weight.name: schemes[weight] for weight in rest}
            options = {"comm": comm, "average": False, "seed": seed, "bucket": bucket}
            self._reducer = self._context.enter_context(gq.Reducer(rules, **options))
            self._reducer.register([(weight.name, self._summed(weight)) for weight in rest])

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self._context.close()

    def start(self, weight, samples=None, at_once=False):
        """Begins the sum of one gradient over ranks, in place.

        samples
            of the mini-batch over all ranks; None where all ranks have as many.
        at_once
            nothing else is computed until `wait`.
        """
        if weight.name in self._dense:
            self._dense[weight.name].start(at_once)
        elif weight.name in self._by_factors:
            rows = None if samples is None else -(-samples // self._comm.size)
            factors = gq.Outer(*(with_rows(each, rows) for each in weight.factors))
            self._reducer.start(weight.name, factors, out=self._summed(weight))
        else:
            self._reducer.start(weight.name, weight.gradient)

    def wait(self):
        """Until all are summed; their Cost. Raises NonFiniteError on every rank."""
        for each in self._dense.values():
            each.finish()
        sent = received = sum(each.bytes_sent for each in self._dense.values())
        wait = sum(each.wait for each in self._dense.values())
        if self._reducer is not None:
            self._reducer.wait()
            stats = self._reducer.stats
            sent, received, wait = sent + stats.bytes_sent, received + stats.bytes_received, wait + stats.wait
        return Cost(sent, received, wait)

    @property
    def tensors(self):
        """Weight's name -> its statistics in the last step."""
        return {**self._dense, **(self._reducer.stats.tensors if self._reducer is not None else {})}

    def flush(self, weights):
        """(weights with feedback, bytes): their gradients are now their residuals, summed exactly.

        The bytes are those that an exact sum sends from this rank, without headers.
        """
        sums = self._reducer.flush() if self._reducer is not None else {}
        flushed = [weight for weight in weights if weight.name in sums]
        for weight in flushed:
            self._summed(weight)[...] = sums[weight.name]
        return flushed, sum(ring_bytes(weight.gradient.nbytes, self._comm.size) for weight in flushed)

    def _summed(self, weight):
        """The gradient as the Reducer knows it: a product of input and delta is (inputs, outputs)."""
        return weight.gradient.T if weight.name in self._by_factors else weight.gradient


def _by_factors(weight, scheme):
    """Is the gradient given as a product?"""
    return weight.gradient.ndim == 2 and Scheme.parse(scheme).codec.name == "isgq"


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

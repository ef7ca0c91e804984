"""The gradients' sums over ranks in one run: one Allreduce object per scheme, weights told apart by their names."""

import contextlib
import gc
from time import perf_counter

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

    def __call__(self, weight):
        """Sums the gradient; the call's Spent. MPI does not tell its bytes: they are what a ring would send."""
        began = perf_counter()
        self._allreduce(weight.gradient_memory)
        return self._spent(weight, perf_counter() - began)

    def start(self, weight):
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
    """A scheme's Allreduce of the gradient's view."""

    def __init__(self, text, comm, seed):
        self._allreduce = gq.Allreduce(text, comm=comm, seed=seed)
        self.feedback = self._allreduce.scheme.feedback

    def __call__(self, weight):
        """Sums the gradient; the call's Spent. Raises NonFiniteError on every rank."""
        self._allreduce(weight.gradient, key=weight.name)
        return self._allreduce.stats.last

    def start(self, weight):
        """Begins the sum; returns what waits for it and returns its Spent."""
        request = self._allreduce.start(weight.gradient, key=weight.name)

        def finish():
            request.wait()
            return request.stats

        return finish

    def flush(self, weight):
        """Replaces the gradient by the exact sum of the residuals, which are then zero."""
        weight.gradient[...] = self._allreduce.flush(weight.name)


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

    def __call__(self, weight):
        """Sums one gradient over ranks in place; the Spent of the call."""
        return self._of[weight.name](weight)

    def start(self, weight):
        """Begins the sum of one gradient; returns what waits for it and returns its Spent."""
        return self._of[weight.name].start(weight)

    def flush(self, weights):
        """(weights with feedback, bytes): their gradients are now their residuals, summed exactly.

        The bytes are those that an exact sum sends from this rank, without headers.
        """
        flushed = [weight for weight in weights if self._of[weight.name].feedback]
        for weight in flushed:
            self._of[weight.name].flush(weight)
        return flushed, sum(ring_bytes(weight.gradient.nbytes, self._comm.size) for weight in flushed)


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

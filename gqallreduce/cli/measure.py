"""Timing several ways to sum the same buffer, interleaved in rounds A B C, A B C, so that all meet the same noise.

A contender is called on a buffer in place and returns when the sum is there, on a GPU too; it has `name`, `dense`,
`feedback` and `active()`, a context around its calls. The time of a repetition is that of the slowest rank, after a
barrier. The buffer is filled again outside the timed region.
"""

import contextlib
import gc
import time

import numpy as np

import gqallreduce as gq
from gqallreduce.scheme import AUTO

# Rounds that are not counted, numbered below 0: error feedback swaps two buffers, so it takes two calls to touch all
# of its memory. The results of the first are those whose error is reported.
WARM_UPS = 2
FIRST = -WARM_UPS
TRIES_MOST = 12  # calls within which `auto/` has found what is fastest
ENOUGH = 7  # repetitions from which on a median is worth quoting


class Quantized:
    """A scheme with an Allreduce object of its own, under one key; `close()` lets go of its memory.

    place
        where its buffers lie (places.py).
    """

    dense = False

    def __init__(self, text, comm, key, place):
        self.name = text
        self.scheme = gq.Scheme.parse(text)
        self.feedback = self.scheme.feedback
        self.active = contextlib.nullcontext
        self.key = key
        self._on_host = place.processor.on_host
        self._allreduce = gq.Allreduce(self.scheme, comm=comm, cuda_aware=place.cuda_aware)

    def __call__(self, buffer):
        self._allreduce(buffer, key=self.key)

    @property
    def last(self):
        """The statistics of the last call."""
        return self._allreduce.stats.last

    def settle(self, buffers):
        """Calls until `auto/` has tried all, if it measures; then without a residual."""
        if self.scheme.schedule != AUTO:
            return
        for _ in range(TRIES_MOST):
            buffers.fill()
            self(buffers.given)
        if self.feedback:
            self._allreduce.flush(self.key)

    def residual(self):
        """This rank's residual, flat, in host memory; zeros (a 0-d array) before the first call."""
        try:
            return self._on_host(self._allreduce.residual(self.key)).ravel(order="K")
        except KeyError:
            return np.zeros((), np.float32)

    def close(self):
        self._allreduce = None
        gc.collect()  # its statistics refer back to it


class Samples:
    """What one contender showed: seconds per repetition, and shares of them summed over repetitions."""

    def __init__(self, contender):
        self.contender = contender
        self.seconds = []
        self.shares = {"encode": [], "decode": [], "wait": []}
        self.error = None

    def add(self, seconds):
        self.seconds.append(seconds)
        if not self.contender.dense:
            last = self.contender.last
            for name, values in self.shares.items():
                values.append(getattr(last, name) / last.total if last.total else 0.0)


def buffer_count(text, check=False):
    """Buffers' worth of memory that measuring this scheme takes, beside the data and the buffer summed in place."""
    if text.endswith("/ef"):
        return 5.0 if check else 3.0  # two residual buffers and workspace; --check keeps two copies
    return 1.2


def groups(texts, budget, check=False):
    """Schemes that are interleaved with each other: as many as fit in `budget` buffers, always at least one."""
    groups, room = [], 0.0
    for text in texts:
        need = buffer_count(text, check)
        if not groups or need > room:
            groups.append([])
            room = budget - 2
        groups[-1].append(text)
        room -= need
    return groups


def in_turn(comm, work, rounds):
    """name -> median seconds of the slowest rank, of functions that all ranks call in turn, after one round more."""
    times = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, each in work.items():
            comm.Barrier()
            began = time.perf_counter()
            each()
            if number:
                times[name].append(time.perf_counter() - began)
    return {name: max(comm.allgather(float(np.median(each)))) for name, each in times.items()}


def interleave(contenders, buffers, comm, seconds, repetitions, before, after):
    """Samples of each contender over the same rounds: at least one round, at most `repetitions`, within `seconds`.

    buffers
        what is summed (places.py).
    before, after
        called as before(round, sample) outside the timed region, warm-up included.

    The warm-up and one round are always made, however long they take: without all of it, feedback is timed with its
    memory still being mapped.
    """
    samples = [Samples(contender) for contender in contenders]
    for contender in contenders:
        if not contender.dense:
            contender.settle(buffers)
    begin = time.perf_counter()
    longest = 0.0
    for number in range(FIRST, repetitions):
        start = time.perf_counter()
        for sample in samples:
            before(number, sample)
            taken = _once(sample.contender, buffers, comm)
            if number >= 0:
                sample.add(taken)
            after(number, sample)
        now = time.perf_counter()
        longest = max(longest, now - start)
        if number >= 0 and not comm.bcast(now - begin + longest < seconds):
            break
    return samples


def _once(contender, buffers, comm):
    from mpi4py import MPI

    buffers.fill()
    with contender.active():
        comm.Barrier()
        start = time.perf_counter()
        contender(buffers.given)
        taken = time.perf_counter() - start
    return comm.allreduce(taken, op=MPI.MAX)


def round_seconds(rows):
    """How long one round of these rows takes, by their medians."""
    return sum(median(row["seconds"]) for row in rows)


def median(values):
    """The median as a plain float."""
    return float(np.median(values))


def rows(samples, comm, side):
    """One dict of plain values per contender, alike on all ranks; `speedup` is over the better dense of them."""
    best = min(median(sample.seconds) for sample in samples if sample.contender.dense)
    return [_row(sample, comm, side, best) for sample in samples]


def _row(sample, comm, side, best):
    nbytes = 4 * side * side
    row = {
        "side": side,
        "bytes": nbytes,
        "scheme": sample.contender.name,
        "dense": sample.contender.dense,
        "seconds": [round(value, 9) for value in sample.seconds],
        "speedup": best / median(sample.seconds),
        "error": sample.error,
    }
    if row["dense"]:
        return row
    last = sample.contender.last
    sent = comm.allgather(last.bytes_sent)
    row |= {
        "ran": last.scheme,
        "reason": last.reason,
        "bytes_sent": max(sent),
        "bytes_sent_mean": sum(sent) / comm.size,
    }
    row["ratio"] = comm.allreduce(last.ratio) / comm.size
    for name, values in sample.shares.items():
        row[name] = comm.allreduce(sum(values) / len(values)) / comm.size
    return row


def pooled(rows):
    """Rows of several groups of one size, with the dense ones, which were measured in each, made one."""
    merged = {}
    for row in rows:
        if row["scheme"] in merged and row["dense"]:
            merged[row["scheme"]]["seconds"] += row["seconds"]
        else:
            merged[row["scheme"]] = row
    dense = [row for row in merged.values() if row["dense"]]
    best = min(median(row["seconds"]) for row in dense)
    for row in dense:
        row["speedup"] = best / median(row["seconds"])
    return list(merged.values())

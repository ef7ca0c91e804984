"""Exact sums to compare results with, and the checks of `--check`, in little memory.

Each rank holds the float64 sum of one slice of the vector, so the reference costs 8 bytes / ranks per element; what is
judged is the same on all ranks, as are the answers.

No BLAS here (no @, dot, norm): its threads go on spinning for a while and take the cores from whatever is timed next,
which made the schemes after a checked one up to 30 times as slow.
"""

import hashlib

import numpy as np

BLOCK = 1 << 16  # elements of each slice that are summed at a time
SIGMAS = 7.0  # a fair codec errs beyond that once in 10^11 results
ROUNDING = 2.0**-23


class Slices:
    """The vector of n elements in one slice per rank; sums over ranks arrive where the slice is."""

    def __init__(self, comm, n):
        self.comm, self.n = comm, n
        self.length = -(-n // comm.size)
        start = min(n, comm.rank * self.length)
        self.own = slice(start, min(n, start + self.length))

    def blocks(self):
        """This rank's slice in blocks, as slices of the vector; the same number of them on each rank."""
        for offset in range(0, self.length, BLOCK):
            yield self._part(self.comm.rank, offset)

    def sums(self, values):
        """(block, exact sum over ranks of `values(block)`) for each block of this rank's slice. Collective."""
        for offset in range(0, self.length, BLOCK):
            count = min(BLOCK, self.length - offset)
            send, total = np.zeros((self.comm.size, count)), np.empty(count)
            for rank in range(self.comm.size):
                part = self._part(rank, offset)
                send[rank, : part.stop - part.start] = values(part)
            self.comm.Reduce_scatter_block(send, total)
            own = self._part(self.comm.rank, offset)
            yield own, total[: own.stop - own.start]

    def _part(self, rank, offset):
        start = min(self.n, rank * self.length + offset)
        return slice(start, min(self.n, start + BLOCK, (rank + 1) * self.length))

    def total(self, *numbers):
        """Sums of these numbers over ranks."""
        from mpi4py import MPI

        total = np.array(numbers, np.float64)
        self.comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        return total

    def largest(self, number):
        """The largest of the ranks' numbers; infinite if one of them is not a number."""
        from mpi4py import MPI

        return self.comm.allreduce(float(np.nan_to_num(number, nan=np.inf)), op=MPI.MAX)


class Reference:
    """The exact sum of the ranks' vectors, in slices, and how far a result is from it."""

    def __init__(self, comm, vector):
        self.slices = Slices(comm, vector.size)
        self.sum = np.empty(self.slices.own.stop - self.slices.own.start)
        for part, total in self.slices.sums(lambda part: vector[part]):
            self.of(part)[:] = total
        self.norm_squared = self.slices.total(_square(self.sum))[0]

    def of(self, part):
        """The exact sum of a block of this rank's slice."""
        return self.sum[part.start - self.slices.own.start : part.stop - self.slices.own.start]

    def errors(self, result):
        """(block of the result's error, block of the exact sum), for this rank's slice."""
        for part in self.slices.blocks():
            yield result[part] - self.of(part), self.of(part)

    def error(self, result):
        """|result - sum| / |sum|, L2 norms over the whole vector; |result - sum| if the sum is zero."""
        squared = self.slices.total(sum(_square(error) for error, _ in self.errors(result)))[0]
        return float(np.sqrt(squared / (self.norm_squared or 1.0)))


class Check:
    """Verifies results against what their scheme promises; `problems` collects what failed, alike on all ranks."""

    def __init__(self, comm, vector, reference):
        self.comm, self.vector, self.reference, self.slices = comm, vector, reference, reference.slices
        self.problems = []
        magnitudes = self.slices.sums(lambda part: np.abs(vector[part]))
        largest = max((_most(magnitude) for _, magnitude in magnitudes), default=0.0)
        self._rounding = comm.size * ROUNDING * self.slices.largest(largest)
        self._residual = None

    def before(self, contender):
        """To be called before each call of the contender; keeps the residual before it."""
        self._residual = contender.residual() if contender.feedback else None

    def after(self, contender, result):
        """Judges one result: identical on all ranks, finite, and by the kind of scheme exact, conserved or fair."""
        self.note(contender, self._differs(result) or self._judgement(contender)(contender, result))

    def note(self, contender, problem):
        """Keeps what was wrong with a result, "" if nothing."""
        if problem:
            self.problems.append(f"{contender.name}, {self.vector.size} elements: {problem}")

    def _judgement(self, contender):
        codec = getattr(getattr(contender, "scheme", None), "codec", None)
        if contender.feedback:
            return self._loses
        if codec is None or codec.name == "raw":
            return self._inexact
        return self._unfair if codec.unbiased else self._endless

    def _differs(self, result):
        digests = self.comm.allgather(hashlib.blake2b(result.data, digest_size=16).digest())
        ranks = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        return f"ranks {ranks} hold another result than rank 0" if ranks else ""

    def _endless(self, contender, result):
        endless = any(not np.isfinite(result[part]).all() for part in self.slices.blocks())
        return "the result is not finite" if self.slices.largest(endless) else ""

    def _inexact(self, contender, result):
        """Off by no more than summing in float32 can be."""
        worst = self.slices.largest(max((_most(error) for error, _ in self.reference.errors(result)), default=0.0))
        return f"{worst:.3g} off the exact sum, allowed {self._rounding:.3g}" if worst > self._rounding else ""

    def _loses(self, contender, result):
        """result + new residuals == gradients + old residuals, to 1e-6 of the largest magnitudes' sum."""
        vector, new_residual = self.vector, contender.residual()
        residual = self._residual if self._residual.ndim else np.broadcast_to(self._residual, vector.shape)
        lost = scale = 0.0
        for part, due in self.slices.sums(
            lambda part: np.add(vector[part], residual[part], dtype=np.float64) - new_residual[part]
        ):
            lost = max(lost, _most(result[part] - due))
        for _, size in self.slices.sums(
            lambda part: np.abs(vector[part]) + np.abs(residual[part]) + np.abs(new_residual[part])
        ):
            scale = max(scale, _most(size))
        lost, scale = self.slices.largest(lost), self.slices.largest(scale)
        bound = 1e-6 * max(1.0, self.comm.size / 8) * scale
        if lost > bound:
            return f"{lost:.3g} of a value is neither in the result nor in a residual; allowed {bound:.3g}"
        return ""

    def _unfair(self, contender, result):
        """An unbiased result's error is uncorrelated with the sum, and no larger than the codec's own explains."""
        sums = np.zeros(3)
        for error, exact in self.reference.errors(result):
            product = error * exact
            sums += product.sum(), _square(product), _square(error)
        along, spread, squared = self.slices.total(*sums)
        allowed = SIGMAS * np.sqrt(spread) + 1e-5 * self.reference.norm_squared
        if not abs(along) <= allowed:
            return f"biased: the error along the sum is {along:.4g}, by chance at most {allowed:.4g}"
        relative = np.sqrt(squared / (self.reference.norm_squared or 1.0))
        explained = 2 * np.sqrt((1 + self._variance(contender.scheme)) ** (self.comm.size + 1) - 1) + 1e-5
        return f"relative error {relative:.3g}, explained {explained:.3g}" if relative > explained else ""

    def _variance(self, scheme):
        """Squared relative error of one message of this rank's values, the largest over ranks."""
        values = np.ascontiguousarray(self.vector[: 1 << 18])
        error = scheme.decode(scheme.encode(values), values.size).astype(np.float64) - values
        squared = _square(values.astype(np.float64))
        return self.slices.largest(_square(error) / squared if squared else 0.0)


def _square(array):
    """The sum of squares, block by block so that the squares take little room."""
    return float(sum(np.square(array[start : start + BLOCK]).sum() for start in range(0, len(array), BLOCK)))


def _most(array):
    """The largest magnitude; infinite if a value is not a number, 0.0 if there are none."""
    return float(np.nan_to_num(np.max(np.abs(array), initial=0.0), nan=np.inf, posinf=np.inf))

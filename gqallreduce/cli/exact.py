"""Exact sums to compare results with, and the checks of `--check`, in little memory.

Each rank holds the float64 sum of one slice of the vector, so the reference costs 8 bytes / ranks per element; what is
judged is the same on all ranks, as are the answers.
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

    def sum(self, values):
        """The exact sum over ranks of `values(slice) -> array`, for this rank's slice. Collective."""
        total = np.zeros(self.length)
        for offset in range(0, self.length, BLOCK):
            count = min(BLOCK, self.length - offset)
            send = np.zeros((self.comm.size, count))
            for rank in range(self.comm.size):
                start = rank * self.length + offset
                stop = min(self.n, start + count, (rank + 1) * self.length)
                if start < stop:
                    send[rank, : stop - start] = values(slice(start, stop))
            self.comm.Reduce_scatter_block(send, total[offset : offset + count])
        return total[: self.own.stop - self.own.start]

    def total(self, *numbers):
        """Sums of this rank's numbers over all slices."""
        from mpi4py import MPI

        send = np.array(numbers, np.float64)
        total = np.empty_like(send)
        self.comm.Allreduce(send, total, op=MPI.SUM)
        return total

    def largest(self, array):
        """The largest value of an array over all slices; 0.0 if it is empty everywhere."""
        from mpi4py import MPI

        return self.comm.allreduce(float(np.max(array, initial=0.0)), op=MPI.MAX)


class Reference:
    """The exact sum of the ranks' vectors, in slices, and how far a result is from it."""

    def __init__(self, comm, vector):
        self.slices = Slices(comm, vector.size)
        self.sum = self.slices.sum(lambda part: vector[part].astype(np.float64))
        self.norm_squared = self.slices.total(self.sum @ self.sum)[0]

    def error(self, result):
        """|result - sum| / |sum|, L2 norms over the whole vector; |result - sum| if the sum is zero."""
        difference = result[self.slices.own] - self.sum
        squared = self.slices.total(difference @ difference)[0]
        return float(np.sqrt(squared / (self.norm_squared or 1.0)))


class Check:
    """Verifies results against what their scheme promises; `problems` collects what failed, alike on all ranks."""

    def __init__(self, comm, vector, reference):
        self.comm, self.vector, self.reference = comm, vector, reference
        self.problems = []
        magnitude = reference.slices.sum(lambda part: np.abs(vector[part]).astype(np.float64))
        self._rounding = comm.size * ROUNDING * magnitude
        self._owed = None

    def before(self, contender):
        """To be called before each call of the contender, which keeps what was owed then."""
        self._owed = contender.residual() if contender.feedback else None

    def after(self, contender, result):
        """Judges one result: identical on all ranks, finite, and by the kind of scheme exact, conserved or fair."""
        problem = self._differs(result) or self._judgement(contender)(contender, result)
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
        endless = self.comm.allreduce(int(not np.isfinite(result[self.reference.slices.own]).all()))
        return "the result is not finite" if endless else ""

    def _inexact(self, contender, result):
        excess = np.abs(result[self.reference.slices.own] - self.reference.sum) - self._rounding
        worst = self.reference.slices.largest(np.nan_to_num(excess, nan=np.inf))
        return f"off the exact sum by {worst:.3g} more than float32 rounds" if worst > 0 else ""

    def _loses(self, contender, result):
        """result + new residuals == gradients + old residuals, to 1e-6 of the largest magnitudes' sum."""
        slices = self.reference.slices
        vector, owing = self.vector, contender.residual()
        owed = self._owed if self._owed.ndim else np.broadcast_to(self._owed, vector.shape)
        due = slices.sum(lambda part: np.add(vector[part], owed[part], dtype=np.float64) - owing[part])
        scale = slices.largest(slices.sum(lambda part: np.abs(vector[part]) + np.abs(owed[part]) + np.abs(owing[part])))
        lost = slices.largest(np.nan_to_num(np.abs(result[slices.own] - due), nan=np.inf))
        bound = 1e-6 * max(1.0, self.comm.size / 8) * scale
        return f"{lost:.3g} of a value is neither in the result nor owed; allowed {bound:.3g}" if lost > bound else ""

    def _unfair(self, contender, result):
        """An unbiased result's error is uncorrelated with the sum, and no larger than the codec's own explains."""
        slices, exact = self.reference.slices, self.reference.sum
        error = result[slices.own].astype(np.float64) - exact
        product = error * exact
        along, spread, squared = slices.total(product.sum(), product @ product, error @ error)
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
        squared = float(values.astype(np.float64) @ values)
        return self.reference.slices.largest(np.array([error @ error / squared if squared else 0.0]))

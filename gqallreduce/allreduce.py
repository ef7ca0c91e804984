"""The public object: one scheme on one communicator, with its residuals, its workspace and its statistics.

A call checks its arguments, agrees with the other ranks once per key, carries an Operation out, and only when all has
gone well lets the new residuals and counters replace the old ones. It is a generator of stages, which the progress
engine of the communicator advances, together with all other calls under way.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from gqallreduce.backends.processor import Processors
from gqallreduce.coding.order import to_array
from gqallreduce.request import Request
from gqallreduce.runtime import arguments
from gqallreduce.runtime.checkpoint import checked, save
from gqallreduce.runtime.flush import flush
from gqallreduce.runtime.making import entered, told
from gqallreduce.runtime.memory import Memory, Norm, State
from gqallreduce.runtime.plans import Plans, measures
from gqallreduce.runtime.reduction import Found, reduce
from gqallreduce.runtime.repeated import NOT_BEGUN, repeated
from gqallreduce.runtime.scaling import scale_memory
from gqallreduce.runtime.steps import Together
from gqallreduce.runtime.trace import Trace
from gqallreduce.scheduling.profile import find
from gqallreduce.scheme import AUTO, MPI_SUM, Scheme
from gqallreduce.shards import Shards
from gqallreduce.stats import Spent, Statistics
from gqallreduce.transport.call import call_in_words
from gqallreduce.transport.communicator import require_intracommunicator
from gqallreduce.transport.home import home


class Allreduce(Shards):
    """Quantized allreduce over a communicator: `allreduce(buf, key="fc1.weight")` sums in place over all ranks.

    Making one is collective. Close it, or use it in a `with` statement, when it is no longer needed.

    scheme
        text such as "direct/onebit/ef", or a Scheme.
    comm
        an mpi4py intracommunicator, default COMM_WORLD.
    average
        multiply the sum by 1/P. Residuals stay in units of the sum.
    seed
        of the random streams, the same on all ranks.
    timeout
        seconds without receiving anything after which a call raises gq.TimeoutError.
    check
        "first": ranks compare their calls once per key; "always": on every call.
    verify
        N > 0: compare a checksum of the result every N calls; ReplicaError if it differs.
    cuda_aware
        may MPI be given GPU memory? None asks the MPI; True and False override what it says of itself. Otherwise
        compressed bytes pass through page-locked host memory. No effect on host buffers.
    trace
        "file.json": each rank writes what its lanes do, and when, into file.<rank>.json, for chrome://tracing and
        Perfetto; complete after `close`.
    Raises ValueError and TypeError for an unfit argument, when the other ranks have come to make the object, which
    raise MismatchError if theirs are fit.
    """

    def __init__(
        self, scheme, *, comm=None, average=False, seed=0, timeout=600, check="first", verify=0, cuda_aware=None,
        trace=None,
    ):  # fmt: skip
        with told(comm, timeout):
            self.scheme = Scheme.parse(scheme)
            measures()  # a ValueError before other ranks are met
            if check not in ("first", "always"):
                raise ValueError(f"check={check!r}, expected 'first' or 'always'")
            if not timeout > 0:
                raise ValueError(f"timeout={timeout!r}, expected seconds > 0")
            if not hasattr(verify, "__index__") or verify < 0:
                raise ValueError(f"verify={verify!r}, expected a number of calls, or 0 for never")
            self.comm = require_intracommunicator(comm)
            self.average = arguments.truth("average", average)
            self.seed, self.verify = arguments.integer("seed", seed), arguments.integer("verify", verify)
            self.trace = None if trace is None else Trace(trace, self.comm.rank)
        self.check, self.cuda_aware = check, cuda_aware
        self.rank, self.size = self.comm.rank, self.comm.size
        self._by_mpi = self.scheme.schedule == MPI_SUM
        self.ring_vectors = 2 * (self.size - 1) / self.size  # a dense ring sends so many times the vector
        super().__init__(home(self.comm), float(timeout))
        self.memory, self.stats = Memory(), Statistics(self._residual_norm)
        self._plans_of_halves: dict[str, Plans] = {}
        with entered(self):
            link = self.home.link
            self.processors = Processors(cuda_aware, link.requests.native is not None)
            profile = find(link.jobs) if self.scheme.schedule == AUTO else None
            self.plans = Plans(self.scheme, self.rank, link.topology, self.average, self.number, profile)
            # May calls be carried out at once (runtime/repeated.py)? Then they find all of the above.
            self.repeats = check == "first" and not verify and trace is None and link.requests.native is not None

    def __repr__(self) -> str:
        return f"Allreduce({str(self.scheme)!r}, average={self.average}, P={self.size})"

    # --- the call ---

    def __call__(self, buf, *, key: str | list[str] | None = None, out=None):
        """Sum (or average) `buf` over all ranks, in place or into `out`; returns the object it wrote.

        buf
            float32, float64, float16 or bfloat16 array, on the host or on a CUDA device, there worked on in the order
            of the caller's stream; any shape, 0-d and size 0 included; axes in any order that leaves no gaps in memory,
            or with gaps at one place (a leading dimension). Codecs compute in float32: a float64 value is rounded to it
            first, by at most 2^-24 of it; up to 2^-150 nothing is left, in no residual either. Not so `raw`.
        key
            names the buffer from step to step; needed with /ef. One key, one shape, dtype and order.
        out
            of the same shape, dtype, order and device, not partly overlapping; then `buf` is not written.
        For a *group*, `buf` is a list of buffers, `key` a list of as many strings, all different, and `out` None or a
        list: one call with one set of messages, that succeeds or fails as one. The buffers differ in shape, dtype and
        order as they like; they lie all on the host, or all on one device, and share no memory. On one schedule each
        key's result and residual are, bit for bit, those of a call of its own; it may be called alone and in groups.
        Raises TypeError, ValueError for an unfit argument; NonFiniteError for NaN, Inf or overflow, on every rank;
        MismatchError if ranks call differently; TimeoutError. After any error residuals and counters are as before
        the call, and the content of the written buffer is undefined.
        """
        result = repeated(self, buf, key, out)
        return self.perform(call_in_words(key), reduce, self, buf, key, out) if result is NOT_BEGUN else result

    def start(self, buf, *, key: str | list[str] | None = None, out=None) -> Request:
        """Begin the same call and return: what it has sent travels while the caller computes.

        `request.wait()` returns the object that was written, `request.test()` says whether it is done. Until then the
        buffers belong to the call. Calls of all objects on one communicator are started in the same order on all ranks,
        and waited for in any. They advance inside any call of this package on this communicator, `test` and `wait`
        included, and where MPI allows several threads by a thread of the runtime. A key or buffer that is under way is
        a ValueError.
        """
        return self.start_found(buf, key, out, None)

    def start_found(self, buf, key, out, found: Found | None) -> Request:
        """`start` with what `look` has found, if the caller has looked at the arguments already."""
        return self._start(call_in_words(key), buf, key, out, found)

    def plans_of(self, half: str | None) -> Plans:
        """Those of a half of an allreduce, or of all of it."""
        if half is None:
            return self.plans
        if half not in self._plans_of_halves:
            more = self.scheme, self.rank, self.plans.topology, self.average, self.number
            self._plans_of_halves[half] = Plans(*more, half=half)
        return self._plans_of_halves[half]

    def account(self, spent: Spent, nbytes: float, norm: Norm) -> None:
        """A call has succeeded: what `stats.last` is now. nbytes: of what was summed."""
        # MPI does not tell how often it sends a buffer.
        spent.dense_bytes = nbytes if spent.dense or self._by_mpi else self.ring_vectors * nbytes
        self.stats.record(spent, norm)

    # --- the end of an object ---

    def close(self) -> None:
        """End this object: it refuses further calls. Close it on all ranks.

        What is left of residuals stays readable. Closing twice does nothing.
        """
        self._end("after close()")
        if self.trace is not None:
            self.trace.close()

    def __enter__(self) -> Allreduce:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # --- several calls as one ---

    def step(self) -> contextlib.AbstractContextManager:
        """Calls made inside take effect together when the block ends, on all ranks, or not at all.

        So a training step can be skipped after an error in its last key. Collective. If a rank leaves the block by an
        error, or a call inside failed, no residual and no counter changes on any rank. Only if a signal handler raises
        at the very end of the block, after ranks have compared their calls, may that rank be a step behind the others:
        they raise gq.Error in their next call. `state_dict` in the block shows what would be kept. A rank that leaves
        by an error of its own waits until the others reach their next call or the end of the block; if that is a call
        of a known key, the object cannot be used any more.
        """
        return Together(self)

    # --- residuals ---

    def form_of(self, key: str) -> tuple:
        if key not in self.memory:
            raise KeyError(f"no residual for key {key!r}" if self.scheme.feedback else f"{self.scheme} has no /ef")
        return self.memory.get(key).form

    def residual(self, key: str) -> np.ndarray:
        """A copy of this rank's residual of the key: float32, in the buffer's shape and order, in units of the sum.

        It lies where the residual does: an array of NumPy, or of CuPy for a key whose last buffer was on a GPU. Raises
        KeyError for an unknown key or without /ef.
        """
        self.finish()
        shape, order, _ = self.form_of(key)
        with self.memory.processor_of(key).active(None, key):
            return to_array(self.memory.residual(key).copy(), shape, order)

    def flush(self, key: str | None = None):
        """The exact sum (or average) over ranks of the residuals, which are then zero. Collective.

        Returns float32 in the buffer's shape, alike on all ranks; without a key, a dict of all keys, in sorted order,
        all of which are zero then, or after an error none. Raises KeyError for an unknown key or without /ef;
        NonFiniteError if a sum overflows; `flush()` without /ef is {}.
        """
        if key is None and not self.scheme.feedback:
            return {}
        name = "flush()" if key is None else f"flush({key!r})"
        self.finish()
        sums = self.perform(name, flush, self, key)
        return sums if key is None else sums[key]

    def scale_memory(self, factor: float, key: str | None = None) -> None:
        """Multiply the residuals of a key, or of all, by a number: old over new learning rate, when it changes.

        "Memory" is the Mem-SGD paper's word for the residual. Collective: all ranks give the same factor and key.
        Raises KeyError for an unknown key or without /ef; ValueError for a factor that is not finite, or by which a
        residual leaves float32. After an error nothing has changed on any rank.
        """
        self.finish()
        self.perform("scale_memory()" if key is None else f"scale_memory({key!r})", scale_memory, self, factor, key)

    def _residual_norm(self) -> float:
        return math.hypot(*map(self.memory.norm, self.memory))

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """Everything a checkpoint needs to go on bit-exactly with the same P: arrays and plain values, rank-local."""
        self.finish()
        return save(self)

    def load_state_dict(self, state: dict | list[dict]) -> None:
        """Go on from `state_dict()` of the same scheme, rank and P; or, with another P, from those of all ranks.

        Of a list, new rank r of P takes the old ranks r, r + P, ...: the sum of all residuals stays the same, but for
        float32 rounding, and so does what codecs have learned. ValueError for what does not fit; then nothing has
        changed. gq.Error if this object was closed, or cannot be used any more.
        """
        self.restore(self.checked(state))

    def checked(self, state: dict | list[dict]) -> tuple[int, dict]:
        """(seed, key -> State) of what `load_state_dict` takes, for `restore`; ValueError for what does not fit."""
        self.require_usable()
        if self.memory.staging:
            raise ValueError("a step of this object is under way; load_state_dict() before or after it")
        self.finish()
        return checked(self, state, self.processors.host)

    def restore(self, found: tuple[int, dict[str | None, State]]) -> None:
        """Replace all keys by what `checked` has returned of a checkpoint."""
        (seed, states), memory = found, Memory()
        memory.commit(states)
        self.seed, self.memory, self.begun = seed, memory, 0
        for plans in (self.plans, *self._plans_of_halves.values()):
            plans.clear()

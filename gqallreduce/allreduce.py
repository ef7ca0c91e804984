"""The public object: one scheme on one communicator, with what it owes, its workspace and its statistics.

A call checks its arguments, agrees with the other ranks once per key, runs a Worker through the engine, and only when
all has gone well lets the new residuals and counters replace the old ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from mpi4py import MPI

from gqallreduce import frame
from gqallreduce.agreement import FIELDS, agree, compare_replicas
from gqallreduce.buffer import Buffer
from gqallreduce.checkpoint import form_in, load, save
from gqallreduce.dense import dense_invalid, dense_on
from gqallreduce.engine import Engine
from gqallreduce.errors import Error, NonFiniteError
from gqallreduce.hashing import hash64
from gqallreduce.home import home
from gqallreduce.kinds import Kind, Kinds
from gqallreduce.memory import Memory
from gqallreduce.processor import Processors
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.scheme import Scheme
from gqallreduce.stats import Spent, Statistics


@dataclass(slots=True)
class Key:
    """What is known of a key: the form of its buffers (None for the key None) and how many calls succeeded."""

    form: tuple | None
    step: int = 0


class Allreduce:
    """Quantized allreduce over a communicator: `allreduce(buf, key="fc1.weight")` sums in place over all ranks.

    scheme
        text such as "direct/onebit/ef", or a Scheme; ValueError says what is wrong with it.
    comm
        an mpi4py communicator, default COMM_WORLD; making the first object of a communicator is collective.
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
    """

    def __init__(
        self, scheme, *, comm=None, average=False, seed=0, timeout=600, check="first", verify=0, cuda_aware=None
    ):
        self.scheme = Scheme.parse(scheme)
        if check not in ("first", "always"):
            raise ValueError(f"check={check!r}, expected 'first' or 'always'")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout!r}, expected seconds > 0")
        if not isinstance(verify, int) or verify < 0:
            raise ValueError(f"verify={verify!r}, expected a number of calls, or 0 for never")
        self.comm = MPI.COMM_WORLD if comm is None else comm
        self.average, self.seed, self.timeout = bool(average), int(seed), float(timeout)
        self.check, self.verify, self.cuda_aware = check, verify, cuda_aware
        self.rank, self.size = self.comm.rank, self.comm.size
        self.memory, self._processors = Memory(), Processors(cuda_aware)
        self.stats = Statistics(self._residual_norm)
        self._keys: dict[str | None, Key] = {}
        self._kinds: dict[tuple, Kind] = {}
        self._calls = 0
        self._failed: BaseException | None = None
        self._making = Kinds(self.scheme, self.rank, self.size, self.average)
        self._home = home(self.comm)
        self._home.connect(self.comm, self.timeout)

    def __repr__(self) -> str:
        return f"Allreduce({str(self.scheme)!r}, average={self.average}, P={self.size})"

    # --- the call ---

    def __call__(self, buf, *, key: str | None = None, out=None):
        """Sum (or average) `buf` over all ranks, in place or into `out`; returns the object it wrote.

        buf
            float32, float64, float16 or bfloat16 array, on the host or on a CUDA device, there worked on in the order
            of the caller's stream; any shape, 0-d and size 0 included; C or Fortran order, or such a view with a
            leading dimension.
        key
            names the buffer from step to step; needed with /ef. One key, one shape, dtype and order.
        out
            of the same shape, dtype, order and device, not partly overlapping; then `buf` is not written.
        Raises TypeError, ValueError for an unfit argument; NonFiniteError for NaN, Inf or overflow, on every rank;
        MismatchError if ranks call differently; TimeoutError. After any error residuals and counters are as before
        the call, and the content of the written buffer is undefined.
        """
        return self._guarded(self._call, buf, key, out)

    @usual_arithmetic()
    def _guarded(self, carry_out, *arguments):
        """Refuse after a call that was given up half-way, and take note when one is."""
        if self._failed is not None:
            raise Error(f"this object is of no use after {type(self._failed).__name__}: {self._failed}; make a new one")
        try:
            return carry_out(self._home.connect(self.comm, self.timeout), *arguments)
        except BaseException as error:
            if self._home.link.broken:
                self._fail(error)
            raise

    def _call(self, link, buf, key, out):
        began = perf_counter()
        try:
            source, target = self._buffers(buf, out, key)
        except (TypeError, ValueError, Error):  # Error: no way to the memory that the buffer is in
            self._tell_invalid(link, key)
            raise
        place = (key, source.shape, source.order, source.dtype)
        kind = self._kinds.get(place)
        if kind is None or self.check == "always":
            kind = self._agree(link, place, source.located is not None)
        spent = Spent(kind.what, kind.why)
        processor = self._processors.of(source)
        with processor.active(source.located, key):
            self._run(link, kind, processor, source, target, place, spent)
        spent.total = perf_counter() - began
        self._account(spent, source, key)
        return buf if out is None else out

    def _buffers(self, buf, out, key) -> tuple[Buffer, Buffer]:
        """The call's Buffers, checked: everything that this rank can see for itself."""
        if key is not None and not isinstance(key, str):
            raise TypeError(f"key is a {type(key).__name__}, expected a string")
        if key is None and self.scheme.feedback:
            raise ValueError(f"{self.scheme} keeps a residual: give the buffer a key")
        source = Buffer(buf)
        source.arithmetic = self._processors.of(source).arithmetic
        form = source.shape, source.order, source.dtype
        known = self._keys.get(key)
        if known is not None and known.form not in (None, form):
            raise ValueError(f"key {key!r}: got shape, order, dtype {form}, expected {known.form} as before")
        if out is None:
            source.require_writable("buf")
            return source, source
        target = Buffer(out)
        if target.device != source.device:
            raise ValueError(f"out is {target.device}, expected {source.device} as buf")
        target.arithmetic = source.arithmetic
        target.require_writable("out")
        if (target.shape, target.order, target.dtype) != form:
            raise ValueError(f"out has {target.shape, target.order, target.dtype}, expected {form} as buf")
        if target.overlaps_partly(source):
            raise ValueError("out overlaps buf partly; expected the same memory or other memory")
        return source, target

    def _run(self, link, kind: Kind, processor, source, target, place, spent: Spent) -> None:
        """Carry the call out and, if it succeeded, let what was written take effect."""
        key = place[0]
        step = self._step(key)
        owed, owing = self._residuals(link, kind, processor, source, key)
        if kind.dense:
            flaw = dense_on(processor, link, source, target, owed, owing, self, spent)
        else:
            worker = self._making.worker(kind, processor)
            flaw = self._quantized(link, kind, worker, source, target, owed, owing, step, spent)
        if flaw is not None:
            raise NonFiniteError(None if flaw[0] == frame.NO_RANK else flaw[0], key, flaw[1])
        self._calls += 1
        if self.verify and self._calls % self.verify == 0:
            compare_replicas(link, processor.on_host(target.array), self.timeout)
        if self.scheme.feedback:
            self.memory.commit(key)
        form = None if key is None else place[1:]
        self._keys.setdefault(key, Key(form)).step = step + 1

    def _residuals(self, link, kind: Kind, processor, source, key) -> tuple:
        """(owed, owing) of the key; if there is no memory for them, the other ranks learn that this one failed."""
        if not self.scheme.feedback:
            return None, None
        try:
            return self.memory.open(key, source.size, processor)
        except BaseException:
            if not kind.dense:
                link.abort(link.next_call(), frame.REASON_FAILURE)
            raise

    def _quantized(self, link, kind, worker, source, target, owed, owing, step, spent):
        worker.spent = spent
        worker.begin(source, target, owed, owing, kind.stream, step, kind.signature)
        try:
            Engine(link, worker, self.timeout).run()
            return worker.flaw
        finally:
            worker.end()

    def _step(self, key) -> int:
        """How many calls for the key have succeeded."""
        return self._keys[key].step if key in self._keys else 0

    def _fail(self, error: BaseException) -> None:
        """No further calls, and out of the cache of quantized_allreduce."""
        self._failed = error
        cached = self._home.cached
        for name in [name for name, each in cached.items() if each is self]:
            del cached[name]

    def _account(self, spent: Spent, source: Buffer, key) -> None:
        itemsize = 2 if source.dtype in ("float16", "bfloat16") else int(source.dtype[5:]) // 8
        spent.dense_bytes = 2 * (self.size - 1) / self.size * source.size * itemsize
        if self.scheme.feedback:
            spent.norm = lambda: self.memory.norm(key)
        self.stats.record(spent)

    # --- agreement ---

    def _agree(self, link, place, on_device: bool) -> Kind:
        """Compare this call with the other ranks', decide what runs, and remember it."""
        key, shape, order, dtype = place
        choice, why = self._making.choose(shape, dtype, on_device)
        values = (key, self.scheme.resolved(), shape, dtype, order, self.average, self.seed, frame.VERSION)
        hashes = {name: hash64(value) for name, value in zip(FIELDS, values, strict=True)}
        if self.size > 1:
            names = self._making.choices()
            choice = names[agree(link, hashes, names.index(choice), self.timeout)]
        kind = self._kinds.get(place)
        if kind is None:
            signature = hash64(*hashes.values(), choice)
            stream = hash64(self.seed, key)
            kind = self._kinds[place] = self._making.make(choice, why, signature, stream, shape, order, dtype)
        return kind

    def _tell_invalid(self, link, key) -> None:
        """This rank's own call is invalid: join the agreement so marked, or abort the call of a key that is known."""
        if self.size == 1:
            return
        known = next((place for place in self._kinds if place[0] == key), None)
        if known is None or self.check == "always":
            agree(link, None, 0, self.timeout)
        elif self._kinds[known].dense:
            dense_invalid(link, known, self.timeout)
        else:
            link.abort(link.next_call(), frame.REASON_ARGUMENTS)

    # --- what is owed ---

    def _form_of(self, key: str) -> tuple:
        if not self.scheme.feedback or key not in self._keys:
            raise KeyError(f"no residual for key {key!r}" if self.scheme.feedback else f"{self.scheme} has no /ef")
        return self._keys[key].form

    def residual(self, key: str) -> np.ndarray:
        """A copy of what this rank owes for the key: float32, in the buffer's shape and memory, in units of the sum.

        Raises KeyError for an unknown key or without /ef.
        """
        shape, order, _ = self._form_of(key)
        with self.memory.home(key).active(None, key):
            return self.memory.owed(key).copy().reshape(shape, order=order)

    def flush(self, key: str | None = None):
        """Pay what is owed: the exact sum (or average) over ranks of the residuals, which are then zero. Collective.

        Returns float32 in the buffer's shape, alike on all ranks; without a key, a dict of all keys, in sorted order.
        Raises KeyError for an unknown key or without /ef; `flush()` without /ef is {}.
        """
        if key is None:
            return {each: self.flush(each) for each in self.memory if each in self._keys}
        return self._guarded(self._flush, key)

    def _flush(self, link, key: str) -> np.ndarray:
        shape, order, _ = self._form_of(key)
        processor = self.memory.home(key)
        with processor.active(None, key):
            total = self.memory.owed(key).copy()
            kind = self._making.exact(total.size, hash64("flush", key, self.scheme.resolved(), shape, self.average))
            buffer, worker = Buffer.of_vector(total, processor), self._making.worker(kind, processor)
            flaw = self._quantized(link, kind, worker, buffer, buffer, None, None, self._keys[key].step, Spent())
            if flaw is not None:
                raise NonFiniteError(None, key, flaw[1])
            self.memory.clear(key)
            return total.reshape(shape, order=order)

    def _residual_norm(self) -> float:
        return math.hypot(*map(self.memory.norm, self.memory))

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """Everything a checkpoint needs to go on bit-exactly with the same P: arrays and plain values, rank-local."""
        return save(self)

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()` of the same scheme, rank and P. ValueError otherwise; then nothing has changed."""
        load(self, state)

    def restore(self, seed: int, keys: dict, residuals: dict[str, np.ndarray]) -> None:
        """Replace all keys: checked entries of a state, and their residuals as vectors in memory order."""
        self.seed, self.memory = seed, Memory()
        self._kinds.clear()
        self._keys = {key: Key(form_in(entry), entry["step"]) for key, entry in keys.items()}
        for key, residual in residuals.items():
            self.memory.set(key, residual, self._processors.host)

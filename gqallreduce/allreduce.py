"""The public object: one scheme on one communicator, with its residuals, its workspace and its statistics.

A call checks its arguments, agrees with the other ranks once per key, runs a Worker through the engine, and only when
all has gone well lets the new residuals and counters replace the old ones.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from gqallreduce.backends.processor import Processors
from gqallreduce.coding import frame
from gqallreduce.coding.message import ForeignFrame
from gqallreduce.coding.order import to_array
from gqallreduce.errors import Error, NonFiniteError
from gqallreduce.rounding import usual_arithmetic
from gqallreduce.runtime import arguments
from gqallreduce.runtime.checkpoint import load, save
from gqallreduce.runtime.flush import flush
from gqallreduce.runtime.kinds import Kind, Kinds
from gqallreduce.runtime.memory import Memory, State
from gqallreduce.runtime.steps import step
from gqallreduce.scheme import Scheme
from gqallreduce.stats import Spent, Statistics
from gqallreduce.transport.agreement import agree, compare_replicas
from gqallreduce.transport.communicator import require_intracommunicator
from gqallreduce.transport.dense import Dense, dense_on
from gqallreduce.transport.engine import Engine
from gqallreduce.transport.failure import ALIKE, give_up, named
from gqallreduce.transport.home import home
from gqallreduce.transport.link import Link


@dataclass(slots=True)
class Call:
    """One call on a link.

    name
        in words, for errors.
    link, number
        where it runs, and as which call; None before the ranks are connected.
    known_to_all
        all ranks know how it ended: the object stays usable although this rank raises an error.
    states, for_good
        what its end replaces; also where calls of a step are kept apart.
    """

    name: str
    link: Link | None = None
    number: int = 0
    known_to_all: bool = False
    states: dict[str | None, State] = field(default_factory=dict)
    for_good: bool = False


class Allreduce:
    """Quantized allreduce over a communicator: `allreduce(buf, key="fc1.weight")` sums in place over all ranks.

    Making one is collective. Close it, or use it in a `with` statement, when it is no longer needed.

    scheme
        text such as "direct/onebit/ef", or a Scheme; ValueError says what is wrong with it.
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
    """

    def __init__(
        self, scheme, *, comm=None, average=False, seed=0, timeout=600, check="first", verify=0, cuda_aware=None
    ):
        self.scheme = Scheme.parse(scheme)
        if check not in ("first", "always"):
            raise ValueError(f"check={check!r}, expected 'first' or 'always'")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout!r}, expected seconds > 0")
        if not hasattr(verify, "__index__") or verify < 0:
            raise ValueError(f"verify={verify!r}, expected a number of calls, or 0 for never")
        self.comm = require_intracommunicator(comm)
        self.average, self.timeout = arguments.truth("average", average), float(timeout)
        self.seed, self.verify = arguments.integer("seed", seed), arguments.integer("verify", verify)
        self.check, self.cuda_aware = check, cuda_aware
        self.rank, self.size = self.comm.rank, self.comm.size
        self.memory, self._processors = Memory(), Processors(cuda_aware)
        self.stats = Statistics(self._residual_norm)
        self._calls, self.failures_in_step = 0, 0
        self.unusable: str | None = None
        self.home = home(self.comm)
        self.number = self.home.enter(self, self.timeout)
        self.making = Kinds(self.scheme, self.rank, self.size, self.average, self.number)

    def __repr__(self) -> str:
        return f"Allreduce({str(self.scheme)!r}, average={self.average}, P={self.size})"

    # --- the call ---

    def __call__(self, buf, *, key: str | None = None, out=None):
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
        Raises TypeError, ValueError for an unfit argument; NonFiniteError for NaN, Inf or overflow, on every rank;
        MismatchError if ranks call differently; TimeoutError. After any error residuals and counters are as before
        the call, and the content of the written buffer is undefined.
        """
        return self.guarded(f"the call of key {key!r}", self._call, buf, key, out)

    @usual_arithmetic()
    def guarded(self, name: str, carry_out, *given):
        """Carry a call out. If it cannot end, the other ranks are told, and this object refuses further calls."""
        call = Call(name)
        try:
            self.home.notice(self.timeout)
            self.require_usable()
            link = self.home.connect(self.timeout)
            call.link, call.number = link, link.calls
            link.begin(self)
            return carry_out(call, *given)
        except BaseException as error:
            if call.link is None:
                raised = named(error, name)
            else:
                self.failures_in_step += 1
                if call.known_to_all or isinstance(error, ALIKE) or self.memory.holds(call.states, call.for_good):
                    raise
                raised = self._give_up(call, error)
            if raised is error:
                raise
            raise raised from raised.__cause__

    def _give_up(self, call: Call, error: BaseException) -> BaseException:
        """Tell the other ranks; the error to raise. The object whose call it was refuses further ones."""
        link, owner, raised = call.link, self, error
        link.calls = max(link.calls, call.number + 1)  # it counts as begun
        abort = error.header if isinstance(error, ForeignFrame) else None
        if abort is not None and frame.is_before(abort.step, link.calls - 1):
            owner = link.owner_of(abort)  # a call before this one, which succeeded here
        try:
            raised = give_up(link, error, self.timeout, call.name)
        finally:
            if owner is not None:
                owner.fail(raised)
        return raised

    def _call(self, call: Call, buf, key, out):
        began = perf_counter()
        try:
            key = arguments.plain_key(key, self.scheme)
            known = self.memory.get(key)
            source, target = arguments.buffers(buf, out, key, self._processors, known and known.form)
        except Exception:
            self.join_invalid(call)
            raise
        place = (key, *source.form)
        kind = self._agreed(call, place, source.located is not None)
        spent = Spent(kind.what, kind.why)
        processor = self._processors.of(source)
        with processor.active(source.located, key):
            self._run(call, kind, processor, source, target, place, spent)
        spent.total = perf_counter() - began
        self.account(spent, source.nbytes, call.states[key])
        return buf if out is None else out

    def _run(self, call: Call, kind: Kind, processor, source, target, place, spent: Spent) -> None:
        """Carry the call out and, if it succeeded, let what was written take effect."""
        key = place[0]
        form = None if key is None else place[1:]
        owed, after = None, self.memory.counted(key, form)
        step = after.step - 1
        if self.scheme.feedback:
            owed, after = self.memory.next(key, form, source.size, processor)
        owing = after.residual
        if kind.dense:
            dense = Dense(call.link, self._processors.host.workspace, kind.signature, self.average, self.timeout)
            flaw = dense_on(processor, dense, source, target, owed, owing, spent)
        else:
            worker = self.making.worker(kind, processor)
            flaw = self.quantized(call.link, kind, worker, source, target, owed, owing, step, spent)
        if flaw is not None:
            raise NonFiniteError(None if flaw[0] == frame.NO_RANK else flaw[0], key, flaw[1])
        if self.verify and (self._calls + 1) % self.verify == 0:
            compare_replicas(call.link, kind.signature, processor.on_host(target.array), self.timeout)
        self.making.remember(place, kind)
        self._calls += 1
        call.states = {key: after}
        self.memory.commit(call.states)

    def quantized(self, link, kind, worker, source, target, owed, owing, step, spent):
        worker.spent = spent
        worker.begin(source, target, owed, owing, kind.stream, step, kind.signature)
        try:
            Engine(link, worker, self.timeout).run()
            return worker.flaw
        finally:
            worker.end()

    def account(self, spent: Spent, nbytes: int, state: State) -> None:
        spent.dense_bytes = 2 * (self.size - 1) / self.size * nbytes
        self.stats.record(spent, state.norm)

    # --- agreement ---

    def _agreed(self, call: Call, place: tuple, on_device: bool) -> Kind:
        """What runs: known, or compared with the other ranks' calls and decided by rank 0.

        A dense call is compared every time, since no message of it says whose it is.
        """
        known = self.making.find(place)
        if known is not None and self.check == "first" and not known.dense:
            return known
        kind = known or self.making.propose(place, self.seed, self.home.group, on_device)
        if self.size == 1:
            return kind
        names, state = self.making.choices(), self.memory.get(place[0])
        step = 0 if state is None else state.step
        chosen = names[agree(call.link, kind.hashes, (self.number, step), names.index(kind.choice), self.timeout)]
        return kind if chosen == kind.choice else self.making.instead(kind, chosen)

    def join_invalid(self, call: Call) -> None:
        """This rank's own call is invalid: take part in the others' agreement, and tell them."""
        if self.size == 1:
            call.known_to_all = True
            return
        try:
            agree(call.link, None, 0, 0, self.timeout)
            call.known_to_all = True
        except Exception as error:  # this rank raises what is wrong with its own call
            self.fail(give_up(call.link, error, self.timeout, call.name))

    # --- the end of an object ---

    def require_usable(self) -> None:
        if self.unusable is not None:
            raise Error(f"this object cannot be used any more {self.unusable}; make a new one on all ranks")

    def fail(self, error: BaseException) -> None:
        """No further calls, and out of the cache of quantized_allreduce."""
        self._end(f"after {type(error).__name__}" + f" ({error})" * bool(str(error)))

    def _end(self, why: str) -> None:
        if self.unusable is None:
            self.unusable = why
        cached = self.home.cached
        for name in [name for name, each in cached.items() if each is self]:
            del cached[name]

    def close(self) -> None:
        """End this object: it refuses further calls. Close it on all ranks.

        What is left of residuals stays readable. Closing twice does nothing.
        """
        self._end("after close()")

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
        return step(self)

    # --- residuals ---

    def form_of(self, key: str) -> tuple:
        if key not in self.memory:
            raise KeyError(f"no residual for key {key!r}" if self.scheme.feedback else f"{self.scheme} has no /ef")
        return self.memory.get(key).form

    def residual(self, key: str) -> np.ndarray:
        """A copy of this rank's residual of the key: float32, in the buffer's shape and memory, in units of the sum.

        Raises KeyError for an unknown key or without /ef.
        """
        shape, order, _ = self.form_of(key)
        with self.memory.processor_of(key).active(None, key):
            return to_array(self.memory.owed(key).copy(), shape, order)

    def flush(self, key: str | None = None):
        """The exact sum (or average) over ranks of the residuals, which are then zero. Collective.

        Returns float32 in the buffer's shape, alike on all ranks; without a key, a dict of all keys, in sorted order,
        all of which are zero then, or after an error none. Raises KeyError for an unknown key or without /ef;
        NonFiniteError if a sum overflows; `flush()` without /ef is {}.
        """
        if key is None and not self.scheme.feedback:
            return {}
        name = "flush()" if key is None else f"flush({key!r})"
        sums = self.guarded(name, flush, self, key)
        return sums if key is None else sums[key]

    def _residual_norm(self) -> float:
        return math.hypot(*map(self.memory.norm, self.memory))

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """Everything a checkpoint needs to go on bit-exactly with the same P: arrays and plain values, rank-local."""
        return save(self)

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()` of the same scheme, rank and P. ValueError otherwise; then nothing has changed."""
        if self.memory.staging:
            raise ValueError("a step of this object is under way; load_state_dict() before or after it")
        load(self, state, self._processors.host)

    def restore(self, seed: int, states: dict[str | None, State]) -> None:
        """Replace all keys by the States of a checkpoint."""
        memory = Memory()
        memory.commit(states)
        self.seed, self.memory, self._calls = seed, memory, 0
        self.making.clear()

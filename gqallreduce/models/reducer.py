"""The gradients of a whole model, summed step by step: buckets in a fixed order, and all of a step or nothing.

A step begins with its first `start` and ends with `wait`. A bucket is started when all its gradients have come and all
buckets before it are started: so all ranks start the same calls, in whatever order they make gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping

import numpy as np

from gqallreduce.allreduce import Allreduce
from gqallreduce.errors import Error, MismatchError
from gqallreduce.models import checkpoint
from gqallreduce.models import rules as text_of_rules
from gqallreduce.models.comparison import Comparison
from gqallreduce.models.contributions import Contributions
from gqallreduce.models.model import Model
from gqallreduce.models.registration import pairs_of, registration
from gqallreduce.models.statistics import ModelStats
from gqallreduce.models.step import Step
from gqallreduce.models.warmup import WarmUp, forget
from gqallreduce.quantities import nbytes
from gqallreduce.runtime import arguments
from gqallreduce.runtime.making import told
from gqallreduce.runtime.meeting import meet
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.runtime.scaling import require_factor
from gqallreduce.runtime.steps import Together
from gqallreduce.transport.communicator import require_intracommunicator


class Reducer:
    """Sums (or averages) the named gradients of a model over all ranks, each by the scheme of its rule.

        reducer = gq.Reducer("*.bias=raw; *=adaptive(pi=64)/ef", comm=comm)
        reducer(named_gradients)                     # all at once, in place
        for name, gradient in backward():            # or one by one, while others are still computed
            reducer.start(name, gradient)
        reducer.wait()

    Making one is collective: TypeError or ValueError for an unfit argument, MismatchError if one of another rank is
    unfit, or if ranks have other rules. Close it, or use it in a `with` statement, when it is no longer needed.

    rules
        text such as "*.bias=raw; *=onebit/ef", a scheme for all tensors, or a mapping of patterns to schemes. The first
        pattern that matches a name wins; what none matches is summed exactly, by `raw`. A rule without a tensor is an
        error.
    comm
        an mpi4py intracommunicator, default COMM_WORLD.
    average
        multiply sums by 1/P.
    bucket
        at most so many bytes of gradients are summed by one call: text such as "4 MiB", or a number. A larger tensor
        has a call of its own. An object remembers 512 calls of several tensors: give large models large buckets.
    warmup, warmup_rules
        the first so many steps are summed by these rules, exactly unless given, or by denser schemes than later. Where
        both have /ef, the residual goes on; it is a ValueError if it would be lost. Or a function of a step's number,
        counted from 1, that is true of these steps, alike on all ranks; then without /ef.
    clip
        multiply the gradients of this rank so that their norm, over all tensors, is at most this, before they are
        summed. Of float32, in host memory float64 too, as with momentum. Then sums begin when all gradients have come.
    momentum
        sum beta times the last result + the gradient: results are momenta m = beta m + g, for an optimizer that has no
        momentum of its own. Errors of compression are then fed back after the momentum.
    momentum_correction
        beta of a momentum that each rank forms of its own gradients before they are summed (Deep Gradient Compression).
    compare_every
        N > 0: every N steps sums are compared with exact ones, which costs two float64 copies of the gradients in
        host memory and their exact sum; `stats` has the errors.
    seed, timeout, check, verify, cuda_aware
        as an Allreduce has them.

    model, allreduces
        its tensors, once they are known; scheme -> Allreduce.
    failure_flags
        an Allreduce that sums a flag of each rank at the end of a step: has it failed?
    mark
        what ranks compare at the end of each step beside that, below 2^24: a number of the caller's. None for nothing.
    """

    def __init__(
        self, rules, *, comm=None, average=True, bucket="4 MiB", warmup=0, warmup_rules="raw", clip=None,
        momentum=0.0, momentum_correction=0.0, compare_every=0, seed=0, timeout=600, check="first", verify=0,
        cuda_aware=None,
    ):  # fmt: skip
        with told(comm, timeout):
            self.rules, self.warmup = text_of_rules.parse(rules), WarmUp(warmup)
            self.warmup_rules = text_of_rules.parse(warmup_rules) if self.warmup else []
            self.most = _bytes("bucket", bucket)
            self._compare_every = arguments.integer("compare_every", compare_every)
            for name, value in {"bucket": self.most, "compare_every": self._compare_every}.items():
                if value < 0:
                    raise ValueError(f"{name}={value!r}, expected 0 or more")
            size = require_intracommunicator(comm).size
            self.contributions = Contributions(clip, momentum, momentum_correction, average, size)
        options = {
            "comm": comm, "average": average, "seed": seed, "timeout": timeout, "check": check, "verify": verify,
            "cuda_aware": cuda_aware,
        }  # fmt: skip
        rules = [*self.rules, *self.warmup_rules]
        texts = dict.fromkeys([scheme for _, scheme in rules] + [text_of_rules.EXACT])
        self.failure_flags, self.mark = Allreduce("raw", **options), None
        self._compare_objects([list(texts), self._compare_every, self.most, verify, check])
        self.allreduces = {text: Allreduce(text, **options) for text in texts}
        self.contributions.processors = self.failure_flags.processors
        self._comparison = Comparison(options) if self._compare_every else None
        self.stats = ModelStats(self._residual_norm)
        self.missing: dict[str, np.ndarray] = {}
        self.model, self.models = Model(), []
        self._early: dict[str, tuple] = {}
        self._step: Step | None = None
        self._ended_early = False  # by an error in `start`, and no other step has begun since

    def _compare_objects(self, options: list) -> None:
        """MismatchError if ranks would make other objects than this one: the rest is compared in `register`."""
        try:
            meet(self.failure_flags, repr(options))
        except MismatchError as error:
            if error.field != "key":
                raise
            raise MismatchError(
                "scheme", error.ranks, "they have other rules, or another compare_every, bucket, verify or check"
            ) from error

    def __repr__(self) -> str:
        rules = "; ".join(f"{pattern}={scheme}" for pattern, scheme in self.rules)
        return f"Reducer({rules!r}, {len(self.model.tensors)} tensors in {len(self.buckets)} buckets)"

    # --- the model ---

    def register(self, named: Mapping | Iterable[tuple], alike: tuple = ()) -> None:
        """Tell the tensors of the model, in its order: names with arrays of the gradients' shape and dtype. Collective.

        A backward pass is expected to make their gradients in the reverse order. If it is not called, the first step
        tells them: `reducer(named)` in the order given, steps by `start` in the order of their names.
        `alike` are more values that ranks compare. Raises ValueError for a wrong name or rule, MismatchError if ranks
        have other tensors or rules.
        """
        if self._early:
            raise ValueError(f"gradients were started before register(): {', '.join(self._early)}")
        try:
            self.models = self.failure_flags.perform("register()", registration, self, named, alike)
        except MismatchError as error:
            if error.field not in ("key", "shape", "dtype", "order"):
                raise
            why = "they have other tensors, in another order, or other rules or options"
            raise MismatchError(error.field, error.ranks, why) from error
        self._choose_model()

    def _model_of(self, step: int) -> Model:
        """That of the rules, or of the warm-up, for a step counted from 1."""
        return self.models[self.warmup.has(step)]

    def _choose_model(self) -> None:
        """By how many steps have taken effect."""
        if self.models:
            self.model = self._model_of(self.stats.steps + 1)

    @property
    def schemes(self) -> dict[str, str]:
        """name -> scheme."""
        return {name: tensor.scheme for name, tensor in self.model.tensors.items()}

    @property
    def buckets(self) -> list[list[str]]:
        """The names of each, in the order in which they are started."""
        return [bucket.names for bucket in self.model.buckets]

    # --- a step ---

    def start(self, name: str, gradient, *, out=None) -> None:
        """A gradient has been made; its bucket is begun when it is complete. Until `wait` it belongs to the step.

        gradient
            of the shape, dtype and order that the tensor has in every step; summed in place, or into `out`.
        Raises ValueError for an unknown name, one that was started before in this step, or an array of another form.
        After an error here the step has ended on this rank, which does not call `wait`. Nothing of it counts; `wait`
        of the other ranks raises MismatchError, and the error is raised here when they have come there.
        """
        if not self.model.tensors:
            if name in self._early:
                error = ValueError(f"{name!r} was started before in this step; wait() ends one")
                self._leave_early(error)
                raise error
            self._early[name] = gradient, out
            return
        try:
            self._give(name, gradient, out)
        except BaseException:
            self._ended_early = True
            raise

    def _give(self, name: str, gradient, out) -> None:
        running = self._begin()
        try:
            if out is None and running.take(name, gradient):
                return
            running.give(name, gradient, out)
            running.advance()
        except BaseException as error:
            self._leave(error)
            raise

    def wait(self) -> None:
        """The end of a step: when it returns, all gradients are summed, on all ranks alike. Collective.

        A gradient that this rank has not started counts as zero: `missing` has the names of those, and the sums.
        Raises NonFiniteError if any gradient of any rank has a NaN or Inf, and what else a call raises; then residuals
        and counters are as before the step on all ranks, and the content of the gradients is undefined.
        """
        if not self.model.tensors:
            early, self._early = self._early, {}
            self.register(sorted((name, given[0] if given[1] is None else given[1]) for name, given in early.items()))
            for name in early:  # an error here is one of `wait`
                self._give(name, *early[name])
        if self._ended_early:
            self._ended_early = False
            raise Error("this rank's step has ended by an error in start(), so wait() has nothing to wait for")
        running = self._begin()
        try:
            missing = running.fill()
            next_model = self._model_of(self.stats.steps + 2)  # by the caller's function, which may raise
            spents = running.wait(self.mark)
            self._step, after = None, self._warmup_before
            running.end()
        except BaseException as error:
            self._leave(error)
            raise
        self.contributions.take_over()
        if after is not None:
            forget(after, self.model, self.allreduces)
        self.missing = missing
        self.stats.record(self.model.buckets, spents, self.model.tensors)
        self.model = next_model
        if running.comparison is not None:
            self.stats.note_errors(running.comparison.errors())

    def __call__(self, named):
        """Sum all gradients of a step, a mapping or a list of (name, gradient). Collective; returns `named`."""
        if not self.model.tensors:
            self.register(named)
        gradients = named if type(named) is dict else pairs_of(named)
        running = self._begin()
        try:
            running.give_all(gradients)
            running.advance()
        except BaseException as error:
            self._leave(error)
            raise
        self.wait()
        return named

    def discard(self, begun: bool = False) -> None:
        """Leave the step that is under way, if any: nothing of it counts, and `wait` raises an error on other ranks.

        Returns when they have come there. `begun`: a step is under way also where no gradient was started yet.
        """
        error = ValueError("this rank left the step")
        if self._early:
            self._leave_early(error)
        elif begun:
            self._begin()
        if self._step is not None:
            self._leave(error)

    def _leave_early(self, error: Exception) -> None:
        """The first step, whose tensors the others are about to register, is over."""
        self._early.clear()
        with contextlib.suppress(Exception):
            self.failure_flags.perform("register()", join_invalid, self.failure_flags, error)

    def _begin(self) -> Step:
        """The step that is under way, or a new one."""
        if self._step is None:
            self._ended_early = False
            due = self._compare_every and (self.stats.steps + 1) % self._compare_every == 0
            self._step = Step(self, self._comparison if due else None, self._warmup_before)
        return self._step

    @property
    def _warmup_before(self) -> Model | None:
        """The model of the last step, if a warm-up was over with it."""
        return self.models[True] if self.warmup.ends(self.stats.steps) else None

    def _leave(self, error: BaseException) -> None:
        """The step is over by an error, which the other ranks get too.

        Unless this rank is interrupted it takes part in what is left with zeros, so that all can go on after the step.
        """
        running, self._step = self._step, None
        if running is None:
            return
        if isinstance(error, Exception) and not running.outcome_known:
            running.failed = True
            with contextlib.suppress(Exception):
                running.fill()
                running.wait(self.mark)
        running.end(error)

    # --- residuals and checkpoints ---

    def _residual_norm(self, name: str) -> float:
        schemes = {model.tensors[name].scheme for model in self.models}  # one of them has it
        memories = [self.allreduces[scheme].memory for scheme in schemes]
        return math.hypot(*(memory.norm(name) for memory in memories if name in memory))

    def flush(self) -> dict:
        """The exact sums (or averages) of all residuals, by name, which are then zero. Collective.

        float32 arrays of the tensors' shapes, in the memory of the gradients: NumPy's, on a GPU CuPy's.
        """
        self._require_no_step("flush()")
        found = {}
        with Together(*self.allreduces.values()):  # all or none
            for allreduce in self.allreduces.values():
                found |= allreduce.flush()
        return {name: found[name] for name in self.model.tensors if name in found}

    def scale_memory(self, factor: float, momentum: bool = False) -> None:
        """Multiply all residuals by a number: old over new learning rate, when it changes. Collective.

        "Memory" is the Mem-SGD paper's word for the residual.

        momentum
            and what `momentum` and `momentum_correction` keep: when gradients are in other units from now on.
        ValueError for a factor that is not finite, or by which something leaves its format. After an error nothing has
        changed on any rank.
        """
        self._require_no_step("scale_memory()")
        require_factor(factor)
        self.failure_flags.scale_memory(factor)  # it has no residuals: ranks compare their factors
        with Together(*self.allreduces.values()):
            for allreduce in self.allreduces.values():
                if allreduce.scheme.feedback:
                    allreduce.scale_memory(factor)
            scaled = self.contributions.rescaled(factor) if momentum else []
        for each in scaled:
            each.take_over()

    def state_dict(self) -> dict:
        """Everything a checkpoint needs to go on bit-exactly with the same P: arrays and plain values, rank-local."""
        self._require_no_step("state_dict()")
        return checkpoint.save(self)

    def load_state_dict(self, state: dict | list[dict]) -> None:
        """Go on from `state_dict()` of the same rules, rank and P; or, with another P, from those of all ranks.

        As `Allreduce.load_state_dict`. ValueError for what does not fit; then nothing has changed.
        """
        self.restore(self.checked(state))

    def checked(self, state: dict | list[dict]) -> checkpoint.Restored:
        """What `load_state_dict` takes, for `restore`; ValueError for what does not fit."""
        self._require_no_step("load_state_dict()")
        return checkpoint.checked(self, state)

    def restore(self, found: checkpoint.Restored) -> None:
        """Take over what `checked` has returned."""
        for text, each in found.schemes.items():
            self.allreduces[text].restore(each)
        self.stats.steps = found.steps
        self.contributions.restore(found.momentum)
        self._choose_model()

    def _require_no_step(self, what: str) -> None:
        if self._step is not None:
            raise ValueError(f"a step of this reducer is under way; {what} before or after it")

    def close(self) -> None:
        """End this object: it refuses further steps. Close it on all ranks."""
        self._early.clear()
        self.discard()
        for allreduce in (*self.allreduces.values(), self.failure_flags):
            allreduce.close()
        if self._comparison is not None:
            self._comparison.close()

    def __enter__(self) -> Reducer:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _bytes(name: str, value) -> int:
    """A size that is given as text or as a number."""
    if not isinstance(value, str):
        return arguments.integer(name, value)
    try:
        return nbytes(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None

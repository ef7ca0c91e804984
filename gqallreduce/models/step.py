"""A step of a Reducer that is under way: what has come, and the calls that sum it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import Outer
from gqallreduce.coding.order import to_array
from gqallreduce.errors import Error, MismatchError
from gqallreduce.models.model import Bucket, Model, Tensor
from gqallreduce.models.warmup import hand_over
from gqallreduce.runtime.reduction import look
from gqallreduce.runtime.repeated import NOT_BEGUN, repeated
from gqallreduce.runtime.steps import Together
from gqallreduce.transport.agreement import differing_ranks

if TYPE_CHECKING:
    from gqallreduce.models.comparison import Comparison
    from gqallreduce.models.reducer import Reducer

_HOST, _END = "in host memory", "the end of a step"
_ELSEWHERE = (
    "they have made another number of steps, or other parameters need no gradient there; nothing of this one was kept: "
    "do the same on all ranks"
)
_LEFT = (
    "these ranks left the step, by an error of their own or by discard(); nothing of it was kept, and the next one can "
    "be made"
)


class Step:
    """The constructor begins the step; the caller must call `end`.

    after
        the model of a warm-up that was over with the step before, whose residuals go on here.
    failed, outcome_known
        has this rank an error that the others must know of? Do all ranks know how the step went?
    """

    def __init__(self, reducer: Reducer, comparison: Comparison | None, after: Model | None = None):
        self._model, self._allreduces, self.comparison = reducer.model, reducer.allreduces, comparison
        self._contributions, self._factor = reducer.contributions, 1.0
        self._flags = reducer.failure_flags
        self._given: dict[str, object] = {}
        self._all: tuple | None = None  # the gradients of all tensors in place of those of `_given`, in order
        self._into: dict[str, object] = {}
        self.failed = self.outcome_known = False
        self._left = [len(bucket.names) for bucket in self._model.buckets]
        self._requests: list = []
        self._looked = None  # the Arrays of each bucket, if all have been looked at
        self._at_once = False  # are calls to be carried out at once?
        self._flags.require_usable()
        if comparison is not None:
            comparison.begin()
        self._context = Together(*self._allreduces.values(), compare=False)
        self._context.__enter__()
        if after is not None:
            hand_over(after, self._model, self._allreduces)

    @property
    def given(self) -> dict[str, object]:
        """name -> gradient of what has come."""
        if self._all is not None:
            self._given, self._all = dict(zip(self._model.names, self._all, strict=True)), None
        return self._given

    def give(self, name: str, gradient, out=None) -> None:
        """A gradient has come. ValueError if its name is unknown, or has come before, or if it has another form."""
        tensor = self._model.tensors.get(name)
        if tensor is None:
            names = ", ".join(self._model.tensors)
            raise ValueError(f"got a gradient of {name!r}, expected one of the tensors of the model: {names}")
        if name in self.given:
            raise ValueError(f"{name!r} was started before in this step; wait() ends one")
        known = not isinstance(gradient, Outer) and tensor.known.look(gradient) is not None
        if not isinstance(gradient, Outer) and not known:
            self._require_form(name, gradient, tensor, writable=out is None)
        if out is not None:
            self._require_form(name, out, tensor, writable=True)
        elif isinstance(gradient, Outer):
            raise ValueError(f"{name!r}: got a gq.Outer, expected an array for its sum too: start(..., out=array)")
        if isinstance(gradient, Outer) and not self._contributions.plain:
            raise ValueError(f"{name!r}: got a gq.Outer, which cannot be clipped and has no momentum; give an array")
        if not self._contributions.plain and not (known and out is None):
            self._contributions.require_given(name, gradient, out)
        self.given[name] = gradient
        if out is not None:
            self._into[name] = out
        self._left[tensor.bucket] -= 1

    def take(self, name: str, gradient) -> bool:
        """A gradient has come that is as it should be, and not the last one of its bucket; False: nothing was done."""
        tensor = self._model.tensors.get(name)
        if tensor is None or self._all is not None or name in self._given or self._left[tensor.bucket] < 2:
            return False
        if tensor.known.look(gradient) is None:
            return False
        self._given[name] = gradient
        self._left[tensor.bucket] -= 1
        return True

    @staticmethod
    def _require_form(name: str, array, tensor: Tensor, writable: bool) -> None:
        buffer = Buffer(array)
        if buffer.form != tensor.form:
            raise ValueError(
                f"{name!r}: got shape, order, dtype {buffer.form.kept}, expected {tensor.form.kept} as it was "
                "registered; for a changed model make a new object"
            )
        if writable and buffer.readonly:
            raise ValueError(f"{name!r}: got an array that is read-only, expected one that the sum can be written to")

    def _give_known(self, arrays: tuple) -> bool:
        """All gradients have come at once, in the order of the model; False if each must be looked at."""
        buckets = self._model.buckets
        looked = [bucket.known.look(arrays, bucket.places) for bucket in buckets]
        if None in looked:
            return False
        self._all, self._left, self._looked = arrays, [0] * len(buckets), looked
        # Calls are checked for memory that others under way use. Calls one after the other are not: hence here.
        self._at_once = self._model.at_once and self.comparison is None and _kernels.share_no_memory(looked)
        return True

    def give_all(self, named: dict | list[tuple]) -> None:
        """All gradients have come, or some, by name or as (name, gradient)."""
        begun = self._given or self._all is not None
        arrays = None if begun else self._model.in_order(named)
        if arrays is not None and self._give_known(arrays):
            return
        for name, gradient in named.items() if isinstance(named, dict) else named:
            self.give(name, gradient)

    def advance(self) -> None:
        """Start the next buckets, as far as their gradients have come."""
        buckets = self._model.buckets
        if self._contributions.clip is not None and not self._requests and not self.failed:
            if any(self._left):
                return  # the norm of all gradients is not known yet
            self._factor = self._contributions.factor(self.given.values())
        while len(self._requests) < len(buckets) and not self._left[len(self._requests)]:
            bucket = buckets[len(self._requests)]
            self._prepare(bucket)
            looked, into = self._looked and self._looked[len(self._requests)], None
            buffers = looked.owners if looked else [self.given[name] for name in bucket.names]
            if self._into:
                into = [self._into.get(name, self.given[name]) for name in bucket.names]
            self._requests.append(self._start(self._allreduces[bucket.scheme], buffers, bucket.names, into, looked))

    def _prepare(self, bucket: Bucket) -> None:
        """Make its gradients what this rank gives, and keep copies where sums are compared.

        Not so after an error of this rank: what it gives then is dropped by all.
        """
        if self.failed:
            return
        if not self._contributions.plain:
            self._contributions.prepare(bucket.tensors, self.given, self._into, self._factor)
        if self.comparison is not None:
            for tensor in bucket.tensors:
                self.comparison.give(tensor, self.given[tensor.name], self._into.get(tensor.name))

    def fill(self) -> dict[str, np.ndarray]:
        """Give zeros for all that has not come, and start what is left; returns them by name.

        After an error of this rank they replace also what has come of buckets that are not started: that may be what
        is wrong. They lie in host memory, also if tensors of the bucket lie on a GPU. ValueError where that cannot be.
        """
        if self.failed:
            self._forget_what_is_not_started()
        missing = {}
        if any(self._left):
            tensors = [each for name, each in self._model.tensors.items() if name not in self.given]
            if not self.failed:
                _require_in_host_memory(tensors)
            missing = {each.name: _zeros(each) for each in tensors}
        for name, zeros in missing.items():
            self.give(name, zeros)
        self.advance()
        return missing

    def _forget_what_is_not_started(self) -> None:
        """Of buckets that are not started nothing has come."""
        self._looked = None
        for number in range(len(self._requests), len(self._left)):
            names = self._model.buckets[number].names
            for name in names:
                self.given.pop(name, None)
                self._into.pop(name, None)
            self._left[number] = len(names)

    def wait(self, mark: int | None) -> list:
        """Until all are done: what each cost. mark: that of the Reducer.

        Raises the first error, in the order of the buckets; MismatchError if another rank has failed, or has another
        mark, which ranks tell each other in a last small call.
        """
        ranks, rank = self._flags.size, self._flags.rank
        flags = np.zeros(ranks if mark is None else 2 * ranks, np.float32)
        flags[rank] = self.failed
        if mark is not None:
            flags[ranks + rank] = mark
        buckets = [bucket.names for bucket in self._model.buckets]
        requests, errors = list(zip(self._requests, buckets, strict=True)), []
        if ranks > 1:
            requests.append((self._start_last(flags), ()))
        for request, names in requests:
            try:
                request.wait()
                if not self.failed:
                    self._contributions.note(names, self)  # while others are under way
            except Exception as error:
                errors.append(error)
        self.outcome_known = True
        if errors:
            raise errors[0]
        if flags[:ranks].any() and not self.failed:
            raise MismatchError("arguments", np.flatnonzero(flags[:ranks]).tolist(), _LEFT)
        if ranks > 1 and (other := differing_ranks(flags[ranks:].tolist() or [0])):
            raise MismatchError("frame", other, _ELSEWHERE)
        return [request.stats for request in self._requests]

    def _start(self, allreduce, buffers, names, into, looked):
        """The request of a bucket's call, or what is in its place."""
        request = self._call_at_once(allreduce, buffers, names, looked) if self._at_once and looked else None
        if request is None:
            self._hear()
            # An error here leaves the call to be made, with zeros.
            found = look(allreduce, allreduce.plans, buffers, names, into, looked)
            request = self._begin(allreduce, buffers, names, into, found)
        return request

    def _start_last(self, flags: np.ndarray):
        """The request of the call in which ranks tell each other how the step went, or what is in its place."""
        request = self._call_at_once(self._flags, flags, _END)
        if request is None:
            self._hear()
            request = self._begin(self._flags, flags, _END, None, None)
        return request

    def _begin(self, allreduce, *given):
        """The request of a call. If the connection breaks meanwhile, since a rank has failed, all ranks know."""
        link = self._flags.home.link
        sound = link is not None and not link.broken
        try:
            return allreduce.start_found(*given)
        except Exception:
            self.outcome_known |= sound and link.broken and bool(self._requests)
            raise

    def _call_at_once(self, allreduce, buf, key, looked=None) -> _Done | None:
        """A call that is waited for here, if it can be carried out at once (runtime/repeated.py); else None.

        A request that is returned may have an error, which does not keep this rank from the other calls of the step:
        one that all ranks have, or one of its own, of which the others learn at the end. An error before the call
        begins is raised, and so is one that breaks the connection, which all ranks get.
        """
        home = allreduce.home
        link = home.link
        broken, calls = link is None or link.broken, link and link.calls
        try:
            result = repeated(allreduce, buf, key, None, looked=looked)
        except Exception as error:
            if link is None or link.broken:
                self.outcome_known = True
                raise
            if not link.alike(error):
                if link.calls == calls:
                    raise
                self.failed = True
            return _Done(None, error)
        if result is not NOT_BEGUN:
            return _Done(allreduce.stats.last)
        if not broken and link is not None and link.broken:
            self._require_no_failure()
        return None

    def _hear(self) -> None:
        """Before a call is started: Error if another rank has failed in this step, and would be waited for in vain."""
        home = self._flags.home
        link, claim = home.link, home.claim()
        if link is None or link.broken:
            home.release(claim)
            return  # since a step before: the call makes another connection
        try:
            home.notice(self._flags.timeout)
        finally:
            home.release(claim)
            self.outcome_known |= link.broken and bool(self._requests)
        if link.broken:
            self._require_no_failure()

    def _require_no_failure(self) -> None:
        """The connection broke in this step: Error if that concerns an object of the step, or a call of it."""
        objects = (*self._allreduces.values(), self._flags)
        self.outcome_known |= any(each.unusable for each in objects)
        for each in objects:
            each.require_usable()
        if self._requests:
            self.outcome_known = True
            raise Error("another rank failed in this step; nothing of it was kept")

    def end(self, error: BaseException | None = None) -> None:
        """It takes effect, or ends by an error, of which the other ranks learn unless they know."""
        if self.outcome_known:
            next(iter(self._allreduces.values())).raised_in_step = True
        if error is None:
            self._context.__exit__(None, None, None)
        else:
            self._context.__exit__(type(error), error, error.__traceback__)


class _Done:
    """A call that is done, in the place of a request. stats: what it cost."""

    def __init__(self, stats, error: Exception | None = None):
        self.stats, self._error = stats, error

    def wait(self) -> None:
        """Raise the error by which it ended, if any."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _require_in_host_memory(tensors: list[Tensor]) -> None:
    """ValueError for one whose zeros could not be summed in one call with others of its bucket."""
    for tensor in tensors:
        if tensor.device != _HOST:
            got = f"{tensor.name!r}, {tensor.device}, was not started"
            raise ValueError(f"{got}; give zeros where there is no gradient")


def _zeros(tensor: Tensor) -> np.ndarray:
    """In the form of a tensor, in host memory."""
    if tensor.form.dtype == "bfloat16":
        import ml_dtypes  # noqa: F401  (which makes NumPy know the name)
    vector = np.zeros(tensor.form.size, np.dtype(tensor.form.dtype))
    return to_array(vector, tensor.form.shape, tensor.form.order)

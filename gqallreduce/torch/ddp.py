"""A communication hook for DistributedDataParallel: a Reducer sums the gradients of its buckets, by parameter name."""

# DDP looks at the annotations of a hook, and wants them as objects: so they are not postponed here.

import torch
from mpi4py import MPI

from gqallreduce.errors import Error, NonFiniteError
from gqallreduce.runtime.making import SECONDS, told
from gqallreduce.torch.options import reducer_for, release, require_free, require_optimizer, states_of_reducer, trained
from gqallreduce.torch.scale import Scale
from gqallreduce.torch.tensors import array_of, from_tensors, to_tensors


class HookState:
    """What `comm_hook` works with: `ddp.register_comm_hook(HookState(ddp, optimizer, rules), comm_hook)`. Collective.

    Residuals and counters belong to names of parameters, so that it does not matter how DDP makes its buckets, and
    that it makes them anew after the first step.

    model, optimizer
        the DistributedDataParallel, and the optimizer of its parameters. An error in a backward pass would leave DDP in
        an undefined state: it is raised by the optimizer's `step`, which then changes nothing. After a
        NonFiniteError all gradients are NaN on all ranks, so that a torch.amp.GradScaler leaves the step out.
    rules, comm, options
        as of gq.Reducer; patterns are matched with the names in the module that DDP wraps. Ranks in `comm` are those
        of DDP's process group.
    scaler
        torch.amp.GradScaler: residuals, momentum and `clip` follow its scale. Without it they do not: take schemes
        without /ef then.
    """

    def __init__(self, model, optimizer, rules, *, comm=None, scaler=None, **options):
        with told(comm, options.get("timeout", SECONDS)):
            if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
                raise TypeError(f"model: got {type(model).__name__}, expected DistributedDataParallel")
            require_optimizer(optimizer)
            self._scale = Scale(scaler, options.get("clip"))
            require_free(model.module)
        module = self._module = model.module
        self._names = {each: name for name, each in module.named_parameters() if each.requires_grad}
        self.reducer = reducer_for(optimizer, rules, MPI.COMM_WORLD if comm is None else comm, options)
        self._optimizer, self._closed = optimizer, False
        try:
            # DDP lays a gradient out as its parameter, where that has no gaps, and calls the axes by another order.
            like = {each: torch.empty_like(each) for each in self._names}
            self._strides = {each: made.stride() for each, made in like.items()}
            self.reducer.register([(name, array_of(like[each])) for each, name in self._names.items()])
        except BaseException:
            release(optimizer, self.reducer)
            raise
        trained.add(module)
        self._futures: list[tuple] = []
        self._error: Exception | None = None
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def take(self, bucket) -> torch.futures.Future:
        """A bucket has been filled; the sums of all are waited for with the last. gq.Error after `close`."""
        if self._closed:
            raise Error("this HookState is closed, so that nothing is summed: make a new DistributedDataParallel")
        future, buffer = torch.futures.Future(), bucket.buffer()
        if not self._futures and isinstance(self._error, NonFiniteError):
            self._error = None  # of a step that was left out, by a GradScaler
        if not self._futures:
            self._attempt(self._scale.follow, self.reducer)
        self._futures.append((future, buffer))
        self._attempt(self._start, bucket)
        if bucket.is_last():
            self._attempt(self.reducer.wait)
            waiting, self._futures = self._futures, []
            for each, summed in waiting:
                if isinstance(self._error, NonFiniteError):
                    summed.fill_(float("nan"))  # by which a GradScaler knows, on all ranks
                each.set_result(summed)
        return future

    def _start(self, bucket) -> None:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            laid_out = gradient.as_strided(parameter.shape, self._strides[parameter])
            self.reducer.start(self._names[parameter], array_of(laid_out))

    def _attempt(self, call, *given) -> None:
        """Keep an error until the optimizer's step; nothing more of this backward pass is done then."""
        if self._error is None:
            try:
                call(*given)
            except Exception as error:
                self._error = error

    def _before_step(self, optimizer, args, kwargs) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def state_dict(self) -> dict:
        """As that of a Reducer, with tensors in place of arrays: `torch.load(..., weights_only=True)` reads it back.

        With a scaler a dict of it, `reducer`, and of the `scale` that its residuals are multiplied by.
        """
        state = to_tensors(self.reducer.state_dict())
        return state if self._scale.scaler is None else {"reducer": state, "scale": self._scale.value}

    def load_state_dict(self, state: dict | list) -> None:
        """Go on from `state_dict()` of the same rules, rank and P, or from those of all ranks of a job of any size.

        ValueError for what does not fit; then nothing has changed.
        """
        self.restore(self.checked(state))

    def checked(self, state: dict | list) -> tuple:
        """What `load_state_dict` takes, for `restore`; ValueError for what does not fit."""
        if self._scale.scaler is None:
            return self.reducer.checked(from_tensors(state)), self._scale.value
        found, others = states_of_reducer(state, ("scale",))
        self._scale.require_fit(others["scale"])
        return self.reducer.checked(found), others["scale"]

    def restore(self, found: tuple) -> None:
        """Take over what `checked` has returned."""
        state, self._scale.value = found
        self.reducer.restore(state)

    @property
    def failure_flags(self):
        """As of a Reducer: so `gq.save` and `gq.load` take this."""
        return self.reducer.failure_flags

    def close(self) -> None:
        """No further sums: a backward pass of its model is an error then. On all ranks."""
        self._closed = True
        trained.discard(self._module)
        self._hook.remove()
        release(self._optimizer, self.reducer)


def comm_hook(state: HookState, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook`: sums DDP's buckets by the rules of `state`."""
    return state.take(bucket)

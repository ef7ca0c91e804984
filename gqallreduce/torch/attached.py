"""A model whose gradients are summed over ranks: hooks that start sums in the backward pass, and wait before a step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator

import numpy as np
import torch
from mpi4py import MPI

from gqallreduce.errors import Error, NonFiniteError
from gqallreduce.runtime.making import SECONDS, told
from gqallreduce.runtime.meeting import meet
from gqallreduce.torch.options import (
    mark_of,
    reducer_for,
    release,
    require_all_in,
    require_free,
    require_model,
    require_optimizer,
    settings_of,
    states_of_reducer,
    trained,
)
from gqallreduce.torch.replicas import broadcast, compare, described, parameters_of, require_copied, tensors_of
from gqallreduce.torch.scale import Scale
from gqallreduce.torch.tensors import array_of, tensor_of, to_tensors

_NONFINITE = "raise", "skip"
_flushing: weakref.WeakSet = weakref.WeakSet()  # optimizers that make a step of residuals


def attach(model, optimizer, rules, *, comm=None, scaler=None, nonfinite=None, **options) -> Attached:
    """Sum the gradients of a model over all ranks, each by the scheme of its rule. Collective.

    Parameters and buffers of the model become those of rank 0. The optimizer's options, learning rates too, have to be
    alike on all ranks; its state is neither compared nor sent.

    model, optimizer
        torch.nn.Module, torch.optim.Optimizer, as a single process would use them; parameters that need no gradient
        are left alone.
    rules
        as of gq.Reducer; patterns are matched with the names that `model.named_parameters()` has.
    comm
        an mpi4py intracommunicator, default COMM_WORLD. `torch.distributed` is not needed.
    scaler
        the torch.amp.GradScaler, if there is one: residuals follow its scale.
    nonfinite
        of a step in which a gradient of any rank has a NaN or Inf: "raise" NonFiniteError; or "skip" the step on all
        ranks, the default with a scaler, which then lowers its scale on all ranks alike.
    options
        average, bucket, clip, momentum, warmup, compare_every, seed, timeout, ... as of gq.Reducer. Of an optimizer
        that needs some of them, such as gqt.OneBitAdam, they are taken from there.
    Raises TypeError, ValueError; MismatchError if ranks have other models, rules, or options of the optimizer.
    """
    return Attached(model, optimizer, rules, comm=comm, scaler=scaler, nonfinite=nonfinite, **options)


class Attached:
    """What `attach` returns. Detach it, or use it in a `with` statement, when it is no longer needed.

    reducer
        the gq.Reducer: `reducer.stats` tells what sums cost.
    skipped
        how many steps were skipped.
    """

    def __init__(self, model, optimizer, rules, *, comm, scaler, nonfinite, **options):
        with told(comm, options.get("timeout", SECONDS)):
            require_model(model)
            require_optimizer(optimizer)
            self._scale = Scale(scaler, options.get("clip"))
            self._nonfinite = ("raise" if scaler is None else "skip") if nonfinite is None else nonfinite
            if self._nonfinite not in _NONFINITE:
                raise ValueError(f"nonfinite={nonfinite!r}, expected {' or '.join(_NONFINITE)}")
            self._model, self._comm = model, MPI.COMM_WORLD if comm is None else comm
            require_free(model)
            require_copied(model)
            self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
            require_all_in(optimizer, self._parameters)
        self.skipped, self._accumulates = 0, False
        self._started: dict[str, tuple] = {}  # in the step under way: name -> gradient, and its version
        self._holds_unsummed = False  # has a pass in no_sync made gradients that are not summed yet?
        self._summed = False  # has wait() been called, and not the optimizer's step since?
        self._took_effect = True  # what it returned
        self._sums: dict[str, tuple] = {}  # as wait() left them: name -> sum, and its version
        self._looked_through: list[tuple] = []  # parameters of the model in which no new one was found
        self.reducer = reducer_for(optimizer, rules, self._comm, options)
        try:
            named = [(name, array_of(_like_gradient(each))) for name, each in self._parameters.items()]
            self.reducer.mark = mark_of([])
            self.reducer.register(named, described(model) + settings_of(optimizer))
            broadcast(self._comm, model)
        except BaseException:
            release(optimizer, self.reducer)
            raise
        self._optimizer = optimizer
        trained.add(model)
        self._hooks = [optimizer.register_step_pre_hook(self._before_step)]
        for name, parameter in self._parameters.items():
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._hook_of(name)))

    def __repr__(self) -> str:
        return f"Attached({self.reducer})"

    # --- a step ---

    def _hook_of(self, name: str):
        def made(parameter):
            if self._summed:
                self._leave_sums(name, parameter)
            if self._accumulates:
                self._holds_unsummed = True
            else:
                self._start(name, parameter)

        return made

    def _leave_sums(self, name: str, parameter: torch.Tensor) -> None:
        """A gradient has been made after wait(): the optimizer's step was left out, and another one begins.

        ValueError if the sum is still there, and has been added to.
        """
        self._summed = False
        if not self._took_effect or not self._is_added_to(name, parameter):
            return
        self._discard(begun=True)
        raise ValueError(
            f"a backward pass after wait() has added to {name!r}, which is a sum of all ranks: "
            "call the optimizer's step before, or zero_grad() if that is left out"
        )

    def _is_added_to(self, name: str, parameter: torch.Tensor) -> bool:
        """Is the first gradient after wait() added to a sum? zero_grad() has made zeros of all sums, or left them."""
        sums, self._sums = self._sums, {}
        total, version = sums.get(name, (None, 0))
        if parameter.grad is not total:
            return False
        if total._version == version + 1:  # that of the addition
            return True
        for other, (each, last) in sums.items():  # cleared, or clipped?
            if other != name and self._parameters[other].grad is each:
                return each._version == last or bool(each.any())
        return False

    def _start(self, name: str, parameter: torch.Tensor) -> None:
        """A gradient has been made."""
        if not self._started:
            self._scale.follow(self.reducer)
        try:
            if parameter.grad.layout != torch.strided:
                raise ValueError(f"the gradient of {name!r} is sparse, expected a dense one: sparse=False")
            if name in self._started:
                raise ValueError(
                    f"a second backward pass made a gradient of {name!r} before the optimizer's step: "
                    "put all but the last one into `with attached.no_sync():`"
                )
            array = array_of(parameter.grad)
            # Of other memory DLPack counts a version itself when it is looked at.
            self._started[name] = parameter.grad, parameter.grad._version if isinstance(array, np.ndarray) else None
            self.reducer.start(name, array)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Leave the step that is under way, if any: after an exception between `backward` and the optimizer's step.

        Nothing of it counts, and the other ranks get a MismatchError in their step. Returns when they have come there.
        """
        self._discard(self._holds_gradients() and not self._started)

    def _discard(self, begun: bool) -> None:
        self._started.clear()
        self._summed = self._holds_unsummed = False
        self.reducer.discard(begun)

    def _holds_gradients(self) -> bool:
        """Are there gradients of no_sync that are not summed yet?"""
        return self._holds_unsummed and any(each.grad is not None for each in self._parameters.values())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the gradients of this rank alone; the first one after sums them all.

        All ranks make the same number of passes inside and outside.
        """
        before, self._accumulates = self._accumulates, True
        try:
            yield
        finally:
            self._accumulates = before

    def wait(self) -> bool:
        """Until all gradients of a step are summed, on all ranks alike; False if the step is skipped. Collective.

        The optimizer's `step` calls it, if it was not called before. Call it yourself where the sums are looked at
        before: to clip gradients, and before `scaler.unscale_` or `scaler.step`.
        A parameter without a gradient on this rank counts as zero there; its `grad` is the sum then. Called again
        before the optimizer's step, it does nothing. After a step that is skipped all `grad` are None, or, with a
        scaler, NaN, by which the scaler knows. The optimizer's step may be left out then, but by a rank that makes no
        gradient at all in the next one. Raises NonFiniteError, and what else a call raises; ValueError for a parameter
        that was not there when the model was attached.
        """
        if self._summed and not self._scaler_has_left_it_out():
            return self._took_effect
        self._require_no_new_parameters()
        self._require_unchanged()
        frozen = [name for name, each in self._parameters.items() if not each.requires_grad]
        self.reducer.mark = mark_of(frozen)
        self._start_the_rest()
        self._started.clear()
        self._summed = self._holds_unsummed = False  # until it has succeeded
        try:
            self.reducer.wait()
        except NonFiniteError:
            if self._nonfinite == "raise":
                raise
            self.skipped += 1
            self._summed, self._took_effect = True, False
            self._invalidate_gradients()
            return False
        sums = {name: each.grad for name, each in self._parameters.items() if each.requires_grad}
        torch.autograd.graph.increment_version(list(sums.values()))  # autograd knows that they have changed
        self._sums = {name: (each, each._version) for name, each in sums.items()}
        self._summed = self._took_effect = True
        return True

    def _require_unchanged(self) -> None:
        """ValueError if a gradient that has been given to its sum is another one now."""
        for name, (gradient, version) in self._started.items():
            now = self._parameters[name].grad
            if now is None:
                why = (
                    f"zero_grad() between backward and step: the gradient of {name!r} is gone; call it before backward"
                )
            elif now is not gradient or version not in (None, now._version):
                why = (
                    f"the gradient of {name!r} was changed after backward(), before its sum was there: call wait() "
                    "before gradients are clipped, scaled, or changed otherwise"
                )
            else:
                continue
            self.discard()
            raise ValueError(why)

    def _scaler_has_left_it_out(self) -> bool:
        """Has the scaler left out the optimizer's step, since that is skipped, and its scale been updated since?"""
        return not self._took_effect and self._scale.has_changed

    def flush(self) -> None:
        """One more step of the optimizer with the exact sums of all residuals, which are then zero. Collective.

        Only parameters that are summed with /ef take part; afterwards no parameter has a `grad`. What is left of a
        parameter that is frozen is dropped. ValueError between a backward pass and its step, after which other ranks
        get a MismatchError.
        """
        if self._started or (self._summed and self._took_effect) or self._holds_gradients():
            raise ValueError("flush() between backward and the optimizer's step, expected after the step")
        self._summed = False
        self._scale.follow(self.reducer)
        sums = self.reducer.flush()
        for name, parameter in self._parameters.items():
            parameter.grad = None
            if name in sums and parameter.requires_grad:
                parameter.grad = tensor_of(sums[name]).to(parameter) / (self._scale.value or 1.0)
        mine = {id(each) for each in self._parameters.values()}
        every = [each for group in self._optimizer.param_groups for each in group["params"]]
        others = [(each, each.grad) for each in every if id(each) not in mine]  # of another model
        for parameter, _ in others:
            parameter.grad = None
        _flushing.add(self._optimizer)
        try:
            self._optimizer.step()
        finally:
            _flushing.discard(self._optimizer)
            for parameter, grad in others:
                parameter.grad = grad
        for parameter in self._parameters.values():
            parameter.grad = None

    def _start_the_rest(self) -> None:
        """What no backward pass has made since the last step: zeros, or what `no_sync` has added up."""
        if not self._started:
            self._scale.follow(self.reducer)
        for name in [name for name in self._parameters if name not in self._started]:
            parameter = self._parameters[name]
            if not parameter.requires_grad:  # frozen since: its `grad` is left alone
                self.reducer.start(name, array_of(torch.zeros_like(_like_gradient(parameter))))
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(_like_gradient(parameter))
            self._start(name, parameter)

    def _before_step(self, optimizer, args, kwargs) -> None:
        if optimizer in _flushing:
            return
        if any(callable(each) for each in (*args, *kwargs.values())):
            self.discard()
            raise ValueError("got a closure, which makes gradients within the step: they cannot be summed before it")
        if not self._summed and self._scale.scaler is not None:
            self.discard()
            raise Error("the scaler has used gradients that are not summed yet: call wait() before scaler.step()")
        took_effect = self.wait()
        self._summed, self._sums = False, {}  # no gradient is kept for longer than the optimizer keeps it
        if not took_effect and self._scale.scaler is not None:
            raise Error("this step is skipped on all ranks: leave it to scaler.step(optimizer), which knows by the NaN")

    def _invalidate_gradients(self) -> None:
        """No optimizer is to use them: None, or NaN where a scaler must see it."""
        for parameter in self._parameters.values():
            if self._scale.scaler is None or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.fill_(float("nan"))

    def _require_no_new_parameters(self) -> None:
        now = _parameters_of(self._model)
        if now == self._looked_through:
            return
        found = [(name, each) for name, each in self._model.named_parameters() if each.requires_grad]
        new = ", ".join(sorted(name for name, each in found if self._parameters.get(name) is not each))
        if new:
            self.discard()
            raise ValueError(f"parameters that were not there when the model was attached: {new}; attach it anew")
        self._looked_through = now

    # --- replicas and checkpoints ---

    def compare(self, *, buffers: bool = True) -> None:
        """ReplicaError, on every rank, if parameters or buffers of ranks differ; it names the first. Collective.

        buffers
            False: of parameters alone. Buffers such as the statistics of batch norm follow each rank's own data.
        """
        meet(self.reducer.failure_flags, f"compare({buffers})")
        compare(self._comm, tensors_of(self._model) if buffers else parameters_of(self._model))

    def state_dict(self) -> dict:
        """Residuals, counters and what codecs have learned, of this rank: tensors and plain values.

        `torch.load(..., weights_only=True)` reads them back.
        """
        return {"reducer": to_tensors(self.reducer.state_dict()), "scale": self._scale.value, "skipped": self.skipped}

    def load_state_dict(self, state: dict | list[dict]) -> None:
        """Go on from `state_dict()` of the same rules, rank and P; or, with another P, from those of all ranks.

        ValueError for what does not fit; then nothing has changed.
        """
        self.restore(self.checked(state))

    def checked(self, state: dict | list[dict]) -> tuple:
        """What `load_state_dict` takes, for `restore`; ValueError for what does not fit."""
        found, others = states_of_reducer(state, ("scale", "skipped"))
        scale, skipped = others["scale"], others["skipped"]
        self._scale.require_fit(scale)
        if isinstance(skipped, bool) or not isinstance(skipped, int) or skipped < 0:
            raise ValueError(f"state has skipped {skipped!r}, expected a number of steps")
        return self.reducer.checked(found), scale, skipped

    def restore(self, found: tuple) -> None:
        """Take over what `checked` has returned."""
        state, self._scale.value, self.skipped = found
        self.reducer.restore(state)
        self._summed = False

    @property
    def failure_flags(self):
        """As of a Reducer: so `gq.save` and `gq.load` take this."""
        return self.reducer.failure_flags

    def detach(self) -> None:
        """Remove all hooks and close the reducer: from now on gradients are not summed. Call it on all ranks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        trained.discard(self._model)
        release(self._optimizer, self.reducer)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_) -> None:
        self.detach()


def _like_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Laid out as PyTorch makes its gradients: in C order where a parameter has gaps."""
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    return parameter.detach() if dense else torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)


def _parameters_of(model) -> list[tuple[int, bool]]:
    """(identity, does it need a gradient?) of each: cheaper than their names."""
    every = (each for module in model.modules() for each in module._parameters.values())
    return [(id(each), each.requires_grad) for each in every if each is not None]

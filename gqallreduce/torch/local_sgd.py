"""Local SGD, DiLoCo and Streaming DiLoCo: ranks train by themselves, and now and then sum what has changed."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterator

import torch
from mpi4py import MPI

from gqallreduce.errors import Error, MismatchError
from gqallreduce.models.rules import assign, parse
from gqallreduce.runtime.arguments import integer
from gqallreduce.runtime.making import SECONDS, told
from gqallreduce.runtime.meeting import meet
from gqallreduce.torch.fragments import Fragment, divide
from gqallreduce.torch.options import (
    require_all_in,
    require_fields,
    require_free,
    require_known,
    require_model,
    require_optimizer,
    trained,
    warn_of_single_rank,
)
from gqallreduce.torch.replicas import broadcast, compare, described

OPTIONS = "average", "momentum", "momentum_correction"  # of a Reducer: changes are averaged, momentum is the outer one


def nesterov(parameters) -> torch.optim.Optimizer:
    """The outer optimizer of DiLoCo, with its published learning rate and momentum."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def mean(parameters) -> torch.optim.Optimizer:
    """The outer optimizer of local SGD: the outer parameters become the mean of the ranks' parameters."""
    return torch.optim.SGD(parameters, lr=1)


class LocalSGD:
    """Every `every` steps the change of the parameters is averaged over ranks, and an outer optimizer applies it.

        local = gqt.LocalSGD(model, inner, gqt.mean, every=10, rules="*=qsgd(bits=4)")
        for inputs, targets in batches:             # each rank its own
            inner.zero_grad()
            loss(model(inputs), targets).backward()
            local.step()                            # in place of inner.step()
        local.finish()                              # the model is the common one

    With delay=0 nothing is sent between two outer steps: the inner optimizer trains each rank's own parameters on its
    own data. An outer step takes the mean over ranks of (outer parameters - parameters), summed by the scheme of each
    tensor's rule, as the gradient of the outer parameters. These are alike on all ranks, bit for bit. What an encoding
    loses goes with /ef into the residual of the next outer step.
    Making one is collective: parameters and buffers become those of rank 0. Close it, or use it in a `with` statement.

    model
        torch.nn.Module; its parameters that need a gradient now take part; frozen later, they go back to the outer
        parameters. Buffers stay each rank's own, and parameters that need a gradient only later.
    inner
        the torch.optim.Optimizer of these parameters; what it keeps stays each rank's own.
    every
        H: inner steps between two outer steps of a tensor.
    rules
        as of gq.Reducer, matched with the names that `model.named_parameters()` has.
    outer
        parameters -> torch.optim.Optimizer of them; by default `nesterov`, that of DiLoCo. With `mean` an outer step is
        the mean of the ranks' models, local SGD, which is better in trainings of a few hundred steps.
    comm
        an mpi4py intracommunicator, default COMM_WORLD. `torch.distributed` is not needed.
    fragments
        the model's tensors are divided into so many parts, about equal in size, whose outer steps follow each other at
        equal distances: a part at a time is sent.
    delay
        inner steps between the start of a part's sum and its outer step; until then it travels while ranks train.
        At least 0, below `every`.
    keep
        how much of a rank's own parameters stays at an outer step: parameters become keep * own + (1 - keep) * outer.
    options
        bucket, clip, warmup, warmup_rules, compare_every, seed, timeout, ... as of gq.Reducer: steps are outer steps
        there, and what `clip` bounds is a change, not a gradient.
    Raises TypeError, ValueError; MismatchError if ranks have other models, rules or options.
    Cost: of each parameter a copy (outer parameter), a change, what the outer optimizer keeps, and with /ef two
    residuals.

    steps
        how many inner steps there were.
    fragments
        the parts of the model: `names`, and `reducer`, whose `stats` tell what their sums cost.

    With theta the outer parameters, theta_r those of rank r after H inner steps and C a codec with its residual:
    theta := outer(theta, mean over r of C(theta - theta_r)), theta_r := keep * theta_r + (1 - keep) * theta.

    Source: Douillard et al., "DiLoCo", arXiv 2311.08105, algorithm 1; Douillard et al., "Streaming DiLoCo", arXiv
    2501.18512, algorithm 2, where H, tau, alpha are every, delay, keep. Differences: sums are compressed with error
    feedback by any scheme of this package, where the paper sends 4-bit floats without; parts are consecutive tensors
    of about equal size, not strided layers; the first outer step of a part comes after its share of `every`, so that
    its first window is shorter. With the outer optimizer SGD(lr=1): local SGD, Stich, ICLR 2019.
    """

    def __init__(
        self, model, inner, outer: Callable = nesterov, *, every, rules, comm=None, fragments=1, delay=0, keep=0.0,
        **options,
    ):  # fmt: skip
        with told(comm, options.get("timeout", SECONDS)):
            require_model(model)
            require_optimizer(inner)
            if isinstance(outer, (type, torch.optim.Optimizer)) or not callable(outer):
                got = outer.__name__ if isinstance(outer, type) else type(outer).__name__
                raise TypeError(
                    f"outer: got {got}, expected a function that makes an optimizer, such as "
                    "lambda parameters: torch.optim.SGD(parameters, lr=1); rules are given by name"
                )
            self._model, self._inner, self._comm = model, inner, MPI.COMM_WORLD if comm is None else comm
            self.every, self._delay = integer("every", every), integer("delay", delay)
            number = integer("fragments", fragments)
            if self.every < 1:
                raise ValueError(f"every={every!r}, expected a number of inner steps, at least 1")
            if not 0 <= self._delay < self.every:
                raise ValueError(f"delay={delay!r}, expected 0 or more inner steps, fewer than every={every}")
            if not (isinstance(keep, (int, float)) and 0 <= keep < 1):
                raise ValueError(f"keep={keep!r}, expected a share of a rank's own parameters, from 0 to below 1")
            require_known(options, OPTIONS)
            parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
            require_all_in(inner, parameters)
            require_free(model)
            if not 1 <= number <= len(parameters):
                raise ValueError(f"fragments={fragments!r}, expected 1 to {len(parameters)}, the model's tensors")
            self.steps, self.fragments, self._hooks = 0, [], []
            self._steps_here = self._closed = self._shows_outer = False
            schemes = assign(parse(rules), parameters)
            warm = None
            if options.get("warmup") and options.get("warmup_rules") is not None:
                warm = assign(parse(options["warmup_rules"]), parameters)
            self._settings = {"every": self.every, "delay": self._delay, "keep": float(keep), "fragments": number}
        warn_of_single_rank(self._comm)
        try:
            for place, part in enumerate(divide(parameters, number)):
                own = _rules_of(part, schemes)
                if warm is not None:
                    options["warmup_rules"] = _rules_of(part, warm)
                due = (place + 1) * self.every // number % self.every
                self.fragments.append(Fragment(part, own, due, keep, outer, self._comm, options))
                self._register(self.fragments[-1])
            broadcast(self._comm, model)
            for fragment in self.fragments:
                fragment.take_over_parameters()
        except BaseException:
            self.close()
            raise
        trained.add(model)
        self._hooks.append(inner.register_step_post_hook(self._after_inner_step))

    def _register(self, part: Fragment) -> None:
        try:
            part.register((*self._settings.values(), *described(self._model)))
        except MismatchError as error:
            why = f"they have another model, other rules, or others of {', '.join(self._settings)}, options"
            raise MismatchError(error.field, error.ranks, why) from error

    def _after_inner_step(self, *_) -> None:
        """Of the inner optimizer, however it is called."""
        if not self._steps_here:
            raise Error(
                "the inner optimizer made a step by itself, so that nothing is summed: call local.step() instead"
            )

    def __repr__(self) -> str:
        return f"LocalSGD(every={self.every}, fragments={len(self.fragments)}, steps={self.steps})"

    def step(self, scaler: torch.amp.GradScaler | None = None) -> bool:
        """The inner optimizer's step, and the outer steps that are due after it; True if there was an outer step.

        scaler
            makes the inner step in place of the optimizer's own `step`; one that it skips counts all the same. Call its
            `update` afterwards.
        All ranks call it equally often. A rank that makes fewer steps is a TimeoutError on the others, or, if it calls
        `finish` meanwhile, a MismatchError on all.
        Raises NonFiniteError on all ranks if a change has a NaN or Inf, or leaves float32. Then the model has the outer
        parameters on all ranks, nothing is kept of that part's outer step, and the training can go on.
        """
        self._require_training("step()")
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise TypeError(f"scaler: got {type(scaler).__name__}, expected a torch.amp.GradScaler, or None")
        self._steps_here = True
        try:
            if scaler is None:
                self._inner.step()
            else:
                scaler.step(self._inner)
        finally:
            self._steps_here = False
        self.steps += 1
        for part in self.fragments:
            part.trained = True
        place = self.steps % self.every
        arriving = [
            each for each in self.fragments if each.under_way and place == (each.due + self._delay) % self.every
        ]
        due = [each for each in self.fragments if place == each.due]
        self._make_outer_steps(arriving, due, at_once=self._delay == 0)
        return bool(arriving) or (self._delay == 0 and bool(due))

    def _require_training(self, what: str) -> None:
        if self._closed or self._shows_outer:
            raise Error(f"{what} after close()" if self._closed else f"{what} within outer_model()")

    def _make_outer_steps(self, arriving: list[Fragment], due: list[Fragment], at_once: bool) -> None:
        """Start the sums of parts that are due, then make the outer steps of parts whose sums arrive.

        at_once: also wait for the sums of those that are due, and make their outer steps.

        A NonFiniteError is raised when all are done: then all ranks have made the same calls. The model has the outer
        parameters, of all parts, since a NaN spreads.
        """
        error = None
        for part in due:
            part.start(self.steps)
        for part in [*arriving, *due] if at_once else arriving:
            found = part.try_to_apply()
            error = error or found
        if error is not None:
            self.roll_back()
            raise error

    def finish(self) -> None:
        """The end of a training: the model has the outer parameters. Collective.

        First an outer step of each part that was trained since its last one, so that nothing of it is lost but that of
        parameters that were frozen since. Just after an outer step, and a second time, it changes nothing.
        """
        self._require_training("finish()")
        self._make_outer_steps([each for each in self.fragments if each.under_way], [], at_once=True)
        self._make_outer_steps([], [each for each in self.fragments if each.trained], at_once=True)
        self.roll_back()
        for part in self.fragments:
            part.trained = False

    # --- the outer parameters ---

    def outer_parameters(self) -> dict[str, torch.Tensor]:
        """name -> outer parameter, alike on all ranks. They are this object's own: read them only."""
        return {name: each for fragment in self.fragments for name, each in fragment.outer.items()}

    @contextlib.contextmanager
    def outer_model(self) -> Iterator[None]:
        """Within it the model has the outer parameters, as for an evaluation or a checkpoint of the common model."""
        if self._shows_outer:
            raise Error("outer_model() within outer_model()")
        own = {name: each.detach().clone() for fragment in self.fragments for name, each in fragment.inner.items()}
        self.roll_back()
        self._shows_outer = True
        try:
            yield
        finally:
            self._shows_outer = False
            for fragment in self.fragments:
                fragment.set(own)

    def roll_back(self) -> None:
        """The model's parameters become the outer ones: what this rank has trained since is dropped. Local."""
        for fragment in self.fragments:
            fragment.set(fragment.outer)

    def compare(self) -> None:
        """ReplicaError, on every rank, if outer parameters of ranks differ; it names the first. Collective."""
        meet(self.fragments[0].reducer.failure_flags, "compare()")
        compare(self._comm, self.outer_parameters())

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """Everything but the model and the inner optimizer: tensors and plain values, of this rank.

        Collective if sums are under way: they are waited for, and applied when they are due. Save the model and the
        inner optimizer of each rank beside it. `torch.load(..., weights_only=True)` reads it back. Raises as `step`.
        """
        self._settle()
        parts = [each.state_dict() for each in self.fragments]
        return {"steps": self.steps, "settings": dict(self._settings), "fragments": parts}

    def _settle(self) -> None:
        """Wait for the sums that are under way."""
        errors = [each.try_to_settle() for each in self.fragments]
        if error := next(filter(None, errors), None):
            self.roll_back()
            raise error

    def load_state_dict(self, state: dict | list[dict]) -> None:
        """Go on from `state_dict()` of the same arguments, rank and P; or, with another P, from those of all ranks.

        With those of all ranks the model's parameters become the outer ones: call it after loading the model.
        Collective if sums are under way; they are dropped. ValueError for what does not fit; then nothing has changed.
        """
        self._require_training("load_state_dict()")
        several = isinstance(state, (list, tuple))
        states = list(state) if several else [state]
        for each in states or [None]:
            require_fields(each, ("steps", "settings", "fragments"))
            if each["settings"] != self._settings:
                raise ValueError(f"state has {each['settings']}, expected {self._settings} as this object has")
            if isinstance(each["steps"], bool) or not isinstance(each["steps"], int) or each["steps"] < 0:
                raise ValueError(f"state has {each['steps']!r} steps, expected a number of inner steps")
            if not isinstance(each["fragments"], (list, tuple)) or len(each["fragments"]) != len(self.fragments):
                raise ValueError(f"state: expected {len(self.fragments)} fragments, as this object has")
        if len({each["steps"] for each in states}) > 1:
            raise ValueError(f"states of ranks differ in steps: {[each['steps'] for each in states]}")
        for fragment in self.fragments:
            fragment.settle()
        found = []
        for number, fragment in enumerate(self.fragments):
            of_ranks = [each["fragments"][number] for each in states]
            found.append(fragment.checked(of_ranks, several))
        for fragment, each in zip(self.fragments, found, strict=True):
            fragment.restore(each)
        self.steps = states[0]["steps"]
        if several:
            self.roll_back()
            for fragment in self.fragments:
                fragment.trained = False

    # --- the end of an object ---

    def close(self) -> None:
        """No outer steps any more; what is under way is dropped. Close it on all ranks, after the same step.

        The model keeps this rank's own parameters: call `finish` before, or `roll_back`.
        """
        if self._hooks:
            trained.discard(self._model)
        self._closed = True
        while self._hooks:
            self._hooks.pop().remove()
        for fragment in self.fragments:
            fragment.close()

    def __enter__(self) -> LocalSGD:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _rules_of(part: dict, schemes: dict[str, str]) -> dict[str, str]:
    """Rules that give each tensor of a part its own scheme, by name."""
    return {glob.escape(name): schemes[name] for name in part}

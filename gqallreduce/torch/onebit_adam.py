"""Adam whose variance is frozen after some exact steps, so that what ranks sum, its momentum, can be compressed."""

from __future__ import annotations

import math

import torch

from gqallreduce.errors import Error

_STATE = {"step", "summed", "momentum", "variance", "updates", "mean", "divisor"}  # of a parameter


class OneBitAdam(torch.optim.Optimizer):
    """For a model that is attached with it: `attach` sums momenta, exactly for `warmup` steps, then by the rules given.

    Parameters of float32, or of float64 in host memory.

        optimizer = gqt.OneBitAdam(model.parameters(), lr=1e-3, warmup=100)
        attached = gqt.attach(model, optimizer, "*.bias=raw; *=onebit/ef")

    Adam divides by the root of the mean of squared gradients, which the error of a compressed sum falsifies. After the
    warm-up the variance does not change any more, and the step is linear in the momentum, so that errors that are fed
    back cancel. Any scheme may be given, with /ef if it is biased.
    Source: Tang et al., 1-bit Adam, ICML 2021, algorithm 1; differs: with the bias corrections of Adam (Kingma and Ba,
    ICLR 2015, algorithm 1), that of the variance as it is at the end of the warm-up; weight decay as AdamW's; an
    element whose variance is zero at the end of the warm-up gets the mean of its tensor's, a tensor that of all others.

    lr, betas, eps, weight_decay
        as of torch.optim.AdamW; betas are the same for all parameters.
    warmup
        exact steps, 1 or more: 15 to 20 % of all steps in the paper, at least until the variance has settled.
    """

    _copied = ("warmup",)

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, warmup):
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}, expected a number from 0 on")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas!r}, expected two numbers from 0 to below 1")
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 1:
            raise ValueError(f"warmup={warmup!r}, expected a whole number of steps, 1 or more")
        self.warmup, self.reducer = warmup, None
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @property
    def reducer_options(self) -> dict:
        """What `attach` sums for this optimizer. ValueError if groups of parameters differ in betas."""
        betas = {tuple(group["betas"]) for group in self.param_groups}
        if len(betas) > 1:
            raise ValueError(f"groups of parameters have the betas {sorted(betas)}, expected the same for all")
        return {"momentum": min(betas)[0], "warmup": self.warmup}

    def set_reducer(self, reducer) -> None:
        """Set the Reducer that sums the gradients; None: none any more."""
        self.reducer = reducer

    def __getstate__(self) -> dict:
        """Of a copy, with which no model is attached."""
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self._copied}, "reducer": None}

    def load_state_dict(self, state_dict: dict) -> None:
        """ValueError for that of another optimizer, whose moments this one does not use."""
        for each in state_dict["state"].values():
            if other := sorted(set(each) - _STATE):
                got, kind = ", ".join(map(str, other)), type(self).__name__
                raise ValueError(f"got the state of another optimizer, with {got}; expected that of a {kind}")
        super().load_state_dict(state_dict)

    def is_exact(self, step: int) -> bool:
        """Is a step, counted from 1, summed exactly, so that the variance is updated?"""
        return step <= self.warmup

    @property
    def last_exact(self) -> int | None:
        """The step after which none is exact; None if there is no such."""
        return self.warmup

    @torch.no_grad()
    def step(self, closure=None):
        """One step; `grad` of each parameter is the momentum m = beta1 m + g. `closure` has to be None."""
        if closure is not None:
            raise ValueError("got a closure, which makes gradients within the step: they cannot be summed before it")
        if self.reducer is None:
            raise Error("no model is attached with this optimizer, so that grad is no momentum: gqt.attach(model, ...)")
        summed, beta1 = self.reducer.contributions.options[1], {group["betas"][0] for group in self.param_groups}
        if beta1 != {summed}:
            raise ValueError(f"groups have beta1 {sorted(beta1)}, expected {summed}, of which momenta are summed")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        if self.is_exact(self.reducer.stats.steps):
            self._fill_tensors_without_variance()

    def _fill_tensors_without_variance(self) -> None:
        """Whose gradients were zero until now: they have the mean variance of all others."""
        found = [state for state in self.state.values() if "divisor" in state]
        known = [state for state in found if state["mean"] > 0]
        total = sum(state["divisor"].numel() for state in known)
        mean = sum(state["mean"] * state["divisor"].numel() for state in known) / total if known else 1.0
        for state in found:
            if not state["mean"]:
                state["divisor"].fill_(math.sqrt(mean))

    def _update(self, parameter: torch.Tensor, group: dict) -> None:
        state, momentum, (beta1, _) = self.state[parameter], parameter.grad, group["betas"]
        summed = self.reducer.stats.steps
        if state.get("summed") != summed:  # else these are residuals that were flushed
            self._follow(momentum, state, group, summed)
        if "divisor" not in state:
            raise ValueError(f"no variance is known at step {summed}: load the state of the optimizer too")
        step = state["step"]
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(momentum, state["divisor"], value=-group["lr"] * (1 - beta1) / (1 - beta1**step))

    def _follow(self, momentum: torch.Tensor, state: dict, group: dict, summed: int) -> None:
        """A new momentum has come, of this step: the variance is updated if it was summed exactly.

        Not if the optimizer left out the step before, whose momentum would have to be known.
        """
        last, has_momentum = self.last_exact, state.get("summed", 0) == summed - 1
        state["step"], state["summed"] = state.get("step", 0) + 1, summed
        if self.is_exact(summed) and (has_momentum or "variance" not in state):
            self._learn_variance(momentum, state, group)
        if last is None or summed < last:
            _keep(state, "momentum", momentum)
        else:
            state.pop("momentum", None)
            state.pop("variance", None)

    @staticmethod
    def _learn_variance(momentum: torch.Tensor, state: dict, group: dict) -> None:
        """By the summed gradient, which is the change of the momentum; and what steps are divided by from now on."""
        beta1, beta2 = group["betas"]
        gradient = torch.sub(momentum, state["momentum"], alpha=beta1) if "momentum" in state else momentum
        if "variance" not in state:
            state["variance"] = torch.zeros_like(momentum)
        variance = state["variance"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["updates"] = state.get("updates", 0) + 1
        divisor = _keep(state, "divisor", variance).div_(1 - beta2 ** state["updates"])
        state["mean"] = divisor.mean().item()
        if not divisor.numel() or not divisor.min() > 0:
            divisor.masked_fill_(divisor == 0, state["mean"])  # of elements whose momentum is zero until now
        divisor.sqrt_().add_(group["eps"])


def _keep(state: dict, name: str, values: torch.Tensor) -> torch.Tensor:
    """A copy of the values, where the last one was."""
    if name in state:
        return state[name].copy_(values)
    state[name] = values.clone()
    return state[name]


class ZeroOneAdam(OneBitAdam):
    """The same with a variance that is updated more and more rarely, in few exact steps, spread over the training.

    After the k-th of these steps, k = 0, 1, ..., the next one comes 2^floor(k / interval) steps later: each step at
    first, then each second, each fourth. All others are summed by the rules of `attach`.
    Source: Lu et al., 0/1 Adam, ICLR 2023, algorithm 1 with its policy for the variance (section 6); differs: no local
    steps between sums, so that replicas are alike after each; momentum is fed back as in 1-bit Adam, bias corrections
    and weight decay as of OneBitAdam.

    interval
        steps until the distance doubles: 16 in the paper.
    freeze
        no step after this one is exact; None: there are always some.
    """

    _copied = ("warmup", "interval", "freeze", "_next", "_count", "_exact")

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, interval=16, freeze=None
    ):  # fmt: skip
        for name, value in {"interval": interval, "freeze": 1 if freeze is None else freeze}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}, expected a whole number of steps, 1 or more")
        self.interval, self.freeze = interval, freeze
        self._next, self._count, self._exact = 1, 0, set()
        super().__init__(params, lr, betas, eps, weight_decay, warmup=interval)

    @property
    def reducer_options(self) -> dict:
        return {**super().reducer_options, "warmup": self.is_exact}

    def is_exact(self, step: int) -> bool:
        while self._next <= step and (self.freeze is None or self._next <= self.freeze):
            self._exact.add(self._next)
            self._next += 2 ** (self._count // self.interval)
            self._count += 1
        return step in self._exact

    @property
    def last_exact(self) -> int | None:
        if self.freeze is None:
            return None
        self.is_exact(self.freeze)
        return max(self._exact)

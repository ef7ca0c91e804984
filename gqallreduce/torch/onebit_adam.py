"""Adam whose variance is frozen after some exact steps, so that what ranks sum, its momentum, can be compressed."""

from __future__ import annotations

import math

import torch


class OneBitAdam(torch.optim.Optimizer):
    """For a model that is attached with it: `attach` sums momenta, exactly for `warmup` steps, then by the rules given.

        optimizer = gqt.OneBitAdam(model.parameters(), lr=1e-3, warmup=100)
        attached = gqt.attach(model, optimizer, "*.bias=raw; *=onebit/ef")

    Adam divides by the root of the mean of squared gradients, which the error of a compressed sum falsifies. After the
    warm-up the variance does not change any more, and the step is linear in the momentum, so that errors that are fed
    back cancel. Any scheme may be given, with /ef if it is biased.
    Source: Tang et al., 1-bit Adam, ICML 2021, algorithm 1; differs: with the bias corrections of Adam (Kingma and Ba,
    ICLR 2015, algorithm 1), that of the variance as it is at the end of the warm-up; weight decay as AdamW's; an
    element whose variance is zero at the end of the warm-up gets the mean of its tensor's.

    lr, betas, eps, weight_decay
        as of torch.optim.AdamW; betas are the same for all parameters.
    warmup
        exact steps, 1 or more: 15 to 20 % of all steps in the paper, at least until the variance has settled.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, *, warmup):
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}, expected a number from 0 on")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas!r}, expected two numbers from 0 to below 1")
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 1:
            raise ValueError(f"warmup={warmup!r}, expected a number of steps, 1 or more")
        self.warmup = warmup
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @property
    def reducer_options(self) -> dict:
        """What `attach` sums for this optimizer. ValueError if groups of parameters differ in betas."""
        betas = {tuple(group["betas"]) for group in self.param_groups}
        if len(betas) > 1:
            raise ValueError(f"groups of parameters have the betas {sorted(betas)}, expected the same for all")
        return {"momentum": min(betas)[0], "warmup": self.warmup}

    @torch.no_grad()
    def step(self, closure=None):
        """One step; `grad` of each parameter is the momentum m = beta1 m + g. `closure` has to be None."""
        if closure is not None:
            raise ValueError("got a closure, which makes gradients within the step: they cannot be summed before it")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        step = state["step"] = state.get("step", 0) + 1
        if step <= self.warmup:
            self._learn_variance(parameter.grad, state, beta1, beta2)
        correction = 1.0 if step > self.warmup else 1 - beta2**step
        divisor = (state["variance"] / correction).sqrt_().add_(group["eps"])
        if step == self.warmup:
            self._freeze_variance(state, correction)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(parameter.grad, divisor, value=-group["lr"] * (1 - beta1) / (1 - beta1**step))

    @staticmethod
    def _learn_variance(momentum: torch.Tensor, state: dict, beta1: float, beta2: float) -> None:
        """By the summed gradient, which is the change of the momentum."""
        gradient = momentum.clone()
        if "momentum" in state:
            gradient.sub_(state["momentum"], alpha=beta1)
        else:
            state["variance"] = torch.zeros_like(momentum)
        state["momentum"] = momentum.clone()
        state["variance"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)

    @staticmethod
    def _freeze_variance(state: dict, correction: float) -> None:
        """As it is, its bias corrected; the momentum of before is not needed any more."""
        del state["momentum"]
        variance = state["variance"].div_(correction)
        variance.masked_fill_(variance == 0, variance.mean().item())

"""Optimizers, with what each wants summed: plain gradients, or momenta; at once by the rules, or after exact steps."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gqallreduce.torch import OneBitAdam, ZeroOneAdam

BETA = 0.9


@dataclass(frozen=True)
class Recipe:
    """plain: the optimizer that it is with exact sums; rate: the learning rate.

    make(parameters, rate, warmup) -> optimizer; options(warmup) -> of a Reducer.
    """

    plain: str
    rate: float
    make: Callable
    options: Callable = field(default=lambda warmup: {})

    @property
    def warms_up(self) -> bool:
        """True if gradients of the first steps are summed by other rules than the rest."""
        return "warmup" in self.options(1)


def _adamw(parameters, rate, warmup):
    return torch.optim.AdamW(parameters, rate, weight_decay=0.0)


def _onebit_adam(parameters, rate, warmup):
    return OneBitAdam(parameters, rate, warmup=warmup)


def _zero_one_adam(parameters, rate, warmup):
    return ZeroOneAdam(parameters, rate)


def _sgd(parameters, rate, warmup):
    return torch.optim.SGD(parameters, rate)


def _sgd_with_momentum(parameters, rate, warmup):
    return torch.optim.SGD(parameters, rate, momentum=BETA)


def _adagrad(parameters, rate, warmup):
    return torch.optim.Adagrad(parameters, rate)


RECIPES = {
    "adamw": Recipe("adamw", 1e-3, _adamw),
    "adamw_warmup": Recipe("adamw", 1e-3, _adamw, lambda warmup: {"warmup": warmup}),
    "onebit_adam": Recipe("adamw", 1e-3, _onebit_adam),
    "zero_one_adam": Recipe("adamw", 1e-3, _zero_one_adam),
    "sgd": Recipe("sgd", 0.1, _sgd_with_momentum),
    "sgd_warmup": Recipe("sgd", 0.1, _sgd_with_momentum, lambda warmup: {"warmup": warmup}),
    "sgd_summed": Recipe("sgd", 0.1, _sgd, lambda warmup: {"momentum": BETA}),
    "sgd_summed_warmup": Recipe("sgd", 0.1, _sgd, lambda warmup: {"momentum": BETA, "warmup": warmup}),
    "sgd_corrected": Recipe("sgd", 0.1, _sgd, lambda warmup: {"momentum_correction": BETA}),
    "adagrad": Recipe("adagrad", 0.01, _adagrad),
}

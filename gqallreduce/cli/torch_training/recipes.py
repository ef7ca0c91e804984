"""Optimizers, with what each wants summed: plain gradients, or momenta; at once by the rules, or after exact steps."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gqallreduce.torch import OneBitAdam, ZeroOneAdam

BETA = 0.9


@dataclass(frozen=True)
class Recipe:
    """plain: the optimizer that it is with exact sums.

    make(parameters, rate, warmup) -> optimizer; options(warmup) -> of a Reducer.
    """

    plain: str
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


RECIPES = {  # of those in command.RATES
    "adamw": Recipe("adamw", _adamw),
    "adamw_warmup": Recipe("adamw", _adamw, lambda warmup: {"warmup": warmup}),
    "onebit_adam": Recipe("adamw", _onebit_adam),
    "zero_one_adam": Recipe("adamw", _zero_one_adam),
    "sgd": Recipe("sgd", _sgd_with_momentum),
    "sgd_warmup": Recipe("sgd", _sgd_with_momentum, lambda warmup: {"warmup": warmup}),
    "sgd_summed": Recipe("sgd", _sgd, lambda warmup: {"momentum": BETA}),
    "sgd_summed_warmup": Recipe("sgd", _sgd, lambda warmup: {"momentum": BETA, "warmup": warmup}),
    "sgd_corrected": Recipe("sgd", _sgd, lambda warmup: {"momentum_correction": BETA}),
    "adagrad": Recipe("adagrad", _adagrad),
}

"""What an optimizer needs of the Reducer that sums for it."""

from __future__ import annotations

import inspect

import torch

from gqallreduce.models.reducer import Reducer

KNOWN = [name for name in inspect.signature(Reducer).parameters if name not in ("rules", "comm")]


def require_optimizer(optimizer) -> None:
    """TypeError for what is none."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")


def reducer_for(optimizer, rules, comm, options: dict) -> Reducer:
    """A Reducer with these options and those that the optimizer needs, of which that is told.

    TypeError for an unknown option; ValueError for one that the optimizer needs otherwise.
    """
    for name in options:
        if name not in KNOWN:
            raise TypeError(f"unknown option {name!r}; known: {', '.join(KNOWN)}")
    needed, kind = getattr(optimizer, "reducer_options", {}), type(optimizer).__name__
    for name, value in needed.items():
        if name in options and callable(value):
            raise ValueError(f"got {name}={options[name]!r}; {kind} chooses those steps itself, leave {name} out")
        if options.get(name, value) != value:
            got = f"{name}={options[name]!r}"
            raise ValueError(f"got {got}, expected {name}={value!r} as the {kind} has it; leave {name} out")
    reducer = Reducer(rules, comm=comm, **{**needed, **options})
    tell(optimizer, reducer)
    return reducer


def tell(optimizer, reducer: Reducer | None) -> None:
    """Tell an optimizer that has `sums_by` which Reducer sums its gradients; None: no sums from now on."""
    if hasattr(optimizer, "sums_by"):
        optimizer.sums_by(reducer)

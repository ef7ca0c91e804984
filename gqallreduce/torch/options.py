"""What an optimizer needs of the Reducer that sums for it."""

from __future__ import annotations

import inspect

import torch

from gqallreduce.models.reducer import Reducer

KNOWN = [name for name in inspect.signature(Reducer).parameters if name not in ("rules", "comm")]


def require_model(model) -> None:
    """TypeError for what is no model, or sums by itself."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError("model: got DistributedDataParallel, which sums by itself; use HookState, or give its .module")


def require_optimizer(optimizer) -> None:
    """TypeError for what is none."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")


def require_known(options: dict, other: tuple[str, ...] = ()) -> None:
    """TypeError for an option that a Reducer has not, or that is one of the others."""
    known = [name for name in KNOWN if name not in other]
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name!r}; known: {', '.join(known)}")


def reducer_for(optimizer, rules, comm, options: dict) -> Reducer:
    """A Reducer with these options and those that the optimizer needs, of which that is told.

    TypeError for an unknown option; ValueError for one that the optimizer needs otherwise.
    """
    require_known(options)
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

"""What an optimizer needs of the Reducer that sums for it."""

from __future__ import annotations

import inspect
import os
import warnings
import weakref

import torch

from gqallreduce.hashing import hash64
from gqallreduce.models.reducer import Reducer
from gqallreduce.runtime.making import SECONDS, told
from gqallreduce.torch.tensors import from_tensors

trained: weakref.WeakSet = weakref.WeakSet()  # models whose gradients or changes are summed; not their copies
MARKS = 1 << 24  # numbers that a float32 tells apart
KNOWN = [name for name in inspect.signature(Reducer).parameters if name not in ("rules", "comm")]


def require_model(model) -> None:
    """TypeError for what is no model, or sums by itself."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, expected a torch.nn.Module")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError("model: got DistributedDataParallel, which sums by itself; use HookState, or give its .module")


def require_free(model) -> None:
    """ValueError for a model whose gradients, or changes, are summed already."""
    if model in trained:
        raise ValueError("this model is attached already, or trained by LocalSGD, or has a HookState: end that first")


def warn_of_single_rank(comm) -> None:
    """Where torchrun has started several processes, each of which is an MPI job of its own."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if comm.size == 1 and processes.isdigit() and int(processes) > 1:
        why = "one rank, so that nothing is summed: start the program by mpirun or srun; torchrun does not start MPI"
        warnings.warn(f"WORLD_SIZE is {processes}, but MPI has {why}", stacklevel=5)


def require_all_in(optimizer, parameters: dict[str, torch.Tensor]) -> None:
    """ValueError for parameters that an optimizer does not have, or none at all."""
    optimized = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if left := [name for name, each in parameters.items() if id(each) not in optimized]:
        names = ", ".join(left)
        raise ValueError(f"the optimizer lacks {names}, so that nothing uses their sums: freeze them, or add them")
    if not parameters:
        raise ValueError("got a model without parameters that need a gradient")


def require_optimizer(optimizer) -> None:
    """TypeError for what is none."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: got {type(optimizer).__name__}, expected a torch.optim.Optimizer")


def mark_of(frozen: list[str], steps: int = 0) -> int:
    """What ranks compare at the end of a step: which parameters need no gradient any more, and a number of steps."""
    return (hash64(*frozen) * bool(frozen) + steps) % MARKS


def settings_of(optimizer) -> tuple[str, ...]:
    """The options of each group of parameters: what ranks must have alike, so that they make the same steps."""
    return tuple(
        repr([(name, _plain(value)) for name, value in sorted(group.items())]) for group in optimizer.param_groups
    )


def _plain(value):
    """What is alike on ranks that have the same: of parameters their number, of an object its type."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return len(value)
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


def require_fields(state, names: tuple[str, ...]) -> None:
    """ValueError for a state that has not just these."""
    if not isinstance(state, dict) or state.keys() != set(names):
        got = f"keys {sorted(map(str, state))}" if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"state: got {got}, expected what state_dict() returns: {', '.join(names)}")


def states_of_reducer(state, others: tuple[str, ...]) -> tuple:
    """(what `Reducer.checked` takes, {name: value} of the other fields) of a state, or of a list of those of all ranks.

    ValueError for other fields than these and "reducer", or if ranks have other values of them.
    """
    several = isinstance(state, (list, tuple))
    states = list(state) if several else [state]
    for each in states or [None]:
        require_fields(each, ("reducer", *others))
    values = {name: states[0][name] for name in others}
    for name, value in values.items():
        if any(each[name] != value for each in states):
            raise ValueError(f"states have {name} {[each[name] for each in states]}, expected one for all ranks")
    found = [from_tensors(each["reducer"]) for each in states]
    return found if several else found[0], values


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
    with told(comm, options.get("timeout", SECONDS)):
        require_known(options)
        if hasattr(optimizer, "set_reducer") and optimizer.reducer is not None:
            raise ValueError("this optimizer has the sums of another model: detach that, or give each model its own")
        needed, kind = getattr(optimizer, "reducer_options", {}), type(optimizer).__name__
        for name, value in needed.items():
            if name in options and callable(value):
                raise ValueError(f"got {name}={options[name]!r}; {kind} chooses those steps itself, leave {name} out")
            if options.get(name, value) != value:
                got = f"{name}={options[name]!r}"
                raise ValueError(f"got {got}, expected {name}={value!r} as the {kind} has it; leave {name} out")
    options = {**needed, **options}
    if options.get("momentum") and any(group.get("momentum") for group in optimizer.param_groups):
        why = f"momentum={options['momentum']!r} is in the sums, and {kind} has one too: give {kind} momentum=0"
        warnings.warn(why, stacklevel=4)
    warn_of_single_rank(comm)
    reducer = Reducer(rules, comm=comm, **options)
    _tell(optimizer, reducer)
    return reducer


def release(optimizer, reducer: Reducer) -> None:
    """The end of what `reducer_for` has made for this optimizer, on all ranks."""
    _tell(optimizer, None)
    reducer.close()


def _tell(optimizer, reducer: Reducer | None) -> None:
    """Tell an optimizer that has `set_reducer`, and keeps it in `reducer`, which Reducer sums its gradients."""
    if hasattr(optimizer, "set_reducer"):
        optimizer.set_reducer(reducer)

"""The parameters and buffers of a model on all ranks: made alike, and compared."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from gqallreduce.errors import Error, ReplicaError
from gqallreduce.hashing import checksum
from gqallreduce.transport.failure import naming_errors


def broadcast(comm, model: torch.nn.Module) -> None:
    """Parameters and buffers become those of rank 0. Collective; ranks have compared what `described` says of them."""
    for tensor in tensors_of(model).values():
        if not tensor.numel():
            continue
        content, distinct = _bytes(tensor), _distinct(tensor)
        with naming_errors("the broadcast of a model", comm):
            comm.Bcast(content, 0)
        if comm.rank:
            received = torch.from_numpy(content).view(tensor.dtype).reshape(tensor.shape)
            with torch.no_grad():
                tensor[distinct].copy_(received[distinct])


def compare(comm, tensors: dict[str, torch.Tensor]) -> None:
    """ReplicaError on every rank if ranks differ. Collective."""
    mine, problem = {}, None
    try:
        for name, each in tensors.items():
            mine[name] = tuple(each.shape), str(each.dtype), checksum(_bytes(each).tobytes())
    except Exception as error:
        problem = f"{name!r}: {type(error).__name__}: {error}"
    with naming_errors("compare()", comm):
        everyone, problems = zip(*comm.allgather((mine, problem)), strict=True)
    for rank, each in enumerate(problems):
        if each is not None:
            raise Error(f"rank {rank} could not compare {each}")
    for name in dict.fromkeys(itertools.chain(*everyone)):
        found = [each.get(name) for each in everyone]
        differing = [rank for rank, each in enumerate(found) if each != found[0]]
        if differing:
            raise ReplicaError(
                f"{name!r} of ranks {differing} differs from rank 0's; have all ranks the same state of the optimizer, "
                "and did they change parameters by the same sums?"
            )


def require_copied(model: torch.nn.Module) -> None:
    """ValueError for a parameter or buffer whose elements `broadcast` cannot send."""
    for name, each in tensors_of(model).items():
        if each.layout != torch.strided:
            raise ValueError(
                f"{name!r} is sparse, expected dense parameters and buffers: a sparse one cannot be made alike"
            )


def described(model: torch.nn.Module) -> tuple[str, ...]:
    """Of each parameter and buffer, its name, shape and dtype: what ranks must have alike."""
    return tuple(f"{name} {tuple(each.shape)} {each.dtype}" for name, each in tensors_of(model).items())


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters and buffers, by name."""
    return {**parameters_of(model), **{name: tensor.detach() for name, tensor in model.named_buffers()}}


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters alone."""
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


def _distinct(tensor: torch.Tensor) -> tuple[slice, ...]:
    """The part of an expanded tensor whose elements share no memory; all of another one."""
    return tuple(slice(None, None if stride else 1) for stride in tensor.stride())


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """A copy of its elements in C order."""
    return tensor.contiguous().cpu().reshape(-1).clone().view(torch.uint8).numpy()

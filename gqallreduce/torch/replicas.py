"""The parameters and buffers of a model on all ranks: made alike, and compared."""

from __future__ import annotations

import numpy as np
import torch

from gqallreduce.errors import ReplicaError
from gqallreduce.hashing import checksum
from gqallreduce.transport.failure import naming_errors


def broadcast(comm, model: torch.nn.Module) -> None:
    """Parameters and buffers become those of rank 0. Collective; ranks have compared what `described` says of them."""
    for tensor in tensors_of(model).values():
        if not tensor.numel():
            continue
        content = _bytes(tensor)
        with naming_errors("the broadcast of a model", comm):
            comm.Bcast(content, 0)
        if comm.rank:
            with torch.no_grad():
                tensor.copy_(torch.from_numpy(content).view(tensor.dtype).reshape(tensor.shape))


def compare(comm, tensors: dict[str, torch.Tensor]) -> None:
    """ReplicaError on every rank if ranks differ. Collective."""
    with naming_errors("compare()", comm):
        everyone = comm.allgather({name: checksum(_bytes(tensor).tobytes()) for name, tensor in tensors.items()})
    for name in everyone[0]:
        found = [each.get(name) for each in everyone]
        differing = [rank for rank, each in enumerate(found) if each != found[0]]
        if differing:
            raise ReplicaError(f"{name!r} of ranks {differing} differs from rank 0's")


def described(model: torch.nn.Module) -> tuple[str, ...]:
    """Of each parameter and buffer, its name, shape and dtype: what ranks must have alike."""
    return tuple(f"{name} {tuple(each.shape)} {each.dtype}" for name, each in tensors_of(model).items())


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters and buffers, by name."""
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """A copy of its elements in C order."""
    return tensor.contiguous().cpu().reshape(-1).clone().view(torch.uint8).numpy()

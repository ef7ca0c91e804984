"""PyTorch's tensors as arrays, and arrays in states as tensors."""

from __future__ import annotations

import numpy as np
import torch


def array_of(tensor: torch.Tensor):
    """A tensor's own memory as a NumPy array; the tensor itself where NumPy cannot show that."""
    if tensor.device.type == "cpu" and tensor.dtype != torch.bfloat16:
        return tensor.detach().numpy()
    return tensor.detach()


def tensor_of(array) -> torch.Tensor:
    """A NumPy array, or one on a GPU that has DLPack, as a tensor of the same memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def to_tensors(state):
    """A state with a tensor in place of each array."""
    if isinstance(state, dict):
        return {key: to_tensors(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(to_tensors(value) for value in state)
    if isinstance(state, np.ndarray):
        return torch.from_numpy(np.array(state))  # a copy
    return state.item() if isinstance(state, np.generic) else state


def from_tensors(state):
    """The reverse."""
    if isinstance(state, dict):
        return {key: from_tensors(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(from_tensors(value) for value in state)
    return state.detach().cpu().numpy() if isinstance(state, torch.Tensor) else state

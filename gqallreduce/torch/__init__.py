"""Training with PyTorch: `attach` sums the gradients of a model while its backward pass goes on. Extra `[torch]`.

import gqallreduce.torch as gqt

attached = gqt.attach(model, optimizer, "*.bias=raw; *=qsgd(bits=4)")
loss.backward()      # sums begin as gradients are made
optimizer.step()     # waits for them first
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"gqallreduce.torch needs PyTorch: pip install 'gqallreduce[torch]' ({error})") from error

from gqallreduce.torch.attached import Attached, attach
from gqallreduce.torch.ddp import HookState, comm_hook
from gqallreduce.torch.local_sgd import LocalSGD, mean, nesterov
from gqallreduce.torch.onebit_adam import OneBitAdam, ZeroOneAdam

__all__ = ["Attached", "HookState", "LocalSGD", "OneBitAdam", "ZeroOneAdam", "attach", "comm_hook", "mean", "nesterov"]

"""A small model in PyTorch, and a training as a user would write it. On a GPU with GQALLREDUCE_TEST_DEVICE=cuda."""

import os

import pytest
from ranks import TIMEOUT

torch = pytest.importorskip("torch", reason="torch is not installed (pip install '.[torch]')")
gqt = pytest.importorskip("gqallreduce.torch")

DEVICE = "cuda" if os.environ.get("GQALLREDUCE_TEST_DEVICE") == "cuda" else "cpu"
if DEVICE == "cuda":
    torch.set_default_device(DEVICE)
RULES = "*.bias=ring/raw; *=direct/onebit/ef"


class Net(torch.nn.Module):
    """Two layers, buffers, a frozen layer and, if so asked, a layer that is not always used, and shared weights."""

    def __init__(self, extra=False, tied=False):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 8)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.extra = torch.nn.Linear(8, 8) if extra else None
        if tied:
            self.second.weight = torch.nn.Parameter(torch.zeros(8, 8))
            self.third = torch.nn.Linear(8, 8)
            self.third.weight = self.second.weight

    def forward(self, x, use_extra=True):
        x = self.second(torch.relu(self.norm(self.first(x)))) + self.frozen(torch.ones(8))
        if self.extra is not None and use_extra:
            x = x + self.extra(x)
        return self.third(x) if hasattr(self, "third") else x


def torch_linear():
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


def make(comm, rules=RULES, model=None, optimizer=None, **options):
    torch.manual_seed(comm.rank)  # attach makes the start alike
    model = Net() if model is None else model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) if optimizer is None else optimizer(model)
    return model, optimizer, gqt.attach(model, optimizer, rules, comm=comm, timeout=TIMEOUT, **options)


def batch(comm, step, rank=None):
    generator = torch.Generator().manual_seed(1000 * step + (comm.rank if rank is None else rank))
    drawn = [torch.randn(12, size, generator=generator, device="cpu") for size in (6, 8)]  # alike on all devices
    return tuple(each.to(DEVICE) for each in drawn)


def loss_of(model, x, y, **options):
    return torch.nn.functional.mse_loss(model(x, **options), y)


def train(comm, model, optimizer, steps):
    """As a user would, on this rank's batches."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        optimizer.step()


def train_scaled(comm, model, optimizer, attached, scaler, step):
    """One step with a GradScaler, or with None without."""
    optimizer.zero_grad()
    loss = loss_of(model, *batch(comm, step))
    (loss if scaler is None else scaler.scale(loss)).backward()
    attached.wait()
    optimizer.step() if scaler is None else scaler.step(optimizer)
    if scaler is not None:
        scaler.update()


def bytes_of(*tensors):
    """Of their elements, wherever they lie."""
    return b"".join(each.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for each in tensors)


def content(model):
    """Of parameters; batch norm's running means follow a rank's own batches."""
    return bytes_of(*(each for _, each in model.named_parameters()))

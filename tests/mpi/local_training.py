"""What tests of LocalSGD share."""

from ranks import TIMEOUT
from torch_training import batch, gqt, loss_of, torch, torch_linear

EXACT = "ring/raw"
LOSSY = "*.bias=ring/raw; *=direct/onebit/ef"


def make(comm, rules=EXACT, outer=None, model=torch_linear, inner=None, **options):
    torch.manual_seed(comm.rank)  # the object makes the start alike
    model = model()
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5) if inner is None else inner(model)
    outer = () if outer is None else (outer,)
    return model, gqt.LocalSGD(model, inner, *outer, rules=rules, comm=comm, timeout=TIMEOUT, **{"every": 3, **options})


def train(comm, model, local, steps, rank=None):
    for step in steps:
        model.zero_grad()
        loss_of(model, *batch(comm, step, rank)).backward()
        local.step()

"""What could make models of ranks differ without a word: each is an error on every rank, or makes no difference."""

import pytest
from ranks import TIMEOUT
from torch_training import batch, bytes_of, gqt, loss_of, make, torch, torch_linear, train

import gqallreduce as gq

pytestmark = pytest.mark.mpi


def backward(comm, model, step):
    loss_of(model, *batch(comm, step)).backward()


def train_locally(comm, model, inner, local, steps):
    for step in steps:
        inner.zero_grad()
        backward(comm, model, step)
        local.step()


def last(comm):
    return comm.rank == comm.size - 1


# --- sums that are added to ---


def test_a_pass_in_no_sync_after_one_whose_sums_have_begun(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear, bucket=0)
    backward(comm, model, 0)
    with attached.no_sync():
        backward(comm, model, 1)
    with pytest.raises(ValueError, match=r"was changed after backward\(\)"):
        optimizer.step()
    optimizer.zero_grad()
    train(comm, model, optimizer, range(2))
    attached.compare()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_pass_after_sums_that_were_clipped(comm, in_place):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    backward(comm, model, 0)
    attached.wait()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
    if not in_place:
        optimizer.zero_grad(set_to_none=False)
        backward(comm, model, 1)  # the step was left out
        optimizer.step()
    else:
        with pytest.raises(ValueError, match=r"after wait\(\) has added to"):
            backward(comm, model, 1)
    optimizer.zero_grad()
    train(comm, model, optimizer, range(2))
    attached.compare()


@pytest.mark.parametrize("uses", [1, 2, 4])
def test_a_step_of_a_weight_that_is_used_several_times_may_be_left_out(comm, uses):
    """The version of a new gradient depends on how many were added up for it."""
    model, optimizer, attached = make(comm, "ring/raw", model=lambda: torch.nn.Linear(6, 6, bias=False))

    def loss(times):
        x = batch(comm, times)[0]
        for _ in range(times):
            x = torch.tanh(model(x))
        return x.square().mean()

    loss(2).backward()
    attached.wait()
    optimizer.zero_grad()
    loss(uses).backward()
    optimizer.step()
    attached.compare()


@pytest.mark.mpi(min_size=2)
def test_a_pass_after_wait_on_one_rank_is_told_to_the_others(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    backward(comm, model, 0)
    attached.wait()
    if last(comm):
        with pytest.raises(ValueError, match=r"after wait\(\) has added to"):
            backward(comm, model, 1)
    else:
        optimizer.zero_grad()
        backward(comm, model, 1)
        with pytest.raises(gq.MismatchError) as caught:
            optimizer.step()
        assert caught.value.field == "arguments"
    optimizer.zero_grad()
    train(comm, model, optimizer, range(2))
    attached.compare()


# --- scalers that are off ---


def test_a_scaler_that_is_not_enabled_is_none(comm):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear, scaler=scaler)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(comm, step))
        scaler.scale(loss * float("nan") if step == 1 and last(comm) else loss).backward()
        if step % 2:
            attached.wait()
        before = bytes_of(*model.parameters())
        scaler.step(optimizer)
        scaler.update()
        assert (bytes_of(*model.parameters()) == before) == (step == 1)
    assert attached.skipped == 1
    attached.compare()


# --- odd tensors ---


def test_a_buffer_that_is_expanded(comm):
    def model():
        made = torch_linear()
        made.register_buffer("mask", torch.full((1, 3), float(comm.rank)).expand(4, 3))
        return made

    model, _, attached = make(comm, "ring/raw", model=model)
    assert model.mask.shape == (4, 3)
    assert not model.mask.any()
    attached.compare()


def test_a_sparse_buffer_is_named(comm):
    def model():
        made = torch_linear()
        made.register_buffer("adjacency", torch.eye(3).to_sparse())
        return made

    with pytest.raises(ValueError, match="'adjacency' is sparse"):
        make(comm, "ring/raw", model=model)


def test_a_parameter_with_gaps(comm):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 6).t()[:3])
            self.unused = torch.nn.Parameter(torch.randn(8, 6).t()[:3])

        def forward(self, x):
            return x[:, :3] @ self.weight

    model, optimizer, attached = make(comm, "*=direct/onebit/ef", model=Model)
    train(comm, model, optimizer, range(3))
    attached.compare()


@pytest.mark.parametrize("name", [" lead", "trail ", "a=b"])
def test_names_with_blanks(comm, name):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter(name, torch.nn.Parameter(torch.randn(6, 8)))

        def forward(self, x):
            return x @ getattr(self, name)

    model = Model()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with gqt.LocalSGD(model, inner, gqt.mean, every=2, rules="*=raw", comm=comm, timeout=TIMEOUT) as local:
        train_locally(comm, model, inner, local, range(4))
        local.compare()


# --- models that differ ---


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["a name", "a shape", "no values"])
def test_compare_finds(comm, what):
    model, _, attached = make(comm, "ring/raw", model=torch_linear)
    model[0].weight.data.fill_(1)
    if what == "no values":
        if last(comm):
            model.register_buffer("odd", torch.eye(3).to_sparse())
        with pytest.raises(gq.Error, match=rf"rank {comm.size - 1} could not compare 'odd'"):
            attached.compare()
        return
    if last(comm) and what == "a name":
        model.register_buffer("extra", torch.ones(3))
    if last(comm) and what == "a shape":
        model[0].weight.data = torch.ones(model[0].weight.shape[::-1])
    with pytest.raises(gq.ReplicaError, match="'extra'" if what == "a name" else r"'0\.weight'"):
        attached.compare()


@pytest.mark.mpi(min_size=2)
def test_a_parameter_that_one_rank_freezes(comm):
    model, optimizer, attached = make(comm, "*=direct/onebit/ef", model=torch_linear)
    train(comm, model, optimizer, range(2))
    if last(comm):
        model[0].weight.requires_grad_(False)
    with pytest.raises(gq.MismatchError, match="other parameters need no gradient"):
        train(comm, model, optimizer, range(2, 3))
    model[0].weight.requires_grad_(False)
    train(comm, model, optimizer, range(3, 5))
    attached.compare()


@pytest.mark.mpi(min_size=2)
def test_a_parameter_that_one_rank_freezes_between_outer_steps(comm):
    model = torch_linear()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with gqt.LocalSGD(model, inner, gqt.mean, every=3, rules="*=raw", comm=comm, timeout=TIMEOUT) as local:
        train_locally(comm, model, inner, local, range(4))
        model[0].weight.requires_grad_(not last(comm))
        with pytest.raises(gq.MismatchError, match="other parameters need no gradient"):
            train_locally(comm, model, inner, local, range(4, 6))
        local.compare()


def test_one_sum_for_a_model(comm):
    """Nor a HookState beside it (test_torch_ddp.py)."""
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    with pytest.raises(ValueError, match="attached already"):
        gqt.attach(model, optimizer, "raw", comm=comm, timeout=TIMEOUT)
    attached.detach()


def test_flush_after_gradients_that_were_dropped(comm):
    """As of the critic of a GAN, through which the generator's pass goes."""
    model, optimizer, attached = make(comm, "*=direct/onebit/ef", model=torch_linear)
    train(comm, model, optimizer, range(2))
    with attached.no_sync():
        backward(comm, model, 2)
    with pytest.raises(ValueError, match="expected after the step"):
        attached.flush()
    optimizer.zero_grad()
    attached.flush()
    train(comm, model, optimizer, range(3, 4))
    attached.compare()

"""The communication hook of DistributedDataParallel, whose own process group is gloo's, beside MPI."""

import copy
import tempfile

import pytest
from ranks import TIMEOUT
from torch_training import DEVICE, bytes_of, gqt, torch

import gqallreduce as gq

distributed = torch.distributed
if not (distributed.is_available() and distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", autouse=True)
def group():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    folder = tempfile.mkdtemp() if comm.rank == 0 else None
    folder = comm.bcast(folder)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=comm.rank, world_size=comm.size)
    yield
    comm.Barrier()
    distributed.destroy_process_group()


def make(comm, rules=None, **options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 600), torch.nn.Tanh(), torch.nn.Linear(600, 300), torch.nn.Linear(300, 8)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    if rules is None:
        return ddp, optimizer, None
    state = gqt.HookState(ddp, optimizer, rules, comm=comm, timeout=TIMEOUT)
    ddp.register_comm_hook(state, gqt.comm_hook)
    return ddp, optimizer, state


def train(comm, ddp, optimizer, steps, spoiled=None):
    for step in steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * step + comm.rank)
        x, y = (torch.randn(12, size, generator=generator, device="cpu").to(DEVICE) for size in (6, 8))
        if step == spoiled and comm.rank == comm.size - 1:
            y[0, 0] = float("nan")
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()


def content(ddp):
    return bytes_of(*ddp.parameters())


@pytest.mark.parametrize("as_view", [False, True])
def test_exact_sums_are_those_of_ddp(comm, as_view):
    with_hook, plain = make(comm, "ring/raw", gradient_as_bucket_view=as_view), make(comm)
    for ddp, optimizer, _ in (with_hook, plain):
        train(comm, ddp, optimizer, range(4))
    for one, other in zip(with_hook[0].parameters(), plain[0].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert with_hook[2].reducer.stats.steps == 4


def test_each_tensor_has_its_rule_and_residual_in_buckets_that_are_made_anew(comm):
    ddp, optimizer, state = make(comm, "*.bias=ring/raw; 0.*=direct/qsgd(bits=4); *=direct/onebit/ef")
    train(comm, ddp, optimizer, range(5))
    assert len(set(comm.allgather(content(ddp)))) == 1
    stats = state.reducer.stats.tensors
    assert [each.rule for each in stats.values()] == [
        "direct/qsgd(bits=4)", "ring/raw", "direct/onebit/ef", "ring/raw", "direct/onebit/ef", "ring/raw",
    ]  # fmt: skip
    assert {name for name, each in stats.items() if each.residual_norm} == {"2.weight", "3.weight"}


def test_an_error_is_raised_by_the_step_and_training_goes_on(comm):
    ddp, optimizer, state = make(comm, "direct/onebit/ef")
    train(comm, ddp, optimizer, range(2))
    before = content(ddp)
    with pytest.raises(gq.NonFiniteError):
        train(comm, ddp, optimizer, [2], spoiled=2)
    assert content(ddp) == before
    train(comm, ddp, optimizer, range(3, 5))
    assert len(set(comm.allgather(content(ddp)))) == 1
    assert state.reducer.stats.steps == 4


@pytest.mark.parametrize("scaled", [True, False])
def test_a_step_with_a_flaw_may_be_left_out(comm, scaled):
    """As a GradScaler does, on all ranks, though a flaw is in the gradients of one."""
    ddp, optimizer, state = make(comm, "direct/qsgd(bits=4)")
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0, enabled=scaled)
    for step in range(4):
        optimizer.zero_grad()
        loss = ddp(torch.ones(3, 6) * (comm.rank + step)).sum()
        scaler.scale(loss * float("inf") if step == 1 and comm.rank == comm.size - 1 else loss).backward()
        if scaled or step != 1:
            scaler.step(optimizer)
        scaler.update()
        assert len(set(comm.allgather((scaler.get_scale(), content(ddp))))) == 1
    assert scaler.get_scale() == (2.0 if scaled else 1.0)
    assert state.reducer.stats.steps == 3


def test_parameters_in_another_order_of_axes(comm):
    """Their gradients have it too, and the shape that their rules see."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), torch.nn.Flatten())
    model.append(torch.nn.Linear(16, 2))
    model[2].weight = torch.nn.Parameter(torch.randn(16, 2).t())
    alone, ddp = copy.deepcopy(model), torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    state = gqt.HookState(ddp, optimizer, "ring/raw", comm=comm, timeout=TIMEOUT)
    ddp.register_comm_hook(state, gqt.comm_hook)
    for step in range(2):
        optimizer.zero_grad()
        alone.zero_grad()
        for rank in range(comm.size):
            x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank), device="cpu")
            (alone(x.to(DEVICE)).square().sum() / comm.size).backward()
            if rank == comm.rank:
                ddp(x.to(DEVICE)).square().sum().backward()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
    forms = {tensor.name: tensor.form for tensor in state.reducer.model.tensors.values()}
    assert (forms["0.weight"].order, forms["2.weight"].order) == ("0,2,3,1", "F")
    state.close()


def test_gradients_may_be_accumulated(comm):
    ddp, optimizer, state = make(comm, "direct/onebit/ef")
    for step in range(2):
        optimizer.zero_grad()
        with ddp.no_sync():
            ddp(torch.ones(3, 6) * comm.rank).sum().backward()
        ddp(torch.ones(3, 6) * step).sum().backward()
        optimizer.step()
    assert state.reducer.stats.steps == 2
    assert len(set(comm.allgather(content(ddp)))) == 1


def test_a_checkpoint_goes_on_with_the_same_bits(comm):
    ddp, optimizer, state = make(comm, "direct/onebit/ef")
    train(comm, ddp, optimizer, range(2))
    again, its_optimizer, its_state = make(comm, "direct/onebit/ef")
    again.load_state_dict(ddp.state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # else both have one momentum
    its_state.load_state_dict(state.state_dict())
    for each in ((ddp, optimizer), (again, its_optimizer)):
        train(comm, *each, range(2, 4))
    assert content(again) == content(ddp)
    its_state.close()


def test_an_optimizer_of_momenta_gets_them(comm):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 8))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = gqt.OneBitAdam(ddp.parameters(), lr=0.01, warmup=2)
    state = gqt.HookState(ddp, optimizer, "direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    ddp.register_comm_hook(state, gqt.comm_hook)
    for step in range(4):
        optimizer.zero_grad()
        ddp(torch.full((4, 6), 0.1 * (step + comm.rank))).square().mean().backward()
        optimizer.step()
        assert state.reducer.schemes["0.weight"] == ("raw" if step < 1 else "direct/onebit/ef")
    assert optimizer.state[model[0].weight]["updates"] == 2
    state.close()
    with pytest.raises(Exception, match="this HookState is closed"):
        ddp(torch.ones(4, 6)).square().mean().backward()


def test_unfit_objects_are_refused(comm):
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"expected a torch\.optim\.Optimizer"):
        gqt.HookState(ddp, None, "raw", comm=comm)
    with pytest.raises(TypeError, match="use HookState"):
        gqt.attach(ddp, torch.optim.SGD(ddp.parameters(), 0.1), "raw", comm=comm)
    with pytest.raises(TypeError, match=r"expected a torch\.amp\.GradScaler"):
        gqt.attach(ddp.module, torch.optim.SGD(ddp.parameters(), 0.1), "raw", comm=comm, scaler=True)

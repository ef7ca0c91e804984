"""The communication hook of DistributedDataParallel, whose own process group is gloo's, beside MPI."""

import copy
import tempfile

import pytest
from ranks import TIMEOUT
from torch_training import DEVICE, Net, batch, bytes_of, gqt, loss_of, torch
from travelling import require_same_sums, sizes, some

import gqallreduce as gq
from gqallreduce.torch.tensors import from_tensors

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


def make(comm, rules=None, hook=gqt.comm_hook, **options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 600), torch.nn.Tanh(), torch.nn.Linear(600, 300), torch.nn.Linear(300, 8)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.3, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    if rules is None:
        return ddp, optimizer, None
    state = gqt.HookState(ddp, optimizer, rules, comm=comm, timeout=TIMEOUT)
    ddp.register_comm_hook(state, hook)
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
    buckets = []  # of each step: the shapes in each

    def hook(state, bucket):
        assert isinstance(bucket, distributed.GradBucket)
        buckets[-1].append([each.shape for each in bucket.parameters()])
        return gqt.comm_hook(state, bucket)

    ddp, optimizer, state = make(comm, "*.bias=ring/raw; 0.*=direct/qsgd(bits=4); *=direct/onebit/ef", hook)
    for step in range(5):
        buckets.append([])
        train(comm, ddp, optimizer, [step])
    assert len(buckets[0]) < len(buckets[1])
    assert buckets[1:] == [buckets[1]] * 4
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


@pytest.mark.parametrize("clip", [None, 0.5])
def test_what_is_kept_follows_the_scale(comm, clip):
    """By powers of two, so that nothing is rounded; a state that is loaded half-way goes on."""
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=1)
    plain, scaled = make(comm), make(comm)
    states = [
        gqt.HookState(ddp, optimizer, "onebit/ef", comm=comm, timeout=TIMEOUT, clip=clip, **options)
        for (ddp, optimizer, _), options in ((plain, {}), (scaled, {"scaler": scaler}))
    ]
    for (ddp, _, _), state in zip((plain, scaled), states, strict=True):
        ddp.register_comm_hook(state, gqt.comm_hook)
    for step in range(6):
        if step == 3:
            saved = states[1].state_dict()
            assert saved["scale"] == 16.0 * 2 ** (step - 1)
            states[1]._scale.value = 1.0  # as of one that is made anew
            states[1].load_state_dict(saved if clip is None else comm.allgather(saved))
        for (ddp, optimizer, _), by in ((plain, None), (scaled, scaler)):
            optimizer.zero_grad()
            loss = loss_of(ddp, *batch(comm, step))
            (loss if by is None else by.scale(loss)).backward()
            optimizer.step() if by is None else by.step(optimizer)
        scaler.update()
        assert content(plain[0]) == content(scaled[0])
    for wrong in (None, {"reducer": saved["reducer"], "scale": None}, saved["reducer"], {**saved, "scale": -1.0}):
        with pytest.raises(ValueError, match="state"):
            states[1].load_state_dict(wrong)


def test_what_is_no_scaler_is_refused(comm):
    ddp, optimizer, _ = make(comm)
    with pytest.raises(TypeError, match=r"expected a torch\.amp\.GradScaler"):
        gqt.HookState(ddp, optimizer, "raw", comm=comm, scaler=3)


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


def copies(tensors):
    return {name: None if each is None else each.detach().clone() for name, each in tensors}


def test_a_layer_that_some_ranks_or_none_use_in_a_step(comm):
    """Sums are those of DDP, which leaves the gradient of a layer alone that no rank has used."""
    uses, models = [True, comm.rank == 0, comm.rank > 0, False, True], [Net(extra=True), Net(extra=True)]
    models[1].load_state_dict(models[0].state_dict())
    gradients, parameters = [], []
    for model in models:
        ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
        if model is models[0]:
            state = gqt.HookState(ddp, optimizer, "ring/raw", comm=comm, timeout=TIMEOUT)
            ddp.register_comm_hook(state, gqt.comm_hook)
        for step, use in enumerate(uses):
            optimizer.zero_grad()
            loss_of(ddp, *batch(comm, step), use_extra=use).backward()
            gradients.append(copies((name, each.grad) for name, each in model.named_parameters()))
            optimizer.step()
        parameters.append(copies(model.named_parameters()))
    torch.testing.assert_close(gradients[:5], gradients[5:])
    torch.testing.assert_close(*parameters)
    assert [each["extra.weight"] is not None for each in gradients[:5]] == [True, True, comm.size > 1, False, True]
    assert state.reducer.stats.steps == 5
    state.close()


def test_replicas_stay_alike_where_some_ranks_do_not_use_a_layer(comm):
    ddp = torch.nn.parallel.DistributedDataParallel(Net(extra=True), find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    state = gqt.HookState(ddp, optimizer, "*.bias=ring/raw; *=direct/onebit/ef", comm=comm, timeout=TIMEOUT)
    ddp.register_comm_hook(state, gqt.comm_hook)
    for step in range(6):
        optimizer.zero_grad()
        before = bytes_of(ddp.module.extra.weight)
        loss_of(ddp, *batch(comm, step), use_extra=(step + comm.rank) % 3 == 0).backward()
        optimizer.step()
        assert len(set(comm.allgather(content(ddp)))) == 1
        used = any((step + rank) % 3 == 0 for rank in range(comm.size))
        assert (bytes_of(ddp.module.extra.weight) != before) == used
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


def test_files_of_a_hook_s_state(comm, folder):
    made = [make(comm, "*=direct/onebit/ef") for _ in range(2)]
    train(comm, *made[0][:2], range(3))
    gq.save(folder, made[0][2])
    gq.load(folder, made[1][2])
    for ours, other in zip(made[1][:2], made[0][:2], strict=True):
        ours.load_state_dict(copy.deepcopy(other.state_dict()))
    for ddp, optimizer, _ in made:
        train(comm, ddp, optimizer, range(3, 5))
    assert content(made[0][0]) == content(made[1][0])


def test_all_ranks_states_travel_to_other_numbers_of_ranks(comm):
    saved, rules = None, "*.bias=ring/raw; *=direct/onebit/ef"
    for place, size in enumerate(sizes(comm)):
        found, group = None, distributed.new_group(list(range(size)))
        with some(comm, size) as part:
            if part is not None:
                ddp, optimizer, state = make(part, rules, process_group=group)
                if saved is not None:
                    ddp.load_state_dict(saved[0]["model"])
                    state.load_state_dict([each["sums"] for each in saved[::-1]])  # in any order
                loaded = state.state_dict()
                train(part, ddp, optimizer, range(2 * place, 2 * place + 2))
                made = {"model": ddp.state_dict(), "sums": state.state_dict()}
                found = [part.allgather(each) for each in (loaded, made, content(ddp))]
                state.close()
        loaded, made, contents = comm.bcast(found)
        if saved is not None:
            new, old = (
                [from_tensors(each)["schemes"] for each in states]
                for states in (loaded, [each["sums"] for each in saved])
            )
            for text in old[0]:
                require_same_sums([each[text] for each in new], [each[text] for each in old])
        assert len(set(contents)) == 1
        saved = made
        assert from_tensors(saved[0]["sums"])["schemes"]["direct/onebit/ef"]["keys"]["2.weight"]["residual"].any()


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

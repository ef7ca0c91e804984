"""Steps of a PyTorch training that are left out, left, or begun in an odd way: alike on all ranks, or a clear error."""

import contextlib
import copy

import pytest
from ranks import alike
from torch_training import DEVICE, Net, batch, content, gqt, loss_of, make, torch, torch_linear, train

import gqallreduce as gq

pytestmark = pytest.mark.mpi


def backward(comm, model, step, spoiled=False):
    """Of this rank's batch; with a NaN on the last rank."""
    loss = loss_of(model, *batch(comm, step))
    (loss * float("nan") if spoiled and comm.rank == comm.size - 1 else loss).backward()


def mean_gradient(comm, model, steps):
    """Of the first layer, over all ranks, of these batches."""
    model = copy.deepcopy(model)
    model.zero_grad()
    for rank in range(comm.size):
        for step in steps:
            (loss_of(model, *batch(comm, step, rank)) / comm.size).backward()
    return model[0].weight.grad


@pytest.mark.parametrize("passes", ["in no_sync", "summed"])
@pytest.mark.parametrize("skipped", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_may_be_left_out_after_wait(comm, passes, skipped, set_to_none):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear, nonfinite="skip")
    backward(comm, model, 0, spoiled=skipped)
    assert attached.wait() != skipped
    optimizer.zero_grad(set_to_none=set_to_none)
    expected = mean_gradient(comm, model, [1])
    if passes == "in no_sync":
        with attached.no_sync():
            backward(comm, model, 1)
    else:
        backward(comm, model, 1)
    optimizer.step()
    torch.testing.assert_close(model[0].weight.grad, expected)
    attached.compare()


@pytest.mark.parametrize("passes", ["in no_sync", "summed"])
def test_sums_that_a_backward_pass_has_added_to_are_an_error(comm, passes):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    backward(comm, model, 0)
    attached.wait()
    again = attached.no_sync() if passes == "in no_sync" else contextlib.nullcontext()
    with again, pytest.raises(ValueError, match=r"after wait\(\) has added to '2\.bias', which is a sum"):
        backward(comm, model, 1)
    train(comm, model, optimizer, range(2))
    attached.compare()


def test_residuals_may_be_flushed_after_a_step_that_did_not_take_effect(comm):
    """However it ended, and also where only some ranks had a pass in no_sync."""
    model, optimizer, attached = make(comm, "direct/onebit/ef", model=torch_linear)
    if comm.rank == 0:
        with attached.no_sync():
            backward(comm, model, 0)
    backward(comm, model, 1, spoiled=True)
    with pytest.raises(gq.NonFiniteError):
        optimizer.step()
    attached.flush()
    attached.compare()


@pytest.mark.parametrize("scaled", [True, False])
def test_residuals_may_be_flushed_after_a_step_that_was_skipped(comm, scaled):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0) if scaled else None
    model, _, attached = make(comm, "direct/onebit/ef", model=torch_linear, scaler=scaler, nonfinite="skip")
    with attached.no_sync():
        backward(comm, model, 0)
    backward(comm, model, 1, spoiled=True)
    assert not attached.wait()
    attached.flush()
    attached.compare()


def test_a_step_of_passes_in_no_sync_alone_may_be_discarded(comm):
    """The others are told, and batches of different steps are not summed."""
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    with attached.no_sync():
        backward(comm, model, 0)
    if comm.rank == comm.size - 1:
        attached.discard()
    else:
        backward(comm, model, 0)
        with pytest.raises(gq.MismatchError, match="discard"):
            optimizer.step()
    train(comm, model, optimizer, [1])
    assert alike(comm, content(model))
    attached.compare()


def test_to_wait_again_does_nothing_where_the_scaler_leaves_the_step_out(comm):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
    model, optimizer, attached = make(comm, model=torch_linear, scaler=scaler)
    for step in range(4):
        optimizer.zero_grad()
        if step != 2 or comm.rank == 0:  # else without any gradient
            loss = loss_of(model, *batch(comm, step))
            scaler.scale(loss * float("inf") if step == 1 and comm.rank == 0 else loss).backward()
        assert attached.wait() == attached.wait() == (step != 1)
        scaler.step(optimizer)
        scaler.update()
    assert attached.skipped == 1
    attached.compare()


def test_an_optimizer_that_would_use_a_skipped_step_is_an_error(comm):
    """With a scaler its gradients are NaN."""
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
    model, optimizer, attached = make(comm, model=torch_linear, scaler=scaler)
    backward(comm, model, 0, spoiled=True)
    before = content(model)
    assert not attached.wait()
    with pytest.raises(gq.Error, match="skipped on all ranks"):
        optimizer.step()
    assert content(model) == before


def test_a_layer_that_was_replaced_is_a_new_one(comm):
    model, optimizer, _attached = make(comm, "ring/raw", model=torch_linear)
    model[2] = torch.nn.Linear(16, 8)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    backward(comm, model, 0)
    with pytest.raises(ValueError, match=r"not there when the model was attached: 2\.bias, 2\.weight"):
        optimizer.step()


@pytest.mark.parametrize("how", ["attach", "LocalSGD"])
@pytest.mark.parametrize("what", ["frozen parameter", "buffer"])
def test_all_that_is_made_alike_is_compared_first(comm, how, what):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    model = Net()
    if comm.rank == comm.size - 1:
        if what == "buffer":
            model.norm.running_mean = torch.zeros(3)
        else:
            model.frozen.double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    more = () if how == "attach" else (gqt.mean,)
    options = {} if how == "attach" else {"every": 2}
    with pytest.raises(gq.MismatchError):
        getattr(gqt, how)(model, optimizer, *more, rules="*=ring/raw", comm=comm, **options)


def test_a_flush_is_no_step_of_another_model(comm):
    """That has the same optimizer, and gradients that are not zeroed."""
    both = torch.nn.ModuleList([torch_linear(), torch_linear()])
    optimizer = torch.optim.SGD(both.parameters(), 0.1)
    attached = [gqt.attach(each, optimizer, "*=direct/onebit/ef", comm=comm) for each in both]
    sum(loss_of(each, *batch(comm, 0)) for each in both).backward()
    optimizer.step()
    before, grad = content(both[1]), both[1][0].weight.grad.clone()
    attached[0].flush()
    assert content(both[1]) == before
    assert attached[1].reducer.stats.steps == 1
    torch.testing.assert_close(both[1][0].weight.grad, grad)
    for each in attached:
        each.compare()
        each.detach()


def test_a_rank_that_compares_does_not_wait_for_one_that_trains(comm):
    if comm.size == 1:
        pytest.skip("needs another rank")
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    train(comm, model, optimizer, range(2))
    with pytest.raises(gq.Error):
        attached.compare() if comm.rank == 0 else train(comm, model, optimizer, [2])
    attached.detach()
    with gqt.attach(model, optimizer, "ring/raw", comm=comm) as attached:
        attached.compare()


# --- optimizers that know their sums ---


def test_an_attach_that_fails_leaves_no_sums_behind(comm):
    model = torch_linear()
    optimizer = gqt.OneBitAdam(model.parameters(), warmup=2)
    with pytest.raises(ValueError, match="applies to no tensor"):
        gqt.attach(model, optimizer, "nothing=qsgd; *=ring/raw", comm=comm)
    backward(comm, model, 0)
    with pytest.raises(gq.Error, match="no model is attached"):
        optimizer.step()


def test_an_optimizer_has_the_sums_of_one_model(comm):
    both = torch.nn.ModuleList([torch_linear(), torch_linear()])
    optimizer = gqt.OneBitAdam(both.parameters(), warmup=2)
    with gqt.attach(both[0], optimizer, "ring/raw", comm=comm):
        with pytest.raises(ValueError, match="has the sums of another model"):
            gqt.attach(both[1], optimizer, "ring/raw", comm=comm)
        train(comm, both[0], optimizer, [0])
    gqt.attach(both[1], optimizer, "ring/raw", comm=comm).detach()


@pytest.mark.parametrize("kind", [gqt.OneBitAdam, gqt.ZeroOneAdam])
def test_a_copy_of_an_optimizer_trains_on(comm, kind):
    model = torch_linear()
    optimizer = kind(model.parameters(), **({"warmup": 2} if kind is gqt.OneBitAdam else {"interval": 2}))
    with gqt.attach(model, optimizer, "ring/raw", comm=comm):
        train(comm, model, optimizer, [0])
        model, optimizer = copy.deepcopy((model, optimizer))
    assert optimizer.reducer is None
    with gqt.attach(model, optimizer, "ring/raw", comm=comm) as attached:
        train(comm, model, optimizer, range(3))
        attached.compare()

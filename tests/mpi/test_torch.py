"""Training with PyTorch: gradients summed in the backward pass, and steps that all ranks make alike."""

import io

import numpy as np
import pytest
from ranks import alike
from torch_training import (
    DEVICE,
    Net,
    batch,
    bytes_of,
    content,
    gqt,
    loss_of,
    make,
    torch,
    torch_linear,
    train,
    train_scaled,
)

import gqallreduce as gq

pytestmark = pytest.mark.mpi
# --- what is summed ---


def test_all_ranks_begin_as_rank_0(comm):
    def model():
        made = Net()
        with torch.no_grad():
            made.first.bias[0], made.first.bias[1] = -0.0, float("nan")
            made.norm.num_batches_tracked += 2**40 + comm.rank
        return made

    made, _, attached = make(comm, model=model)
    state = {name: bytes_of(each) for name, each in made.state_dict().items()}
    assert alike(comm, str(state))
    assert int(made.norm.num_batches_tracked) == 2**40
    attached.compare()


@pytest.mark.parametrize("bucket", ["100 B", "1 MiB"])
def test_exact_sums_train_as_one_process_does(comm, bucket):
    """Gradients are the mean over ranks."""
    model, optimizer, attached = make(comm, "ring/raw", bucket=bucket, model=torch_linear)
    alone = torch_linear()
    alone.load_state_dict(model.state_dict())
    beside = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        optimizer.step()
        beside.zero_grad()
        (sum(loss_of(alone, *batch(comm, step, rank)) for rank in range(comm.size)) / comm.size).backward()
        beside.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 5


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_replicas_stay_alike(comm, optimizer, set_to_none):
    model, optimizer, attached = make(comm, optimizer=lambda model: optimizer(model.parameters(), lr=0.01))
    losses = []
    for step in range(30):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_of(model, *batch(comm, step % 3))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert alike(comm, content(model))
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert attached.reducer.schemes["first.weight"] == "direct/onebit/ef"
    assert "frozen.weight" not in attached.reducer.schemes


def test_shared_weights_are_summed_once(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=lambda: Net(tied=True))
    names = list(attached.reducer.schemes) or [name for name, _ in model.named_parameters()]
    assert sum("weight" in name and ("second" in name or "third" in name) for name in names) == 1
    train(comm, model, optimizer, range(3))
    assert model.third.weight is model.second.weight
    assert alike(comm, content(model))


def test_a_layer_that_some_ranks_do_not_use(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=lambda: Net(extra=True), average=False)
    optimizer.zero_grad()
    loss_of(model, *batch(comm, 0), use_extra=comm.rank == 0).backward()
    assert attached.wait()
    assert alike(comm, bytes_of(model.extra.weight.grad))
    assert model.extra.weight.grad.abs().sum() > 0
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, *batch(comm, 1), use_extra=False).backward()
    optimizer.step()
    assert not model.extra.weight.grad.any()
    assert alike(comm, content(model))


def test_gradients_may_be_accumulated(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    alone = torch_linear()
    alone.load_state_dict(model.state_dict())
    optimizer.zero_grad()
    with attached.no_sync():
        for step in range(2):
            loss_of(model, *batch(comm, step)).backward()
    loss_of(model, *batch(comm, 2)).backward()
    attached.wait()
    for rank in range(comm.size):
        for step in range(3):
            (loss_of(alone, *batch(comm, step, rank)) / comm.size).backward()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    optimizer.step()
    assert attached.reducer.stats.steps == 1


def test_a_layer_that_only_an_earlier_pass_used_keeps_its_gradient(comm):
    model, _optimizer, attached = make(comm, "ring/raw", model=lambda: Net(extra=True), average=False)
    with attached.no_sync():
        loss_of(model, *batch(comm, 0)).backward()
    own = model.extra.weight.grad.clone()
    loss_of(model, *batch(comm, 1), use_extra=False).backward()
    attached.wait()
    expected = sum(torch.from_numpy(each) for each in comm.allgather(own.cpu().numpy())).to(DEVICE)
    torch.testing.assert_close(model.extra.weight.grad, expected)


def test_a_rank_without_any_gradient_takes_part(comm):
    model, optimizer, attached = make(comm, "ring/raw")
    for step in range(2):
        optimizer.zero_grad()
        if comm.rank == 0:
            loss_of(model, *batch(comm, step)).backward()
        optimizer.step()
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 2


def test_to_wait_again_does_nothing(comm):
    model, optimizer, attached = make(comm)
    loss_of(model, *batch(comm, 0)).backward()
    assert attached.wait()
    before = model.first.weight.grad.clone()
    assert attached.wait()
    optimizer.step()
    assert (model.first.weight.grad == before).all()
    assert attached.reducer.stats.steps == 1


def test_closures_are_refused(comm):
    model, optimizer, attached = make(comm)
    with pytest.raises(ValueError, match="got a closure"):
        optimizer.step(lambda: 1.0)
    loss_of(model, *batch(comm, 0)).backward()
    optimizer.step()
    assert attached.reducer.stats.steps == 1


def test_gradients_are_clipped_between_wait_and_step(comm):
    model, optimizer, attached = make(comm)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        assert attached.wait()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        assert alike(comm, norm.item())
        optimizer.step()
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 3


def test_autograd_is_told_that_gradients_have_changed(comm):
    model, _optimizer, attached = make(comm)
    loss_of(model, *batch(comm, 0)).backward()
    before = model.first.weight.grad._version
    attached.wait()
    assert model.first.weight.grad._version > before


def test_a_model_in_bfloat16(comm):
    model, optimizer, _attached = make(comm, "*=direct/qsgd(bits=4)", model=lambda: torch_linear().to(torch.bfloat16))
    for step in range(3):
        optimizer.zero_grad()
        x, y = (each.to(torch.bfloat16) for each in batch(comm, step))
        loss_of(model, x, y).backward()
        optimizer.step()
    assert alike(comm, bytes_of(*model.parameters()))


def test_autocast(comm):
    model, optimizer, _attached = make(comm)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(model, *batch(comm, step))
        loss.backward()
        optimizer.step()
    assert alike(comm, content(model))


# --- steps that are skipped, and errors ---


def spoil(comm, y):
    if comm.rank == comm.size - 1:
        y[0, 0] = float("inf")
    return y


def test_a_flaw_is_raised(comm):
    model, optimizer, attached = make(comm)
    before = content(model)
    x, y = batch(comm, 0)
    loss_of(model, x, spoil(comm, y)).backward()
    with pytest.raises(gq.NonFiniteError):
        optimizer.step()
    assert content(model) == before
    optimizer.zero_grad()
    loss_of(model, *batch(comm, 1)).backward()
    optimizer.step()
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 1


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_with_a_flaw_is_skipped(comm, optimizer):
    """Also weight decay and the optimizer's own counters."""
    model, optimizer, attached = make(
        comm, optimizer=lambda model: optimizer(model.parameters(), lr=0.01, weight_decay=0.1), nonfinite="skip"
    )
    for step in range(3):
        optimizer.zero_grad()
        before = content(model)
        x, y = batch(comm, step)
        loss_of(model, x, spoil(comm, y) if step == 1 else y).backward()
        optimizer.step()
        assert (content(model) == before) == (step == 1)
    assert attached.skipped == 1
    assert alike(comm, content(model))


def test_a_scaler_lowers_its_scale_on_all_ranks(comm):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=2)
    model, optimizer, attached = make(comm, scaler=scaler)
    scales = []
    for step in range(6):
        optimizer.zero_grad()
        x, y = batch(comm, step)
        scaler.scale(loss_of(model, x, spoil(comm, y) if step == 1 else y)).backward()
        before, took_effect = content(model), attached.wait()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        assert took_effect == (step != 1)
        assert (content(model) == before) == (step == 1)
    assert scales == [1024, 512, 512, 1024, 1024, 2048]
    assert attached.skipped == 1
    assert alike(comm, content(model))


def test_residuals_follow_the_scale(comm):
    """By powers of two, so that nothing is rounded."""
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=1)
    plain, scaled = make(comm, model=torch_linear), make(comm, model=torch_linear, scaler=scaler)
    for step in range(4):
        train_scaled(comm, *plain, None, step)
        train_scaled(comm, *scaled, scaler, step)
        assert content(plain[0]) == content(scaled[0])


def test_a_scaler_that_comes_before_the_sums_is_an_error(comm):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0)
    model, optimizer, _attached = make(comm, scaler=scaler)
    scaler.scale(loss_of(model, *batch(comm, 0))).backward()
    with pytest.raises(gq.Error, match=r"call wait\(\) before scaler\.step"):
        scaler.step(optimizer)


def test_a_second_backward_pass_is_told_to_all_and_training_goes_on(comm):
    model, optimizer, _attached = make(comm)
    if comm.rank == comm.size - 1:
        loss_of(model, *batch(comm, 0)).backward()
        with pytest.raises(ValueError, match="no_sync"):
            loss_of(model, *batch(comm, 0)).backward()
    else:
        loss_of(model, *batch(comm, 0)).backward()
        with pytest.raises(gq.MismatchError):
            optimizer.step()
    train(comm, model, optimizer, range(2))
    assert alike(comm, content(model))


def test_parameters_that_appear_later_are_named(comm):
    model, optimizer, _attached = make(comm)
    model.late = torch.nn.Linear(3, 3)
    loss_of(model, *batch(comm, 0)).backward()
    with pytest.raises(ValueError, match=r"late\.bias, late\.weight"):
        optimizer.step()


def test_a_step_may_be_left_after_an_exception(comm):
    model, optimizer, attached = make(comm)
    loss_of(model, *batch(comm, 0)).backward()
    if comm.rank == comm.size - 1:
        attached.discard()
    else:
        with pytest.raises(gq.MismatchError):
            optimizer.step()
    optimizer.zero_grad()
    loss_of(model, *batch(comm, 1)).backward()
    optimizer.step()
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 1


def test_passes_in_no_sync_alone_are_summed_by_the_step(comm):
    model, optimizer, attached = make(comm)
    with attached.no_sync():
        loss_of(model, *batch(comm, 0)).backward()
    optimizer.step()
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 1


def test_a_model_is_attached_once(comm):
    model, optimizer, attached = make(comm)
    with pytest.raises(ValueError, match="attached already"):
        gqt.attach(model, optimizer, "raw", comm=comm)
    attached.detach()
    gqt.attach(model, optimizer, "raw", comm=comm).detach()


def test_a_layer_that_is_frozen_later_stays(comm):
    model, optimizer, _attached = make(comm, model=torch_linear)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        optimizer.step()
        if step == 0:
            model[0].requires_grad_(False)
            optimizer.zero_grad()
            before = model[0].weight.clone()
    assert (model[0].weight == before).all()
    assert alike(comm, content(model))


def test_gradients_that_are_gone_are_told_to_all(comm):
    model, optimizer, _attached = make(comm)
    loss_of(model, *batch(comm, 0)).backward()
    if comm.rank == comm.size - 1:
        optimizer.zero_grad()
        with pytest.raises(ValueError, match="zero_grad"):
            optimizer.step()
    else:
        with pytest.raises(gq.MismatchError):
            optimizer.step()
    optimizer.zero_grad()
    loss_of(model, *batch(comm, 1)).backward()
    optimizer.step()
    assert alike(comm, content(model))


def test_an_optimizer_has_all_parameters(comm):
    model = torch_linear()
    with pytest.raises(ValueError, match=r"the optimizer lacks 0\.weight, 0\.bias"):
        gqt.attach(model, torch.optim.SGD(model[2].parameters(), 0.1), "raw", comm=comm)


def test_a_model_with_an_empty_buffer(comm):
    def model():
        made = torch_linear()
        made.register_buffer("none", torch.zeros(0))
        return made

    make(comm, model=model)[2].compare()


def test_sparse_gradients_are_refused(comm):
    model, _optimizer, _attached = make(comm, "raw", model=lambda: torch.nn.Embedding(10, 4, sparse=True))
    with pytest.raises(ValueError, match="the gradient of 'weight' is sparse"):
        model(torch.tensor([1, 2])).sum().backward()


def test_a_rank_with_another_model_is_found(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    with pytest.raises(gq.MismatchError, match="other tensors"):
        make(comm, model=(lambda: Net(extra=True)) if comm.rank == 1 else Net)
    model, optimizer, _attached = make(comm)
    loss_of(model, *batch(comm, 0)).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"model": "net"}, TypeError), ({"optimizer": None}, TypeError), ({"nonfinite": "ignore"}, ValueError),
        ({"model": torch.nn.Linear(2, 2).requires_grad_(False)}, ValueError), ({"rules": "x=raw; *=raw"}, ValueError),
    ],
)  # fmt: skip
def test_unfit_arguments_are_refused(comm, wrong, error):
    model = Net()
    given = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "rules": "raw",
        "comm": comm,
        **wrong,
    }
    with pytest.raises(error):
        gqt.attach(**given)


# --- replicas and checkpoints ---


def test_replicas_that_differ_are_found(comm):
    model, _, attached = make(comm)
    attached.compare()
    if comm.size == 1:
        return
    with torch.no_grad():
        model.second.weight[1, 2] += comm.rank == 1
    with pytest.raises(gq.ReplicaError, match=r"'second.weight' of ranks \[1\]"):
        attached.compare()


def test_a_checkpoint_goes_on_with_the_same_bits(comm):
    rules = "*.bias=ring/raw; first*=direct/alq(bits=3)/ef; *=direct/onebit/ef"
    model, optimizer, attached = make(comm, rules)
    train(comm, model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sums": attached.state_dict()}, file)
    train(comm, model, optimizer, range(3, 6))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, its_optimizer, its_sums = make(comm, rules)
    again.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    its_sums.load_state_dict(saved["sums"])
    train(comm, again, its_optimizer, range(3, 6))
    assert content(again) == content(model)
    with pytest.raises(ValueError, match="expected what state_dict"):
        its_sums.load_state_dict({})
    for wrong in ({"scale": 2.0}, {"scale": "large"}, {"skipped": -1}, {"skipped": None}):
        with pytest.raises(ValueError, match="state has s"):
            its_sums.load_state_dict({**saved["sums"], **wrong})
    with pytest.raises(ValueError, match=r"states have skipped .*, expected one for all ranks"):
        its_sums.load_state_dict([saved["sums"], {**saved["sums"], "skipped": 1}])


def test_a_detached_model_trains_alone(comm):
    model, optimizer, attached = make(comm)
    with attached:
        loss_of(model, *batch(comm, 0)).backward()
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, *batch(comm, 1)).backward()
    optimizer.step()
    if comm.size > 1:
        assert not alike(comm, content(model))


def test_residuals_are_applied_by_a_step_of_their_own(comm):
    """`flush` makes them gradients, which are not summed again; then training goes on."""
    model, optimizer, attached = make(comm, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.5))
    train(comm, model, optimizer, range(2))
    own = attached.state_dict()["reducer"]["schemes"]["direct/onebit/ef"]["keys"]["second.weight"]["residual"].numpy()
    mean, before = comm.allreduce(own) / comm.size, model.second.weight.detach().clone()
    bias, sums = model.second.bias.detach().clone(), attached.reducer.stats.steps
    attached.flush()
    assert all(each.grad is None for each in model.parameters())
    expected, found = before.cpu().numpy() - 0.5 * mean, model.second.weight.detach().cpu()
    np.testing.assert_allclose(expected, found, rtol=1e-5, atol=1e-6)
    assert torch.equal(bias, model.second.bias)
    assert attached.reducer.stats.steps == sums
    assert attached.reducer.stats.residual_norm == 0
    train(comm, model, optimizer, range(2, 4))
    assert attached.reducer.stats.steps == sums + 2
    assert alike(comm, content(model))
    loss_of(model, *batch(comm, 5)).backward()
    with pytest.raises(ValueError, match="between backward and the"):
        attached.flush()
    attached.wait()
    with pytest.raises(ValueError, match="between backward and the"):
        attached.flush()
    optimizer.step()
    optimizer.zero_grad()
    with attached.no_sync():
        loss_of(model, *batch(comm, 6)).backward()
    with pytest.raises(ValueError, match="between backward and the"):
        attached.flush()
    optimizer.step()
    attached.flush()
    with attached.no_sync():
        loss_of(model, *batch(comm, 7)).backward()
    optimizer.step()
    assert alike(comm, content(model))


def test_flushed_residuals_are_in_units_of_the_gradients(comm):
    """Also when the scale has changed since the last step."""
    found = []
    for scaler in (None, torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=1)):
        sgd = lambda m: torch.optim.SGD(m.parameters(), 0.5)  # noqa: E731
        model, optimizer, attached = make(comm, "direct/onebit/ef", model=torch_linear, optimizer=sgd, scaler=scaler)
        train_scaled(comm, model, optimizer, attached, scaler, 0)
        attached.flush()
        found.append(content(model))
    assert found[0] == found[1]


def test_a_scale_changes_while_a_layer_is_frozen(comm):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=1)
    model, optimizer, attached = make(comm, "direct/onebit/ef", model=torch_linear, scaler=scaler)
    for step in range(3):
        optimizer.zero_grad()
        with attached.no_sync():
            scaler.scale(loss_of(model, *batch(comm, step))).backward()
        attached.wait()
        scaler.step(optimizer)
        scaler.update()
        model[0].weight.requires_grad_(False)
    assert alike(comm, content(model))

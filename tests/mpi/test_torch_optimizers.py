"""Adam with a frozen variance, and other options of sums that an attached model has."""

import copy
import io

import numpy as np
import pytest
from ranks import alike
from torch_training import DEVICE, batch, content, gqt, loss_of, make, torch, torch_linear, train, train_scaled

import gqallreduce as gq

pytestmark = pytest.mark.mpi
RULES = "*.bias=ring/raw; *=direct/onebit/ef"


def onebit_adam(warmup, **options):
    return lambda model: gqt.OneBitAdam(model.parameters(), **{"lr": 0.01, **options}, warmup=warmup)


def mean_gradients(comm, model, step):
    """Of the mean over ranks of the losses, as one process has them."""
    model.zero_grad()
    (sum(loss_of(model, *batch(comm, step, rank)) for rank in range(comm.size)) / comm.size).backward()


def require_equal_training(comm, model, optimizer, alone, beside):
    """A model whose gradients are summed, and one process that has all of them, train alike."""
    for step in range(6):
        train(comm, model, optimizer, [step])
        mean_gradients(comm, alone, step)
        beside.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_it_is_adamw_in_the_warmup(comm):
    model, optimizer, _ = make(comm, model=torch_linear, optimizer=onebit_adam(99, weight_decay=0.1))
    alone = copy.deepcopy(model)
    beside = torch.optim.AdamW(alone.parameters(), lr=0.01, weight_decay=0.1)
    require_equal_training(comm, model, optimizer, alone, beside)


def test_the_variance_is_frozen_after_the_warmup(comm):
    """Against the formula in float64, with exact sums."""
    beta1, beta2, warmup = 0.8, 0.95, 3
    make_optimizer = onebit_adam(warmup, betas=(beta1, beta2))
    model, optimizer, _ = make(comm, "ring/raw", model=torch_linear, optimizer=make_optimizer)
    alone = copy.deepcopy(model).double()
    first = [torch.zeros_like(each) for each in alone.parameters()]
    second = [torch.zeros_like(each) for each in alone.parameters()]
    for step in range(1, 8):
        train(comm, model, optimizer, [step])
        alone.zero_grad()
        for rank in range(comm.size):
            x, y = batch(comm, step, rank)
            (loss_of(alone, x.double(), y.double()) / comm.size).backward()
        with torch.no_grad():
            for each, m, v in zip(alone.parameters(), first, second, strict=True):
                m.mul_(beta1).add_((1 - beta1) * each.grad)
                if step <= warmup:
                    v.mul_(beta2).add_((1 - beta2) * each.grad**2)
                variance = v / (1 - beta2 ** min(step, warmup))
                each -= 0.01 * m / (1 - beta1**step) / (variance.sqrt() + 1e-8)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5)


def test_steps_from_which_the_variance_learns_become_rare():
    optimizer = gqt.ZeroOneAdam(torch_linear().parameters(), interval=2)
    assert [step for step in range(1, 40) if optimizer.is_exact(step)] == [1, 2, 3, 5, 7, 11, 15, 23, 31]
    frozen = gqt.ZeroOneAdam(torch_linear().parameters(), interval=2, freeze=10)
    assert [step for step in range(1, 40) if frozen.is_exact(step)] == [1, 2, 3, 5, 7]
    assert (optimizer.last_exact, frozen.last_exact) == (None, 7)


def test_those_steps_alone_are_summed_exactly(comm):
    """And the variance is that of the gradients in them."""
    model, optimizer, attached = make(
        comm, RULES, model=torch_linear, optimizer=lambda m: gqt.ZeroOneAdam(m.parameters(), 0.01, interval=2, freeze=8)
    )
    alone, variance, updates = copy.deepcopy(model), 0.0, 0
    for step in range(1, 13):
        exact = optimizer.is_exact(step)
        assert attached.reducer.schemes["0.weight"] == ("raw" if exact else "direct/onebit/ef")
        alone.load_state_dict(model.state_dict())
        mean_gradients(comm, alone, step)
        train(comm, model, optimizer, [step])
        if exact:
            variance, updates = 0.999 * variance + 0.001 * alone[0].weight.grad.double() ** 2, updates + 1
        expected = (variance / (1 - 0.999**updates)).sqrt() + 1e-8
        divisor = optimizer.state[model[0].weight]["divisor"]
        torch.testing.assert_close(divisor.double(), expected, rtol=1e-3, atol=1e-6)
        assert alike(comm, content(model))
    assert "variance" not in optimizer.state[model[0].weight]


def test_an_element_without_variance_is_not_divided_by_zero(comm):
    """A row of an embedding that no batch of the warm-up has."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(3, 4)
    optimizer = gqt.OneBitAdam(model.parameters(), lr=0.01, warmup=2)
    attached = gqt.attach(model, optimizer, "ring/raw", comm=comm)
    for step in range(5):
        optimizer.zero_grad()
        before = model.weight.detach().clone()
        model(torch.tensor([0, 1] if step < 2 else [0, 1, 2])).square().sum().backward()
        optimizer.step()
        assert (model.weight - before).abs().max() < 0.5
    attached.detach()


@pytest.mark.parametrize("scheme", ["direct/onebit/ef", "direct/adaptive(pi=8)/ef", "direct/qsgd(bits=4)"])
def test_replicas_stay_alike_and_learn(comm, scheme):
    model, optimizer, attached = make(comm, f"*.bias=ring/raw; *={scheme}", optimizer=onebit_adam(10))
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(model, *batch(comm, step % 3))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert attached.reducer.schemes["first.weight"] == ("raw" if step < 9 else scheme)  # of the next step
    assert alike(comm, content(model))
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[10:13])


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("kind", ["one bit", "zero one"])
def test_a_checkpoint_goes_on_with_the_same_bits(comm, steps, kind):
    def made():
        rare = lambda model: gqt.ZeroOneAdam(model.parameters(), 0.01, interval=1)  # noqa: E731
        return make(comm, RULES, optimizer=rare if kind == "zero one" else onebit_adam(3))

    model, optimizer, attached = made()
    train(comm, model, optimizer, range(steps))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sums": attached.state_dict()}, file)
    train(comm, model, optimizer, range(steps, 7))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, its_optimizer, its_sums = made()
    again.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    its_sums.load_state_dict(saved["sums"])
    train(comm, again, its_optimizer, range(steps, 7))
    assert content(again) == content(model)


def test_momentum_and_clipping_follow_the_scale(comm):
    """By powers of two, so that nothing is rounded."""
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=2)
    options = {"model": torch_linear, "clip": 0.5, "optimizer": onebit_adam(2)}
    plain, scaled = make(comm, **options), make(comm, scaler=scaler, **options)
    for step in range(6):
        train_scaled(comm, *plain, None, step)
        train_scaled(comm, *scaled, scaler, step)
        assert content(plain[0]) == content(scaled[0])


@pytest.mark.parametrize("option", ["momentum", "momentum_correction"])
def test_momentum_of_sums_is_that_of_the_optimizer(comm, option):
    """With exact sums, that is."""
    model, optimizer, _ = make(
        comm, "ring/raw", model=torch_linear, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1), **{option: 0.9}
    )
    alone = copy.deepcopy(model)
    beside = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    require_equal_training(comm, model, optimizer, alone, beside)


@pytest.mark.parametrize("interval", [None, 2])
def test_residuals_that_are_flushed_are_no_step_of_the_variance(comm, interval):
    """The exact steps stay those of the sums."""
    rare = lambda m: gqt.ZeroOneAdam(m.parameters(), 0.01, interval=interval)  # noqa: E731
    model, optimizer, attached = make(comm, RULES, model=torch_linear, optimizer=rare if interval else onebit_adam(4))
    updates = 0
    for step in range(1, 12):
        train(comm, model, optimizer, [step])
        updates += optimizer.is_exact(step)
        assert optimizer.state[model[0].weight]["updates"] == updates
        if step % 3 == 0:
            attached.flush()
            assert optimizer.state[model[0].weight]["updates"] == updates
        assert optimizer.state[model[0].weight]["step"] == attached.reducer.stats.steps == step
    assert alike(comm, content(model))


def test_a_step_that_is_left_out_does_not_falsify_the_variance(comm):
    """After `wait`; the momentum before the next one is not known then."""
    model, optimizer, attached = make(comm, model=torch_linear, optimizer=onebit_adam(9))
    for step in range(1, 7):
        optimizer.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        attached.wait()
        if step != 3:
            optimizer.step()
        else:
            attached.discard()
    assert optimizer.state[model[0].weight]["updates"] == 4  # steps 1, 2, 5, 6


def test_a_tensor_without_gradients_in_the_warmup_has_the_variance_of_the_others(comm):
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(6, 1, bias=False) for name in ("early", "late")})
    optimizer = gqt.OneBitAdam(layers.parameters(), lr=1e-3, warmup=3)
    attached = gqt.attach(layers, optimizer, "ring/raw", comm=comm)
    before = layers["late"].weight.detach().clone()
    for step in range(6):
        optimizer.zero_grad()
        x, _ = batch(comm, step)
        (layers["early"](x) + (layers["late"](x) if step > 2 else 0) - 1).pow(2).sum().backward()
        optimizer.step()
    assert 0 < (layers["late"].weight - before).abs().max() < 0.1
    attached.detach()


def test_another_beta_than_that_of_the_sums_is_an_error(comm):
    model, optimizer, _ = make(comm, optimizer=onebit_adam(3))
    train(comm, model, optimizer, range(1))
    optimizer.param_groups[0]["betas"] = (0.5, 0.999)
    with pytest.raises(ValueError, match=r"expected 0\.9"):
        train(comm, model, optimizer, range(1, 2))


def test_an_optimizer_without_sums_is_an_error(comm):
    model = torch_linear()
    optimizer = gqt.OneBitAdam(model.parameters(), warmup=3)
    loss_of(model, *batch(comm, 0)).backward()
    with pytest.raises(gq.Error, match="no model is attached with this optimizer"):
        optimizer.step()
    model, optimizer, attached = make(comm, optimizer=onebit_adam(3))
    train(comm, model, optimizer, range(2))
    attached.detach()
    with pytest.raises(gq.Error, match="no model is attached"):
        train(comm, model, optimizer, range(1))


def test_sums_without_the_state_of_the_optimizer_are_an_error(comm):
    model, optimizer, attached = make(comm, RULES, optimizer=onebit_adam(3))
    train(comm, model, optimizer, range(4))
    again, its_optimizer, its_sums = make(comm, RULES, optimizer=onebit_adam(3))
    its_sums.load_state_dict(attached.state_dict())
    with pytest.raises(ValueError, match="load the state of the optimizer too"):
        train(comm, again, its_optimizer, range(4, 5))


@pytest.mark.parametrize(
    "wrong", [{"warmup": 0}, {"warmup": 1.5}, {"warmup": True}, {"lr": -1}, {"betas": (0.9, 1)}, {"eps": float("nan")}]
)
def test_unfit_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        gqt.OneBitAdam(torch_linear().parameters(), **{"warmup": 5, **wrong})
    for unfit in ({"interval": 0}, {"freeze": 0}, {"freeze": 1.5}):
        with pytest.raises(ValueError, match="a whole number of steps"):
            gqt.ZeroOneAdam(torch_linear().parameters(), **unfit)


def test_options_that_contradict_the_optimizer_are_refused(comm):
    for wrong in ({"momentum": 0.5}, {"warmup": 4}):
        with pytest.raises(ValueError, match="as the OneBitAdam has it"):
            make(comm, optimizer=onebit_adam(3), **wrong)
    layers = torch_linear()
    groups = [{"params": layers[0].parameters(), "betas": (0.5, 0.9)}, {"params": layers[2].parameters()}]
    with pytest.raises(ValueError, match="the same for all"):
        make(comm, model=lambda: layers, optimizer=lambda model: gqt.OneBitAdam(groups, warmup=3))
    with pytest.raises(ValueError, match="chooses those steps itself"):
        make(comm, optimizer=lambda model: gqt.ZeroOneAdam(model.parameters()), warmup=5)
    with pytest.raises(TypeError, match="unknown option 'bucket_cap_mb'; known: average, bucket"):
        make(comm, bucket_cap_mb=25)
    model, optimizer, _ = make(comm, optimizer=onebit_adam(3))
    with pytest.raises(ValueError, match="got a closure"):
        optimizer.step(lambda: loss_of(model, *batch(comm, 0)))

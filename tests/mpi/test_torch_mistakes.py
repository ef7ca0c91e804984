"""What users of DDP and Horovod get wrong at first: each is an error or a warning that says what to do."""

import copy
import gc
import warnings
import weakref

import numpy as np
import pytest
from ranks import TIMEOUT
from torch_training import batch, gqt, loss_of, make, torch, torch_linear, train

import gqallreduce as gq

pytestmark = pytest.mark.mpi


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def scale(model):
    for each in model.parameters():
        each.grad = each.grad * 2  # another tensor


def clear(model):
    model.zero_grad(set_to_none=False)


@pytest.mark.parametrize("change", [clip, scale, clear])
def test_gradients_that_are_changed_before_their_sums_are_there(comm, change):
    """The sums of this rank's part of a mini-batch would be of other values than those that ranks step by."""
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    train(comm, model, optimizer, range(2))
    loss_of(model, *batch(comm, 2)).backward()
    change(model)
    with pytest.raises(ValueError, match=r"'\d\.\w+' was changed after backward\(\).*call wait\(\) before"):
        optimizer.step()
    train(comm, model, optimizer, range(3, 5))
    attached.compare()


def test_gradients_that_one_rank_changes(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    loss_of(model, *batch(comm, 0)).backward()
    if comm.rank == comm.size - 1:
        clip(model)
    with pytest.raises(ValueError if comm.rank == comm.size - 1 else gq.MismatchError):
        optimizer.step()
    train(comm, model, optimizer, range(2))
    attached.compare()


def test_clipping_after_wait_is_no_error(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    loss_of(model, *batch(comm, 0)).backward()
    attached.wait()
    clip(model)
    optimizer.step()
    attached.compare()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("rate", [float, torch.tensor])
def test_another_learning_rate_on_one_rank(comm, rate):
    def optimizer(model, own):
        return torch.optim.AdamW(model.parameters(), lr=rate(own), capturable=False, foreach=False)

    with pytest.raises(gq.MismatchError, match="options"):
        make(comm, optimizer=lambda model: optimizer(model, 0.5 if comm.rank == comm.size - 1 else 0.25))
    make(comm, optimizer=lambda model: optimizer(model, 0.25))[2].detach()


@pytest.mark.parametrize("how", ["attach", "LocalSGD"])
def test_processes_of_torchrun_that_are_no_ranks(comm, monkeypatch, how):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if how == "attach":
            make(comm)
        else:
            model = torch_linear()
            inner = torch.optim.SGD(model.parameters(), 0.1)
            gqt.LocalSGD(model, inner, gqt.mean, every=2, rules="*=raw", comm=comm, timeout=TIMEOUT).close()
    assert [str(each.message).partition(",")[0] for each in told] == ["WORLD_SIZE is 2"] * (comm.size == 1)
    assert all(each.filename == __file__ for each in told if how == "LocalSGD")


def test_momentum_of_the_sums_and_of_the_optimizer(comm):
    with pytest.warns(UserWarning, match=r"momentum=0\.9 is in the sums, and SGD has one too"):
        make(comm, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(comm, momentum=0.9, optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1))
        make(comm, optimizer=lambda model: gqt.OneBitAdam(model.parameters(), warmup=2))


@pytest.mark.parametrize("kind", [gqt.OneBitAdam, gqt.ZeroOneAdam])
def test_the_state_of_another_optimizer(comm, kind):
    def ours(model):
        return kind(model.parameters(), **({"warmup": 2} if kind is gqt.OneBitAdam else {}))

    model, adam, attached = make(comm, optimizer=lambda model: torch.optim.AdamW(model.parameters()))
    train(comm, model, adam, range(2))
    attached.detach()
    model, optimizer, attached = make(comm, optimizer=ours)
    with pytest.raises(ValueError, match=r"exp_avg, exp_avg_sq; expected that of a \w+Adam"):
        optimizer.load_state_dict(adam.state_dict())
    train(comm, model, optimizer, range(4))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    attached.compare(buffers=False)


@pytest.mark.mpi(min_size=2)
def test_statistics_of_batch_norm_need_not_be_compared(comm):
    model, optimizer, attached = make(comm)
    train(comm, model, optimizer, range(2))
    with pytest.raises(gq.ReplicaError, match=r"'norm\.running_mean' of ranks \[1"):
        attached.compare()
    attached.compare(buffers=False)
    with torch.no_grad():
        model.second.bias += comm.rank
    with pytest.raises(gq.ReplicaError, match=r"'second\.bias' of ranks \[1.*same state of the optimizer"):
        attached.compare(buffers=False)


def test_a_rule_for_none_of_many_tensors_is_told_with_the_first_of_them(comm):
    named = {f"layer{number}.weight": np.ones(3, np.float32) for number in range(100)}
    reducer = gq.Reducer("*.bia=raw; *=onebit/ef", comm=comm, timeout=TIMEOUT)
    with pytest.raises(ValueError, match=r"layer0\.weight, .*layer19\.weight, \.\.\. \(100 in all\)$"):
        reducer.register(named)


def test_no_gradient_is_kept_for_longer_than_the_optimizer_keeps_it(comm):
    model, optimizer, attached = make(comm, "ring/raw", model=torch_linear)
    train(comm, model, optimizer, range(2))
    kept = [weakref.ref(each.grad) for each in model.parameters()]
    optimizer.zero_grad()
    gc.collect()
    assert not any(each() is not None for each in kept)
    attached.compare()


def test_options_of_an_optimizer_that_are_objects(comm):
    """Of which ranks have one each."""

    class Schedule:
        pass

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), 0.1)
        made.param_groups[0]["schedule"] = Schedule()
        return made

    make(comm, optimizer=optimizer)[2].detach()

"""States of attached models: loaded on other numbers of ranks, and into other models."""

import numpy as np
import pytest
from ranks import alike
from torch_training import content, gqt, make, torch, torch_linear, train
from travelling import require_same_sums, sizes, some

from gqallreduce.torch.tensors import from_tensors

pytestmark = pytest.mark.mpi
LEARNING = "*.bias=ring/raw; 0.weight=direct/alq(bits=3)/ef; *=direct/onebit/ef"


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


KINDS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "optimizer": sgd},
    "momentum_correction": {"momentum_correction": 0.9, "optimizer": sgd},
    "one bit": {"optimizer": lambda model: gqt.OneBitAdam(model.parameters(), 0.01, warmup=4)},
    "zero one": {"optimizer": lambda model: gqt.ZeroOneAdam(model.parameters(), 0.01, interval=1)},
}


def job(part, options, saved, steps):
    """Of all ranks of a job that goes on from all checkpoints, if there are any: sums as loaded, and checkpoints."""
    model, optimizer, attached = make(part, LEARNING, model=torch_linear, **options)
    with attached:
        if saved is not None:
            model.load_state_dict(saved[0]["model"])
            optimizer.load_state_dict(saved[0]["optimizer"])
            attached.load_state_dict([each["sums"] for each in saved[::-1]])  # in any order
        loaded = attached.state_dict()
        train(part, model, optimizer, steps)
        made = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sums": attached.state_dict()}
        return [part.allgather(each) for each in (loaded, made, content(model))]


def require_same(loaded, saved, kind):
    """States of attached models, of all ranks each: is what the new ranks have together what the old ones had?"""
    new, old = ([from_tensors(each["reducer"]) for each in states] for states in (loaded, saved))
    assert {each["steps"] for each in new} == {old[0]["steps"]}
    for text in old[0]["schemes"]:
        require_same_sums(*([each["schemes"][text] for each in states] for states in (new, old)))
    ours, theirs = ([each["momentum"]["kept"] for each in states] for states in (new, old))
    assert bool(theirs[0]) == (kind != "plain")
    if kind == "momentum_correction":  # each rank's own: their sum stays
        ours, theirs = ([{name: sum(each[name] for each in kept) for name in kept[0]}] for kept in (ours, theirs))
    for kept in ours:
        assert kept.keys() == theirs[0].keys()
        for name, momentum in theirs[0].items():
            np.testing.assert_allclose(kept[name], momentum, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_states_travel_to_other_numbers_of_ranks(comm, kind):
    """Sums of residuals, what was learned, and momenta."""
    saved, steps = None, 0
    for size in sizes(comm):
        found = None
        with some(comm, size) as part:
            if part is not None:
                found = job(part, KINDS[kind], saved, range(steps, steps + 3))
        loaded, made, contents = comm.bcast(found)
        if saved is not None:
            require_same(loaded, [each["sums"] for each in saved], kind)
        assert len(set(contents)) == 1
        saved, steps = made, steps + 3
    kept = from_tensors(saved[0]["sums"]["reducer"])["schemes"]["direct/onebit/ef"]["keys"]
    assert kept["2.weight"]["residual"].any()


OTHERS = {
    "other shapes": lambda: torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 8)),
    "other names": lambda: torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 8)),
    "one layer more": lambda: torch_linear().append(torch.nn.Linear(8, 8)),
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", ["plain", "one bit"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_state_of_another_model_changes_nothing(comm, other, kind, several):
    other_model, other_optimizer, other_sums = make(comm, model=OTHERS[other], **KINDS[kind])
    train(comm, other_model, other_optimizer, range(2))
    state = comm.allgather(other_sums.state_dict()) if several else other_sums.state_dict()
    model, optimizer, attached = make(comm, model=torch_linear, nonfinite="skip", **KINDS[kind])
    train(comm, model, optimizer, range(3))
    optimizer.zero_grad()
    (model(torch.ones(2, 6)).sum() * float("nan")).backward()
    optimizer.step()
    before = from_tensors(attached.state_dict())
    assert before["skipped"] == 1
    with pytest.raises(ValueError, match="as in this model"):
        attached.load_state_dict(state)
    np.testing.assert_equal(from_tensors(attached.state_dict()), before)
    train(comm, model, optimizer, range(3, 5))
    assert alike(comm, content(model))
    assert attached.reducer.stats.steps == 5

"""LocalSGD at the end of a training, and where a state is loaded while a NaN is on its way."""

import copy

import pytest
from local_training import EXACT, make, train
from ranks import TIMEOUT
from torch_training import gqt, torch, torch_linear

import gqallreduce as gq

pytestmark = pytest.mark.mpi


def values(model):
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def same(found, expected):
    return all(torch.equal(found[name], each) for name, each in expected.items())


@pytest.fixture
def poisoned(comm):
    """(model, object, its state of before, the model's parameters then): the sum of a NaN is under way."""
    model, local = make(comm, every=4, delay=2)
    train(comm, model, local, range(3))
    state, before, inner = local.state_dict(), values(model), copy.deepcopy(local._inner.state_dict())
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    train(comm, model, local, [3])
    assert local.fragments[0].under_way
    local._inner.load_state_dict(inner)
    yield model, local, state, before
    local.close()


def test_a_model_that_was_loaded_is_kept_though_the_dropped_sum_had_a_nan(comm, poisoned):
    model, local, state, before = poisoned
    model.load_state_dict(before)
    local.load_state_dict(state)
    assert same(values(model), before)
    train(comm, model, local, range(3, 8))
    local.compare()


def test_a_state_that_is_refused_drops_no_error(comm, poisoned):
    model, local, state, _ = poisoned
    state = copy.deepcopy(state)
    del state["fragments"][0]["outer"]
    own = values(model)
    with pytest.raises(ValueError, match="a fragment is dict"):
        local.load_state_dict(state)
    assert all(torch.equal(each.isnan(), own[name].isnan()) for name, each in values(model).items())
    with pytest.raises(gq.NonFiniteError):
        train(comm, model, local, [4, 5])
    assert same(values(model), local.outer_parameters())


@pytest.mark.parametrize("options", [{}, {"fragments": 2}, {"fragments": 2, "every": 4, "delay": 2}], ids=str)
def test_a_second_end_changes_nothing(comm, options):
    model, local = make(comm, **options)
    train(comm, model, local, range(7))
    local.finish()
    once = values(model)
    local.finish()
    assert same(values(model), once)
    assert same(local.outer_parameters(), once)


def test_the_end_just_after_an_outer_step_changes_nothing(comm):
    model, local = make(comm)
    train(comm, model, local, range(6))
    found = values(model)
    local.finish()
    assert same(values(model), found)


def test_an_end_is_the_same_after_a_checkpoint(comm):
    ends = []
    for cut in (False, True):
        model, local = make(comm)
        train(comm, model, local, range(6))
        if cut:
            state = local.state_dict()
            local.close()
            own, (model, local) = values(model), make(comm)
            model.load_state_dict(own)
            local.load_state_dict(state)
        local.finish()
        ends.append(values(model))
        local.close()
    assert same(*ends)


@pytest.mark.parametrize("what", ["finish", "load_state_dict", "step"])
def test_what_changes_the_model_is_refused_within_the_outer_model(comm, what):
    model, local = make(comm)
    train(comm, model, local, range(4))
    arguments = [local.state_dict()] if what == "load_state_dict" else []
    own = values(model)
    with local.outer_model(), pytest.raises(gq.Error, match=rf"{what}\(\) within outer_model"):
        getattr(local, what)(*arguments)
    assert same(values(model), own)


def test_first_outer_steps_by_other_rules_of_the_whole_model(comm):
    model, local = make(
        comm, rules="*=onebit/ef", outer=gqt.mean, fragments=2, warmup=1, warmup_rules="0.*=raw; *=dense"
    )
    train(comm, model, local, range(3))
    for part in local.fragments:
        texts = {each.rule for each in part.reducer.stats.tensors.values()}
        assert texts == ({"raw"} if part.names[0].startswith("0.") else {"dense"})
    with pytest.raises(ValueError, match="applies to no tensor"):
        make(comm, fragments=2, warmup=1, warmup_rules="nothing=raw; *=dense")


def test_an_outer_optimizer_of_other_parameters_is_refused(comm):
    model = torch_linear()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    others = lambda _: torch.optim.SGD(model.parameters(), lr=1)  # noqa: E731
    with pytest.raises(ValueError, match="outer: it is given the parameters that it must optimize"):
        gqt.LocalSGD(model, inner, others, every=3, rules=EXACT, comm=comm, timeout=TIMEOUT)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_finishes_earlier_is_told(comm):
    """Its sum meets that of an outer step of the others; nothing of either is kept."""
    model, local = make(comm, every=5)
    train(comm, model, local, range(5))
    before = {name: each.clone() for name, each in local.outer_parameters().items()}
    early = comm.rank == comm.size - 1
    train(comm, model, local, range(2 if early else 4))
    with pytest.raises(gq.MismatchError, match="another number of steps") as caught:
        local.finish() if early else train(comm, model, local, [9])
    assert caught.value.field == "frame"
    assert same(local.outer_parameters(), before)
    local.close()


@pytest.mark.mpi(min_size=2)
def test_steps_are_compared_after_a_state_is_loaded(comm):
    model, local = make(comm, every=5)
    train(comm, model, local, range(5))
    other, again = make(comm, every=5)
    again.load_state_dict(local.state_dict())
    train(comm, other, again, range(5))
    again.compare()
    local.close()
    again.close()

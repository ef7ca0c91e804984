"""Ranks that train by themselves and now and then sum what has changed: against the formulas in one process."""

import copy
import io

import pytest
from local_training import EXACT, LOSSY, make, train
from ranks import alike
from torch_training import DEVICE, Net, batch, bytes_of, gqt, loss_of, torch, torch_linear

import gqallreduce as gq

pytestmark = pytest.mark.mpi


class Reference:
    """All ranks in one process, in float64, by the formulas of Streaming DiLoCo (algorithm 2)."""

    def __init__(self, comm, model, every, outer, parts=None, delay=0, keep=0.0):
        self.comm, self.every, self.delay, self.keep = comm, every, delay, keep
        self.models = [copy.deepcopy(model).double() for _ in range(comm.size)]
        self.inners = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.5) for each in self.models]
        names = [name for name, _ in model.named_parameters()]
        self.parts = [names] if parts is None else parts
        self.outer = {name: each.detach().clone() for name, each in self.models[0].named_parameters()}
        self.outers = [outer([self.outer[name] for name in part]) for part in self.parts]
        self.changes, self.steps = [None] * len(self.parts), 0

    def step(self):
        for rank, (model, inner) in enumerate(zip(self.models, self.inners, strict=True)):
            inner.zero_grad()
            x, y = batch(self.comm, self.steps, rank)
            loss_of(model, x.double(), y.double()).backward()
            inner.step()
        self.steps += 1
        for number, part in enumerate(self.parts):
            due = (number + 1) * self.every // len(self.parts)
            if self.changes[number] is not None and (self.steps - due - self.delay) % self.every == 0:
                self._apply(number, part)
            if (self.steps - due) % self.every == 0:
                self.changes[number] = {name: self._change(name) for name in part}
                if self.delay == 0:
                    self._apply(number, part)

    def _change(self, name):
        found = [dict(model.named_parameters())[name].detach() for model in self.models]
        return sum(self.outer[name] - each for each in found) / len(found)

    def _apply(self, number, part):
        for name in part:
            self.outer[name].grad = self.changes[number][name]
        self.outers[number].step()
        self.changes[number] = None
        with torch.no_grad():
            for model in self.models:
                for name in part:
                    own = dict(model.named_parameters())[name]
                    own.copy_(self.keep * own + (1 - self.keep) * self.outer[name])


def require_equal(comm, model, local, reference):
    for name, each in local.outer_parameters().items():
        torch.testing.assert_close(each.double(), reference.outer[name], rtol=1e-4, atol=1e-6)
    for name, each in model.named_parameters():
        expected = dict(reference.models[comm.rank].named_parameters())[name]
        torch.testing.assert_close(each.double(), expected, rtol=1e-4, atol=1e-6)


def test_with_a_plain_outer_step_it_is_the_mean_of_the_models(comm):
    model, local = make(comm, outer=gqt.mean)
    reference = Reference(comm, model, 3, gqt.mean)
    for step in range(7):
        train(comm, model, local, [step])
        reference.step()
        require_equal(comm, model, local, reference)


def test_by_default_it_is_diloco(comm):
    model, local = make(comm)
    reference = Reference(comm, model, 3, gqt.nesterov)
    for step in range(10):
        train(comm, model, local, [step])
        reference.step()
    require_equal(comm, model, local, reference)


@pytest.mark.parametrize(("delay", "keep"), [(0, 0.0), (1, 0.0), (3, 0.5)])
def test_parts_follow_each_other_and_are_applied_later(comm, delay, keep):
    model, local = make(comm, every=4, fragments=2, delay=delay, keep=keep)
    parts = [each.names for each in local.fragments]
    assert [name for part in parts for name in part] == [name for name, _ in model.named_parameters()]
    reference = Reference(comm, model, 4, gqt.nesterov, parts, delay, keep)
    for step in range(13):
        train(comm, model, local, [step])
        reference.step()
        require_equal(comm, model, local, reference)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_parts_are_about_equal_and_none_is_empty(number):
    from gqallreduce.torch.fragments import divide

    sizes = [100, 1, 30, 30, 40, 5, 60]
    parts = divide({str(place): torch.zeros(size) for place, size in enumerate(sizes)}, number)
    assert len(parts) == number
    assert [name for part in parts for name in part] == [str(place) for place in range(len(sizes))]
    most = max(sum(each.numel() for each in part.values()) for part in parts)
    assert most <= sum(sizes) / number + max(sizes)


def test_outer_parameters_are_alike_and_the_training_goes_on(comm):
    model, local = make(comm, LOSSY)
    before = comm.allreduce(loss_of(model, *batch(comm, 0)).item())
    train(comm, model, local, 31 * [0])
    local.compare()
    outer = bytes_of(*local.outer_parameters().values())
    assert alike(comm, outer)
    assert local.fragments[0].reducer.stats.steps == 10
    with local.outer_model():
        assert bytes_of(*model.parameters()) == outer
        assert comm.allreduce(loss_of(model, *batch(comm, 0)).item()) < before


def test_the_model_has_its_own_parameters_again_after_a_look_at_the_outer_ones(comm):
    model, local = make(comm)
    train(comm, model, local, range(2))
    before = [each.detach().clone() for each in model.parameters()]
    with local.outer_model():
        for each, outer in zip(model.parameters(), local.outer_parameters().values(), strict=True):
            assert torch.equal(each, outer)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))


def test_step_tells_of_outer_steps(comm):
    model, local = make(comm, every=2)
    found = []
    for step in range(5):
        model.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        found.append(local.step())
    assert found == [False, True, False, True, False]
    assert local.steps == 5


@pytest.mark.parametrize("steps", [2, 3, 5, 6])
def test_a_training_goes_on_from_a_checkpoint_as_if_nothing_had_been(comm, steps):
    """Also where sums are under way."""
    options = {"rules": LOSSY, "every": 4, "fragments": 2, "delay": 2, "keep": 0.5}
    model, local = make(comm, **options)
    train(comm, model, local, range(steps))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "inner": local._inner.state_dict(), "local": local.state_dict()}, file)
    train(comm, model, local, range(steps, 14))
    other, again = make(comm, **options)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other.load_state_dict(state["model"])
    again._inner.load_state_dict(state["inner"])
    again.load_state_dict(state["local"])
    train(comm, other, again, range(steps, 14))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))
    for name, each in local.outer_parameters().items():
        assert torch.equal(each, again.outer_parameters()[name])


def test_the_states_of_another_number_of_ranks(comm):
    """All ranks' states, on one rank: the outer parameters, and the sum of all residuals."""
    model, local = make(comm, LOSSY)
    train(comm, model, local, range(7))
    states = comm.allgather(local.state_dict())
    alone = comm.Split(comm.rank)
    other, again = make(alone, LOSSY)
    again.load_state_dict(states)
    for name, each in local.outer_parameters().items():
        assert torch.equal(dict(other.named_parameters())[name], each)
    total = sum(comm.allgather(residual_of(local)))
    torch.testing.assert_close(torch.from_numpy(residual_of(again)), torch.from_numpy(total), rtol=1e-4, atol=1e-5)
    again.close()
    alone.Free()


def residual_of(local):
    state = local.fragments[0].reducer.state_dict()["schemes"][str(gq.Scheme.parse("direct/onebit/ef"))]
    return state["keys"]["0.weight"]["residual"]


def test_after_a_nan_on_one_rank_all_have_the_outer_parameters(comm):
    model, local = make(comm, LOSSY)
    train(comm, model, local, range(3))
    if comm.rank == comm.size - 1:
        next(model.parameters()).data[0, 0] = float("nan")
    train(comm, model, local, range(3, 5))
    with pytest.raises(gq.NonFiniteError) as found:
        train(comm, model, local, [5])
    assert found.value.rank == comm.size - 1
    for each, outer in zip(model.parameters(), local.outer_parameters().values(), strict=True):
        assert torch.equal(each, outer)
    local._inner.state.clear()
    train(comm, model, local, range(6, 12))
    local.compare()
    assert all(each.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize(
    "options", [{"fragments": 2}, {"fragments": 3, "every": 2, "delay": 1}, {"fragments": 2, "delay": 2}], ids=str
)
def test_one_bad_batch_ends_one_outer_step_of_each_part_at_most(comm, options):
    """A NaN spreads to all parts in the next step; and sums of several parts may be due at one step."""
    model, local = make(comm, LOSSY, **{"every": 4, **options})
    failed = 0
    for step in range(24):
        model.zero_grad()
        loss_of(model, *batch(comm, step)).backward()
        if step == 5 and comm.rank == 0:
            for each in model.parameters():
                each.grad.fill_(float("nan"))
        try:
            local.step()
        except gq.NonFiniteError:
            failed += 1
            if comm.rank == 0:
                local._inner.state.clear()
    assert 1 <= failed <= len(local.fragments)
    assert all(each.isfinite().all() for each in model.parameters())
    local.compare()
    local.finish()


def test_a_nan_that_a_checkpoint_meets(comm):
    model, local = make(comm, LOSSY, every=4, delay=2)
    train(comm, model, local, range(3))
    if comm.rank == 0:
        next(model.parameters()).data.fill_(float("nan"))
    train(comm, model, local, [3])
    with pytest.raises(gq.NonFiniteError):
        local.state_dict()
    local._inner.state.clear()
    train(comm, model, local, range(4, 12))
    local.compare()
    assert all(each.isfinite().all() for each in model.parameters())


def test_a_state_is_not_changed_by_the_training_after_it(comm):
    model, local = make(comm, LOSSY, every=2)
    train(comm, model, local, range(4))
    state = local.state_dict()
    before = copy.deepcopy(state)
    local.load_state_dict(state)
    train(comm, model, local, range(4, 8))
    kept, now = (each["fragments"][0]["optimizer"]["state"][0]["momentum_buffer"] for each in (before, state))
    assert torch.equal(kept, now)


def two_groups(parameters):
    groups = [{"params": [each for each in parameters if each.ndim == ndim]} for ndim in (1, 2)]
    return torch.optim.SGD(groups, lr=0.5, momentum=0.9)


def adafactor(parameters):
    return torch.optim.Adafactor(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


@pytest.mark.parametrize("outer", [two_groups, adafactor, adam])
def test_states_of_other_outer_optimizers_are_taken_back(comm, outer):
    model, local = make(comm, LOSSY, outer, every=2)
    train(comm, model, local, range(5))
    local.load_state_dict(local.state_dict())
    train(comm, model, local, range(5, 8))
    local.compare()


def test_a_parameter_that_is_frozen_later_is_left_alone(comm):
    model, local = make(comm, LOSSY, every=2)
    train(comm, model, local, range(4))
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    train(comm, model, local, range(4, 10))
    assert torch.equal(model[0].weight, frozen)


def test_a_copy_of_a_model_may_be_trained_too(comm):
    model, local = make(comm)
    other = copy.deepcopy(model)
    with gqt.attach(other, torch.optim.SGD(other.parameters(), 0.1), EXACT, comm=comm):
        pass
    local.close()


def test_a_scaler_that_skips_a_step_on_one_rank_disturbs_no_other(comm):
    model, local = make(comm, every=2)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0, growth_interval=1000)
    for step in range(6):
        model.zero_grad()
        scaler.scale(loss_of(model, *batch(comm, step))).backward()
        if step == 2 and comm.rank == 0:
            next(model.parameters()).grad[:] = float("inf")
        local.step(scaler)
        scaler.update()
    assert scaler.get_scale() == (2.0 if comm.rank == 0 else 4.0)
    local.compare()


def test_bfloat16_frozen_and_shared_parameters(comm):
    model, local = make(comm, LOSSY, model=lambda: Net(tied=True).to(torch.bfloat16))
    frozen = model.frozen.weight.detach().clone()
    for step in range(6):
        model.zero_grad()
        x, y = batch(comm, step)
        found = model.third(model.second(torch.relu(model.norm(model.first(x.bfloat16())))))
        torch.nn.functional.mse_loss(found, y.bfloat16()).backward()
        local.step()
    assert {each.dtype for each in local.outer_parameters().values()} == {torch.float32}
    assert "frozen.weight" not in local.outer_parameters()
    assert torch.equal(model.frozen.weight, frozen)
    assert alike(comm, bytes_of(*model.second.parameters()))
    local.compare()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ValueError, "every=0, expected a number of inner steps"),
        ({"every": 2.5}, TypeError, "every=2.5, expected an integer"),
        ({"delay": 3}, ValueError, "delay=3, expected 0 or more inner steps, fewer than every=3"),
        ({"keep": 1.0}, ValueError, "keep=1.0, expected a share"),
        ({"fragments": 9}, ValueError, "fragments=9, expected 1 to 4"),
        ({"rules": "*.beta=raw; *=raw"}, ValueError, "applies to no tensor"),
        ({"rules": "qsdg"}, ValueError, "qsgd"),
        ({"average": False}, TypeError, "unknown option 'average'"),
        ({"outer": lambda parameters: None}, TypeError, "outer: returned NoneType"),
        ({"outer": 1.0}, TypeError, "outer: got float"),
        ({"outer": torch.optim.SGD}, TypeError, "outer: got SGD, expected a function"),
        (
            {"inner": lambda model: torch.optim.SGD(torch_linear().parameters(), 0.1)},
            ValueError,
            "the optimizer lacks 0",
        ),
    ],
)
def test_wrong_arguments(comm, options, error, message):
    with pytest.raises(error, match=message):
        make(comm, **options)


def test_a_wrong_inner_optimizer_or_model(comm):
    with pytest.raises(TypeError, match="optimizer: got Linear"):
        gqt.LocalSGD(torch_linear(), torch_linear()[0], every=3, rules=EXACT, comm=comm)
    inner = torch.optim.SGD(torch_linear().parameters(), 0.1)
    with pytest.raises(TypeError, match="model: got SGD"):
        gqt.LocalSGD(inner, inner, every=3, rules=EXACT, comm=comm)


@pytest.mark.parametrize(
    "of_rank_0",
    [{"every": 4}, {"keep": 0.5}, {"delay": 1}, {"model": lambda: torch.nn.Linear(6, 8)}],
    ids=["every", "keep", "delay", "model"],
)
def test_a_rank_with_other_arguments(comm, of_rank_0):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    with pytest.raises(gq.MismatchError, match="another model, other rules, or others of every"):
        make(comm, **(of_rank_0 if comm.rank == 0 else {}))


def test_a_model_is_trained_in_one_way_at_a_time(comm):
    model, local = make(comm)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="attached already, or trained by LocalSGD"):
        gqt.attach(model, inner, EXACT, comm=comm)
    with pytest.raises(ValueError, match="attached already, or trained by LocalSGD"):
        gqt.LocalSGD(model, inner, every=3, rules=EXACT, comm=comm)
    local.close()
    gqt.attach(model, inner, EXACT, comm=comm).detach()


def test_steps_at_the_wrong_place(comm):
    model, local = make(comm)
    train(comm, model, local, [0])
    with pytest.raises(gq.Error, match=r"call local.step\(\) instead"):
        local._inner.step()
    with local.outer_model(), pytest.raises(gq.Error, match="within outer_model"):
        local.step()
    with pytest.raises(TypeError, match="scaler: got function"):
        local.step(lambda: 0)
    assert local.steps == 1
    local.close()
    with pytest.raises(gq.Error, match="after close"):
        local.step()
    local._inner.step()  # again the optimizer of a single process


@pytest.mark.parametrize("delay", [0, 2])
def test_at_the_end_the_model_is_the_common_one(comm, delay):
    model, local = make(comm, LOSSY, every=4, fragments=2, delay=delay)
    train(comm, model, local, range(7))
    local.finish()
    outer = bytes_of(*local.outer_parameters().values())
    assert bytes_of(*model.parameters()) == outer
    assert alike(comm, outer)


def test_the_end_takes_over_what_was_trained_since_the_last_outer_step(comm):
    model, local = make(comm, outer=gqt.mean)
    train(comm, model, local, range(5))
    mine = [each.detach().clone() for each in model.parameters()]
    local.finish()
    for each, own in zip(model.parameters(), mine, strict=True):
        expected = sum(torch.from_numpy(found) for found in comm.allgather(own.cpu().numpy())).to(DEVICE) / comm.size
        torch.testing.assert_close(each.detach(), expected)


@pytest.mark.parametrize("harm", ["steps", "settings", "fragments", "outer", "optimizer", "optimizer text", "type"])
def test_a_state_that_does_not_fit(comm, harm):
    model, local = make(comm, LOSSY)
    train(comm, model, local, range(4))
    state = local.state_dict()
    before = copy.deepcopy(state)
    if harm == "steps":
        state["steps"] = -1
    elif harm == "settings":
        state["settings"]["every"] = 8
    elif harm == "fragments":
        state["fragments"] = []
    elif harm == "outer":
        del state["fragments"][0]["outer"]["0.weight"]
    elif harm.startswith("optimizer"):
        momentum = "x" if "text" in harm else torch.zeros(3)
        state["fragments"][0]["optimizer"]["state"][0]["momentum_buffer"] = momentum
    else:
        state = [1]
    with pytest.raises(ValueError, match="state"):
        local.load_state_dict(state)
    after = local.state_dict()
    assert after["steps"] == before["steps"]
    for name, each in after["fragments"][0]["outer"].items():
        assert torch.equal(each, before["fragments"][0]["outer"][name])

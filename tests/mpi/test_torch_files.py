"""What `attach` returned, written by `gq.save` and read by `gq.load`."""

import copy

import pytest
from torch_training import DEVICE, content, make, torch, torch_linear, train, train_scaled

import gqallreduce as gq

pytestmark = pytest.mark.mpi


def go_on_from(states, model, optimizer, scaler):
    for each, state in zip((model, optimizer, scaler), states, strict=True):
        each.load_state_dict(state)


def test_training_goes_on_with_the_same_bits_after_the_scale_has_changed(comm, folder):
    """Residuals are in units of the scale of the last sum, which the scaler has doubled since."""
    scalers = [torch.amp.GradScaler(DEVICE, init_scale=16.0, growth_interval=1) for _ in range(2)]
    made = [make(comm, model=torch_linear, scaler=scaler) for scaler in scalers]
    for step in range(3):
        train_scaled(comm, *made[0], scalers[0], step)
    gq.save(folder, made[0][2])
    states = copy.deepcopy([each.state_dict() for each in (*made[0][:2], scalers[0])])
    gq.load(folder, made[1][2])
    go_on_from(states, *made[1][:2], scalers[1])
    for step in range(3, 6):
        for each, scaler in zip(made, scalers, strict=True):
            train_scaled(comm, *each, scaler, step)
        assert content(made[0][0]) == content(made[1][0])


def test_files_of_a_training_with_a_scaler_are_refused_without_one(comm, folder):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=16.0)
    scaled, plain = make(comm, model=torch_linear, scaler=scaler), make(comm, model=torch_linear)
    train_scaled(comm, *scaled, scaler, 0)
    gq.save(folder, scaled[2])
    before = content(plain[0])
    with pytest.raises(gq.Error, match="expected None, since there is no scaler"):
        gq.load(folder, plain[2])
    assert content(plain[0]) == before
    train(comm, *plain[:2], range(1))

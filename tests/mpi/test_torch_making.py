"""What is wrong with the arguments of `attach` or `LocalSGD` on one rank alone, all learn at once."""

import pytest
from ranks import TIMEOUT
from torch_training import Net, batch, gqt, loss_of, torch

import gqallreduce as gq

pytestmark = pytest.mark.mpi(min_size=2)


def attached(comm, **changes):
    model = Net()
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "rules": "*=onebit/ef", **changes}
    return gqt.attach(
        given.pop("model"), given.pop("optimizer"), given.pop("rules"), comm=comm, timeout=TIMEOUT, **given
    )


def local(comm, **changes):
    model = Net()
    given = {"outer": gqt.mean, "every": 3, "rules": "*=raw", **changes}
    inner = torch.optim.SGD(model.parameters(), 0.1)
    return gqt.LocalSGD(model, inner, given.pop("outer"), comm=comm, timeout=TIMEOUT, **given)


def of_two_warmups():
    return gqt.OneBitAdam(Net().parameters(), warmup=5)


WRONG = {
    "model": (attached, {"model": 3}, TypeError),
    "optimizer": (attached, {"optimizer": None}, TypeError),
    "parameters": (attached, {"optimizer": of_two_warmups}, ValueError),
    "rules": (attached, {"rules": "*=nonsense"}, ValueError),
    "an option": (attached, {"buckets": 3}, TypeError),
    "a bucket": (attached, {"bucket": "many"}, ValueError),
    "nonfinite": (attached, {"nonfinite": "perhaps"}, ValueError),
    "scaler": (attached, {"scaler": 3}, TypeError),
    "every": (local, {"every": 0}, ValueError),
    "keep": (local, {"keep": 2}, ValueError),
    "fragments": (local, {"fragments": 1000}, ValueError),
    "rules of changes": (local, {"rules": "*=nonsense"}, ValueError),
    "an unused rule": (local, {"rules": "nothing=raw; *=onebit"}, ValueError),
    "outer": (local, {"outer": torch.optim.SGD}, TypeError),
    "what outer returns": (local, {"outer": lambda parameters: 3}, TypeError),
}


@pytest.mark.parametrize("wrong", [0, -1])
@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_of_one_rank(comm, what, wrong):
    make, changes, kind = WRONG[what]
    changes, wrong = (
        {name: each() if each is of_two_warmups else each for name, each in changes.items()},
        wrong % comm.size,
    )
    with pytest.raises(kind if comm.rank == wrong else gq.MismatchError) as caught:
        make(comm, **(changes if comm.rank == wrong else {}))
    if comm.rank != wrong:
        assert (caught.value.field, caught.value.ranks) == ("arguments", (wrong,))
    made = attached(comm)
    loss_of(made._model, *batch(comm, 0)).backward()
    made.wait()
    made.detach()

"""Tensors of PyTorch as buffers of plain calls: autograd is told of each change."""

import numpy as np
import pytest

import gqallreduce as gq

torch = pytest.importorskip("torch", reason="needs PyTorch (make test-torch)")
pytestmark = pytest.mark.mpi

SHAPE = 4, 6


def tensor(comm, dtype=torch.float32):
    return torch.full(SHAPE, comm.rank + 1.0, dtype=dtype)


def by_function(comm, value, scheme):
    gq.quantized_allreduce(value, scheme, comm=comm)


def by_object(comm, value, scheme):
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        allreduce(value, key="a")


def by_request(comm, value, scheme):
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        allreduce.start(value, key="a").wait()


def into_another(comm, value, scheme):
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        allreduce(value.clone(), key="a", out=value)


def in_a_group(comm, value, scheme):
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        allreduce([np.ones(3, np.float32), value], key=["b", "a"])


def by_reducer(comm, value, scheme):
    with gq.Reducer(scheme, comm=comm, average=False) as reducer:
        reducer({"a": value})


def by_reduce_scatter(comm, value, scheme):
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        allreduce.reduce_scatter(value, key="a")


def by_allgather(comm, value, scheme):
    with gq.Allreduce(scheme, comm=comm) as allreduce:
        allreduce.allgather(None, key="a", out=value)


WAYS = by_function, by_object, by_request, into_another, in_a_group, by_reducer, by_reduce_scatter, by_allgather


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_autograd_refuses_to_compute_with_a_tensor_that_was_summed(comm, way, dtype):
    value, weight = tensor(comm, dtype), torch.ones(SHAPE, dtype=dtype, requires_grad=True)
    loss = (value * weight).sum()  # whose gradient is `value`
    way(comm, value, "direct/qsgd(bits=4)")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tensor_that_is_read_alone_may_be_used(comm):
    value, weight = tensor(comm), torch.ones(SHAPE, requires_grad=True)
    loss = (value * weight).sum()
    with gq.Allreduce("direct/raw", comm=comm) as allreduce:
        allreduce(value, out=torch.empty(SHAPE))
    loss.backward()
    assert torch.equal(weight.grad, value)


def test_tensors_made_in_inference_mode_are_summed(comm):
    with torch.inference_mode():
        value = tensor(comm)
        gq.quantized_allreduce(value, "direct/raw", comm=comm)
    assert value[0, 0] == comm.size * (comm.size + 1) / 2

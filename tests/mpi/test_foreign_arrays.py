"""Arrays that are not plain NumPy under MPI: views with gaps, Fortran order, array.array, torch tensors."""

import array

import numpy as np
import pytest
from ranks import TIMEOUT, Oracle, bytes_of, carrying, inputs, pairs

import gqallreduce as gq
from gqallreduce.backends.buffer import Buffer

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@carrying(pairs(True))
def test_a_view_with_a_leading_dimension_is_as_good_as_a_whole_array(comm, scheme, dtype):
    """Whose leading dimension may differ between ranks; what lies in the gaps stays as it is."""
    for order in "CF":
        reduce_view(comm, scheme, order, dtype)


def reduce_view(comm, scheme, order, dtype):
    allreduce, oracle = gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT), Oracle(comm, scheme)
    rows, columns = 37, 41
    gap = comm.rank + 1
    for step in range(2):
        arrays = inputs(comm.size, (rows, columns), dtype, order, step)
        expected, residual, counted = oracle(arrays)
        shape = (rows, columns + gap) if order == "C" else (rows + gap, columns)
        whole = np.full(shape, 5, arrays[0].dtype, order=order)
        view = whole[:rows, :columns]
        view[...] = arrays[comm.rank]
        assert allreduce(view, key="w") is view
        assert bytes_of(view) == expected
        assert bytes_of(allreduce.residual("w")) == residual
        assert allreduce.stats.last.bytes_sent == counted[0]
        assert (whole[rows:] == 5).all()
        assert (whole[:, columns:] == 5).all()


def test_array_array(comm):
    buf = array.array("d", [comm.rank, 1.0, 2.0])
    assert gq.quantized_allreduce(buf, "ring/raw", comm=comm) is buf
    assert list(buf) == [sum(range(comm.size)), comm.size, 2.0 * comm.size]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("scheme", ["direct/qsgd/ef", "ring/onebit/ef", "recursive_doubling/raw"])
def test_torch_tensors(comm, scheme, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    draws = inputs(comm.size, (30, 20))
    tensors = [torch.from_numpy(each.copy()).to(getattr(torch, dtype)) for each in draws]
    arrays = [Buffer(each).array for each in tensors]
    if dtype == "bfloat16":
        arrays = [each.view(pytest.importorskip("ml_dtypes").bfloat16) for each in arrays]
    expected = Oracle(comm, scheme)(arrays)[0]
    mine = tensors[comm.rank]
    assert gq.Allreduce(scheme, comm=comm, timeout=TIMEOUT)(mine, key="w") is mine
    assert bytes_of(Buffer(mine).array) == expected


def test_a_transposed_torch_tensor_is_in_fortran_order(comm):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.full((7, 50), 1.0 + comm.rank).T
    gq.Allreduce("raw", comm=comm, timeout=TIMEOUT)(tensor)
    assert (tensor == comm.size * (comm.size + 1) / 2).all()


def test_a_torch_tensor_with_its_channels_last_is_summed_in_place(comm):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    draws = inputs(comm.size, (4, 3, 5, 7))
    tensor = torch.from_numpy(draws[comm.rank].copy()).contiguous(memory_format=torch.channels_last)
    gq.Allreduce("ring/raw", comm=comm, timeout=TIMEOUT)(tensor)
    np.testing.assert_allclose(tensor.numpy(), np.sum(draws, axis=0), rtol=1e-5, atol=1e-5)

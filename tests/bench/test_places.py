"""Where the allreduce benchmark has its buffers, and for how many there is room; without MPI and without a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from devices import needs_device
from serial_runtime import SerialRuntime

from gqallreduce.backends.cuda import runtime
from gqallreduce.cli import machine, places

pytestmark = needs_device
GPU = "serial 0"  # where SerialRuntime says that it is


@pytest.fixture
def gpu():
    runtime.use(SerialRuntime)
    yield places.OnGpu(0, cuda_aware=False)
    runtime.use()


@pytest.mark.parametrize("place", ["host", "gpu"])
def test_a_buffer_is_filled_again_whatever_a_contender_left(gpu, place):
    pristine = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffers = places.Buffers(pristine, gpu if place == "gpu" else places.OnHost())
    assert not buffers.result().any()
    for _ in range(2):
        buffers.fill()
        assert buffers.given.shape == (3, 4)
        assert np.array_equal(buffers.result(), pristine)
        buffers.given[:] = 7
    assert np.array_equal(pristine, np.arange(12, dtype=np.float32).reshape(3, 4))


@pytest.mark.parametrize(
    ("neighbours", "ranks_of_room"), [([GPU], 1), ([GPU, "other"], 2), ([GPU, GPU], 1), ([GPU, GPU, "other"], 1.5)]
)
def test_ranks_that_share_a_gpu_share_its_room(gpu, monkeypatch, neighbours, ranks_of_room):
    """Half of what is free, for the ranks of a node together, as if all shared as this one does."""
    monkeypatch.setattr(machine, "free_memory", lambda: 1 << 40)
    local = SimpleNamespace(size=len(neighbours), allgather=lambda mine: neighbours)
    assert gpu.room(local) == ranks_of_room * SerialRuntime.free_memory // 2


def test_the_host_must_have_room_too(gpu, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 1000)
    assert gpu.room(SimpleNamespace(size=1, allgather=lambda mine: [mine])) == 500

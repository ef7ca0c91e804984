"""Where the buffers lie that a benchmark sums: in the host's memory, or in that of a GPU per rank."""

from gqallreduce.backends.cuda import awareness, runtime
from gqallreduce.backends.cuda.device import Device
from gqallreduce.backends.processor import Host
from gqallreduce.cli import dense, dense_on_gpu, machine
from gqallreduce.errors import Error


def place_of(comm, device, cuda_aware=None):
    """The place called `device`, host or cuda, of this rank; the ranks of a node take its GPUs in turn. Collective.

    cuda_aware
        may MPI be given GPU memory? None asks the MPI.

    Where one rank has no GPU that can be used, all get the Error.
    """
    if device == "host":
        return OnHost()
    with machine.ranks_of_node(comm) as local:
        number = local.rank
    place, problem = None, ""
    try:
        place = OnGpu(number % max(1, runtime.count()), cuda_aware)
    except Error as reason:
        problem = str(reason)
    for rank, each in enumerate(comm.allgather(problem)):
        if each:
            raise Error(f"rank {rank}: {each}")
    return place


class OnHost:
    """The host's memory.

    processor
        computes there (gqallreduce/backends/processor.py).
    cuda_aware
        may MPI be given this memory, if it is a GPU's?
    torch_device
        what PyTorch calls it: "cpu", "cuda:1".
    """

    output = "bench/results/allreduce_synthetic"
    memory = "the free memory"
    on_gpu, cuda_aware, torch_device = False, None, "cpu"

    def __init__(self):
        self.processor = Host()

    def describe(self, comm, local):
        """What there is to say of it, in plain values. Collective."""
        return {}

    def room(self, local):
        """Bytes that the ranks of this node may take together. Collective over them."""
        return machine.free_memory() // 2

    def baselines(self, comm):
        """(dense sums to compare with, what there is to say of them). Collective."""
        return dense.baselines(comm)


class OnGpu(OnHost):
    """GPU `number` of those that this process sees. Error if there is none that can be used."""

    output = "bench/results/allreduce_synthetic_cuda"
    memory = "the free memory of the GPUs, or of the host if that is less"
    on_gpu = True

    def __init__(self, number, cuda_aware):
        self.runtime = runtime.runtime(number)
        self.cuda_aware = awareness.mpi_is_cuda_aware() if cuda_aware is None else cuda_aware
        self.processor, self.torch_device = Device(self.runtime, self.cuda_aware), f"cuda:{number}"

    def describe(self, comm, local):
        gpu, node = self.runtime, local.bcast(comm.rank)
        gpus = len(set(comm.allgather((node, gpu.place))))
        return {**machine.describe_gpu(gpu), "gpus": gpus, "cuda_aware": self.cuda_aware}

    def room(self, local):
        sharing = local.allgather(self.runtime.place).count(self.runtime.place)
        return min(super().room(local), self.runtime.free_memory // 2 // sharing * local.size)

    def baselines(self, comm):
        return dense_on_gpu.baselines(comm, self)


class Buffers:
    """A float32 buffer that contenders sum in place, and what it is filled with before each call."""

    def __init__(self, pristine, place):
        self._processor = place.processor
        with self._processor.active(None, None):
            self._pristine = self._processor.adopt(pristine)
            self._work = self._processor.zeros(pristine.size).reshape(pristine.shape)

    @property
    def given(self):
        """The buffer as contenders get it."""
        return self._work

    def fill(self):
        """Puts the data there; waits for it."""
        with self._processor.active(None, None):
            self._processor.arithmetic.copy(self._work, self._pristine)
            self._processor.finish()

    def result(self):
        """What the buffer holds, in host memory."""
        return self._processor.on_host(self._work)

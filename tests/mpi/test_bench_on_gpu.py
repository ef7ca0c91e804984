"""The allreduce benchmark with `--device cuda`, on as many ranks as there are. Nothing here looks at a time.

Devices are serial grids, unless the tests are told to run on a GPU (tests/cuda/devices.py).
"""

import argparse
import sys

import numpy as np
import pytest
from devices import ON_GPU, OnDevice, needs_device, use_devices

from gqallreduce.backends.cuda import needs, runtime
from gqallreduce.backends.cuda.awareness import mpi_is_cuda_aware
from gqallreduce.cli import bench, dense, dense_on_gpu, measure, places, report
from gqallreduce.errors import Error

pytestmark = [pytest.mark.mpi, needs_device]
SCHEMES = ("raw", "direct/onebit/ef", "ring/qsgd(bits=4)", "auto/adaptive(pi=64)/ef")


class Shown(places.Buffers):
    """A serial grid's buffer, as a library for GPUs shows it."""

    @property
    def given(self):
        return OnDevice(self._work, self._processor.runtime.device)


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    use_devices()
    if not ON_GPU:
        monkeypatch.setattr(bench, "Buffers", Shown)
    yield
    runtime.use()


def arguments(*words):
    """What `bench` gets from the command line; a few rounds of one small size."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    few = ["--device", "cuda", "--min", "24", "--max", "24", "--repetitions", "1", "--schemes", *SCHEMES]
    return parser.parse_args([*few, *words])


@pytest.mark.parametrize("aware", [pytest.param("yes", marks=pytest.mark.slow), "no"])
def test_the_benchmark_equals_the_host_writes_and_draws(folder, comm, capsys, aware):
    if aware == "yes" and ON_GPU and not mpi_is_cuda_aware():
        pytest.skip("this MPI takes no pointers to GPU memory")
    words = ["--cuda-aware", aware, "--max", "48", "--check", "--output", str(folder / "sums")]
    assert bench.run_on(comm, arguments(*words)) == 0
    if comm.rank > 0:
        return
    machine, rows = report.read(folder / "sums.jsonl")
    gpu = runtime.runtime(0)
    assert (machine["device"], machine["architecture"], machine["cupy"]) == (
        gpu.name, gpu.architecture, gpu.versions["cupy"],
    )  # fmt: skip
    assert (machine["gpus"], machine["cuda_aware"]) == (min(comm.size, runtime.count()), aware == "yes")
    ways = {"yes": "from GPU to GPU", "no": "through host memory"}
    assert ways[aware] in machine["dense"]
    names = {f"{dense.DEFAULT} of host copies", f"{dense_on_gpu.EXACT} on GPUs", *SCHEMES}
    for side in (24, 48):
        assert {row["scheme"] for row in rows if row["side"] == side} >= names
    for row in rows:
        assert row["dense"] is (row["scheme"] not in SCHEMES)
        assert row["error"] < (1e-6 if row["dense"] or row["scheme"] == "raw" else 2.0)
    said = capsys.readouterr().out
    assert f"device: {gpu.name}" in said
    assert ": 0 wrong" in said
    assert (folder / "sums.png").stat().st_size > 0
    assert (folder / "sums.svg").stat().st_size > 0


def test_the_results_have_a_name_of_their_own(folder, comm, monkeypatch):
    monkeypatch.chdir(folder)
    assert bench.run_on(comm, arguments("--schemes", "raw")) == 0
    if comm.rank == 0:
        made = sorted(path.name for path in (folder / "bench" / "results").iterdir())
        assert made == [f"allreduce_synthetic_cuda.{kind}" for kind in ("jsonl", "png", "svg")]


class Meddled(measure.Quantized):
    """A scheme of which `meddle(self, buffer)` spoils what it leaves on a GPU, alike on all ranks."""

    meddle = None

    def __call__(self, buffer):
        super().__call__(buffer)
        type(self).meddle(self, buffer)


def flip_result(self, buffer):
    flip(buffer if ON_GPU else buffer.array)


def flip_residual(self, buffer):
    flip(self._allreduce.memory.residual(self.key))


def flip(array):
    array.reshape(-1).view(np.uint32)[5] ^= 1


@pytest.mark.parametrize(
    ("meddle", "complaint"),
    [(flip_result, "the result is not the host's"), (flip_residual, "the residual is not the host's")],
)
def test_one_wrong_bit_is_found(folder, comm, monkeypatch, capsys, meddle, complaint):
    monkeypatch.setattr(Meddled, "meddle", meddle)
    monkeypatch.setattr(bench, "Quantized", Meddled)
    words = ["--check", "--schemes", "direct/onebit/ef", "--output", str(folder / "sums")]
    assert bench.run_on(comm, arguments(*words)) == 1
    assert comm.rank > 0 or f"rank 0: {complaint}" in capsys.readouterr().out


def refused(folder, comm, capsys):
    """What rank 0 says where the benchmark cannot be run; the others say nothing and all leave nothing."""
    assert bench.run_on(comm, arguments("--output", str(folder / "sums"))) == 2
    assert list(folder.iterdir()) == []
    return comm.bcast(capsys.readouterr().err)


def test_without_cupy_it_is_named_once(folder, comm, capsys, monkeypatch):
    runtime.use()
    monkeypatch.setitem(sys.modules, "cupy", None)
    needs.cupy.cache_clear()
    said = refused(folder, comm, capsys)
    assert said.startswith("bench: rank 0: buffers in GPU memory need CuPy: pip install 'gqallreduce[cuda13]'")
    assert said.count("CuPy") == 1


def test_a_rank_without_a_gpu_ends_them_all(folder, comm, capsys, monkeypatch):
    last = comm.size - 1

    def count():
        if comm.rank == last:
            raise Error("no GPU can be used: the NVIDIA driver (libcuda) is missing")
        return 1

    monkeypatch.setattr(runtime, "count", count)
    expected = f"bench: rank {last}: no GPU can be used: the NVIDIA driver (libcuda) is missing\n"
    assert refused(folder, comm, capsys) == expected

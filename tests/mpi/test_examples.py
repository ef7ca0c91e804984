"""The programs in examples/, at small size."""

import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from ranks import alike
from sklearn.datasets import load_digits
from torch_training import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.mpi
without_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
on_each_device = pytest.mark.parametrize("device", ["host", pytest.param("cuda", marks=without_gpu)])


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("rules", ["*.bias=raw; *=qsgd(bits=4)", "*.bias=raw; *=adaptive(pi=16)/ef"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@on_each_device
def test_torch_images_learns_digits(comm, model, rules, device):
    torch.manual_seed(0)
    words = ["--model", model, "--epochs", "3", "--batch", "48", "--rules", rules, "--device", device]
    accuracy = load("torch_images").main(words, comm)
    assert accuracy > 0.75
    assert alike(comm, accuracy)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_torch_images_reads_files_as_mnist_has_them(comm, tmp_path, model):
    digits = load_digits()
    images, labels = (16 * digits.images).clip(0, 255).astype(np.uint8), digits.target.astype(np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *images.shape) + images.tobytes())
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(labels)) + labels.tobytes())
    torch.manual_seed(0)
    words = ["--model", model, "--data", str(tmp_path), "--epochs", "3", "--batch", "48"]
    accuracy = load("torch_images").main(words, comm)
    assert accuracy > 0.75


@on_each_device
def test_torch_characters_learns(comm, device):
    torch.manual_seed(0)
    small = ["--layers", "1", "--width", "32", "--length", "32", "--steps", "40", "--batch", "8", "--every", "5"]
    loss = load("torch_characters").main([*small, "--device", device], comm)
    assert loss < 4.2
    assert alike(comm, loss)


@pytest.mark.parametrize("name", ["torch_images", "torch_characters"])
def test_the_ranks_of_a_node_take_its_gpus_in_turn(comm, monkeypatch, name):
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert load(name).device_of("cuda", comm).type == "cuda"
    assert chosen == [local.rank % 2]
    assert load(name).device_of("host", comm).type == "cpu"
    local.Free()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 100

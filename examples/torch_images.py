"""Images by a perceptron or a small convolutional network: `mpirun -n 4 python examples/torch_images.py`.

What is new beside the script of one process: `attach`, and each rank's own part of the data. Images are scikit-learn's
digits, or those of a folder of MNIST's files. The functions of `gqallreduce.cli` that load them and choose a device are
this package's own, and may change: in a program of yours they are what you have.
"""

import argparse

import torch
from mpi4py import MPI
from torch import nn

import gqallreduce.torch as gqt
from gqallreduce.cli.torch_training.device import device_of
from gqallreduce.cli.training.data import load_everywhere


def perceptron(side, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(side * side, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes)
    )


def convolutional(side, classes):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(32 * 16, classes),
    )  # fmt: skip


MODELS = {"mlp": perceptron, "cnn": convolutional}


def main(words=None, comm=MPI.COMM_WORLD):
    """Trains and tests; the accuracy, alike on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--data", metavar="FOLDER", help="with MNIST's files (digits)")
    parser.add_argument("--rules", default="*.bias=raw; *=qsgd(bits=4)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images of all ranks together (64)")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="cuda: a GPU for each rank, in turn")
    options = parser.parse_args(words)

    device = device_of(options.device, comm)
    data = load_everywhere(comm, options.data)
    side = int(data.pixels**0.5)
    images = torch.from_numpy(data.training.images).view(-1, 1, side, side).to(device)
    labels = torch.from_numpy(data.training.labels).to(device)
    model = MODELS[options.model](side, data.classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with gqt.attach(model, optimizer, options.rules, comm=comm) as attached:
        for epoch in range(options.epochs):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))  # alike on all ranks
            for start in range(0, len(order) - options.batch + 1, options.batch):
                own = order[start + comm.rank : start + options.batch : comm.size]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[own]), labels[own]).backward()
                optimizer.step()
        attached.compare()  # all ranks have the same model, bit for bit
        if comm.rank == 0:
            print(attached.reducer.stats)
    with torch.no_grad():
        found = model(torch.from_numpy(data.test.images).view(-1, 1, side, side).to(device)).argmax(1).cpu()
    accuracy = (found == torch.from_numpy(data.test.labels)).float().mean().item()
    if comm.rank == 0:
        print(f"{data.name}, {options.model}: accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()

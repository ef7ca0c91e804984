"""A training that is stopped and goes on with other numbers of ranks ends as good as one that is not."""

import pytest
import scripts

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
import gqallreduce as gq
from gqallreduce.cli.training.data import Batches, load_everywhere
from gqallreduce.cli.training.evaluation import replicas_digest
from gqallreduce.cli.training.network import Network

comm, folder = MPI.COMM_WORLD, Path(sys.argv[1]) / "saved"
data = load_everywhere(comm)
batches = Batches(data.training, 48, comm.rank, comm.size)  # the same samples on any number of ranks
network = Network([data.pixels, 64, data.classes], len(data.test))
network.draw(0)

with gq.Reducer("*.bias=raw; *=onebit/ef", comm=comm, average=False, momentum=0.9) as reducer:
    reducer.register([(weight.name, weight.gradient) for weight in network.weights])
    if (folder / "manifest.json").exists():
        gq.load(folder, reducer)
        saved = np.load(folder / "weights.npz")
        for weight in network.weights:
            weight.value[...] = saved[weight.name]
    done = reducer.stats.steps
    end = done + steps
    while done < end:
        for number, (samples, images, labels) in enumerate(batches.epoch(0, done // batches.steps)):
            if number == done % batches.steps and done < end:
                network.loss_and_gradients(images, labels, 1 / samples)
                reducer([(weight.name, weight.gradient) for weight in network.weights])
                for weight in network.weights:
                    weight.value -= 0.05 * weight.gradient
                done += 1
    replicas_digest(comm, network.weights)
    gq.save(folder, reducer)
    if comm.rank == 0:
        np.savez(folder / "weights.npz", **{weight.name: weight.value for weight in network.weights})
    loss, right = network.evaluate(data.test.images.T, data.test.labels)
    report = [reducer.stats.steps, right / len(data.test)]
"""


def accuracy(folder, segments):
    """After one job after the other, of (ranks, steps)."""
    folder.mkdir()
    total = 0
    for ranks, steps in segments:
        found = scripts.run(folder, f"steps = {steps}\n{SCRIPT}", ranks, 100)
        total += steps
        assert found == [[total, found[0][1]]] * ranks
    return found[0][1]


@pytest.mark.parametrize("ranks", [pytest.param((4, 3, 8, 4), marks=pytest.mark.slow), (2, 3, 1)])
def test_it_ends_with_the_same_accuracy(tmp_path, ranks):
    pytest.importorskip("sklearn")
    moved = accuracy(tmp_path / "moved", [(each, 40) for each in ranks])
    whole = accuracy(tmp_path / "whole", [(ranks[0], 40 * len(ranks))])
    assert whole > 0.9
    assert abs(moved - whole) < 0.025  # 6 of 270 images

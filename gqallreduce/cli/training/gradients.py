"""Gradients of a real training as files, for benchmarks that want more than random numbers."""

import json
from pathlib import Path

import numpy as np

README = """Gradients of a data-parallel training, as every rank had them before they were summed.

NAME.step0025.npz holds `gradients`, float32 of shape (ranks, rows, columns) or (ranks, rows): of the weight NAME at
step 25, where step 1 is the first. They are divided by the mini-batch of all ranks, so their sum over axis 0 is the
gradient that the optimizer is to use. In training each (rows, columns) is in Fortran order, a column being contiguous.
metadata.json says what was trained, how, and which steps there are.
"""


class Dump:
    """Writes every rank's gradients at given steps; rank 0 writes, all take part."""

    def __init__(self, folder, steps, comm, metadata):
        self._folder, self._comm = Path(folder), comm
        self.steps = frozenset(steps)
        if comm.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "README.txt").write_text(README)
            (self._folder / "metadata.json").write_text(json.dumps({**metadata, "steps": sorted(steps)}, indent=1))

    def write(self, step, weights):
        """Writes the gradients of all weights."""
        for weight in weights:
            own = np.ascontiguousarray(weight.gradient, np.float32)
            everyone = np.empty((self._comm.size, *own.shape), np.float32) if self._comm.rank == 0 else None
            self._comm.Gather(own, everyone)
            if self._comm.rank == 0:
                np.savez(self._folder / f"{weight.name}.step{step:04d}.npz", gradients=everyone)

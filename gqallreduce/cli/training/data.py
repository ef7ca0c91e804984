"""Images to classify: an MNIST folder where one is given, else scikit-learn's digits; nothing is downloaded.

All ranks hold all images and draw the same order; of every mini-batch and of the test images each rank has its part.
"""

import gzip
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VARIABLE = "GQALLREDUCE_DATA"
TRAINING_SHARE = 0.85  # of images that come without a division of their own
IMAGES, LABELS = 0x803, 0x801  # the first four bytes of an IDX file of bytes with three axes, with one


@dataclass(frozen=True)
class Samples:
    """images: float32[count, pixels] from 0 to 1; labels: int64[count]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self):
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """What to train on, what to test on, and how to call it."""

    name: str
    training: Samples
    test: Samples

    @property
    def pixels(self):
        return self.training.images.shape[1]

    @property
    def classes(self):
        return int(max(self.training.labels.max(), self.test.labels.max())) + 1


def load(folder=None):
    """The Data of an MNIST folder, of the one that GQALLREDUCE_DATA names, or digits.

    A folder holds `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
    `t10k-labels-idx1-ubyte`, each with or without `.gz`. Where it has only the t10k files, a fixed random choice of
    85 % of them is for training: 8500 of 10 000. Raises ValueError for a folder or file that is none.
    """
    folder = folder or os.environ.get(VARIABLE)
    if not folder:
        return _digits()
    folder = Path(folder)
    test = _read(folder, "t10k")
    if _find(folder, "train-images-idx3-ubyte"):
        return Data(f"MNIST, {folder.name}", _scaled(*_read(folder, "train"), 255), _scaled(*test, 255))
    return _divided(f"MNIST, {folder.name}", *test, 255)


def _digits():
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError(
            f"scikit-learn's digits need scikit-learn: pip install 'gqallreduce[bench]', or name a folder of MNIST "
            f"files with --data or {VARIABLE}"
        ) from None
    digits = load_digits()
    return _divided("digits of scikit-learn", digits.data, digits.target, 16)


def _divided(name, images, labels, peak):
    """The same choice in every run and on every machine, whatever the seed of the training."""
    order = np.random.default_rng(0).permutation(len(labels))
    most = round(TRAINING_SHARE * len(labels))
    chosen, rest = np.sort(order[:most]), np.sort(order[most:])
    return Data(name, _scaled(images[chosen], labels[chosen], peak), _scaled(images[rest], labels[rest], peak))


def _scaled(images, labels, peak):
    return Samples(np.multiply(images, 1 / peak, dtype=np.float32), labels.astype(np.int64))


def _read(folder, part):
    """(images as (count, pixels) bytes, labels) of one pair of IDX files."""
    images = _idx(folder, f"{part}-images-idx3-ubyte", IMAGES)
    labels = _idx(folder, f"{part}-labels-idx1-ubyte", LABELS)
    if len(images) != len(labels) or not len(labels):
        found = f"got {len(images)} {part} images and {len(labels)} labels"
        raise ValueError(f"{folder}: {found}, expected a label for each image, and one at least")
    return images.reshape(len(images), -1), labels


def _find(folder, name):
    """The path of the file, plain or compressed; None if there is none."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _idx(folder, name, magic):
    """The array in an IDX file of bytes: a magic number, the axes' lengths, big-endian, then the bytes."""
    path = _find(folder, name)
    if path is None:
        raise ValueError(f"{folder}: no {name} and no {name}.gz")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as problem:
        raise ValueError(f"{path}: {problem}") from None
    axes = magic & 0xFF
    start = 4 * (1 + axes)
    if len(content) < start or int.from_bytes(content[:4], "big") != magic:
        raise ValueError(f"{path}: no IDX file of bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise ValueError(f"{path}: {len(content)} bytes, expected a header and {shape} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def load_everywhere(comm, folder=None):
    """`load` on rank 0, told to all: every rank gets the Data or raises the same error."""
    found = None
    if comm.rank == 0:
        try:
            found = load(folder)
        except ValueError as problem:
            found = problem
    found = comm.bcast(found)
    if isinstance(found, Exception):
        raise found
    return found


def part(count, rank, size):
    """The rank's slice of `count` things: all ranks' slices are consecutive and differ by one in length at most."""
    return slice(rank * count // size, (rank + 1) * count // size)


class Batches:
    """The rank's part of every mini-batch of `batch` samples over all ranks; the last of an epoch may be smaller."""

    def __init__(self, samples, batch, rank, size):
        self._samples, self._batch, self._rank, self._size = samples, batch, rank, size
        self._room = np.empty((self.most, samples.images.shape[1]), np.float32)

    @property
    def most(self):
        """Samples in this rank's part at most."""
        return -(-min(self._batch, len(self._samples)) // self._size)

    @property
    def steps(self):
        """Mini-batches in an epoch."""
        return -(-len(self._samples) // self._batch)

    def epoch(self, seed, number):
        """Yields (samples over all ranks, own images as columns, own labels); the images are valid until the next."""
        order = np.random.default_rng([seed, number]).permutation(len(self._samples))
        for start in range(0, len(order), self._batch):
            together = order[start : start + self._batch]
            own = together[part(len(together), self._rank, self._size)]
            images = self._room[: len(own)]
            # Of NumPy's modes only "raise" would buffer the result.
            np.take(self._samples.images, own, axis=0, out=images, mode="clip")
            yield len(together), images.T, self._samples.labels[own]

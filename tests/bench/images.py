"""A small folder in MNIST's format whose classes a network can learn: noisy copies of ten patterns."""

import gzip
import struct

import numpy as np


def write_images(folder, count=200, side=6, part="t10k", compressed=True):
    """Writes the two IDX files of one part; returns (images, labels) as they are in them."""
    random = np.random.default_rng(7)
    patterns = random.integers(0, 200, (10, side, side))
    labels = (np.arange(count) % 10).astype(np.uint8)
    images = (patterns[labels] + random.integers(0, 56, (count, side, side))).astype(np.uint8)
    for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        content = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()
        path = folder / (name + ".gz" * compressed)
        path.write_bytes(gzip.compress(content) if compressed else content)
    return images, labels

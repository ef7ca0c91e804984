"""Gradients that are given as products, for tests: a layer's inputs after ReLU, and deltas with rows of many sizes."""

import numpy as np

import gqallreduce as gq

KERNEL = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}


def dense(seed, samples=8, inputs=40, outputs=30, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.standard_normal((samples, inputs)), 0) * 2.0 ** rng.integers(-2, 3, (samples, 1))
    delta = rng.standard_normal((samples, outputs)) * 2.0 ** rng.integers(-6, 1, (samples, 1))
    delta[rng.random(delta.shape) < 0.2] = 0
    return gq.Outer(x.astype(dtype), delta.astype(dtype))


def convolution(seed, samples=5):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 3, 7, 6)).astype(np.float32)
    return gq.Outer(x, rng.standard_normal((samples, 4, 4, 5)).astype(np.float32), **KERNEL)


def gradient(outer):
    """In float64, by the definition."""
    x, delta = (np.asarray(each, np.float64) for each in (outer.x, outer.delta))
    if outer.convolution is None:
        return x.reshape(-1, x.shape[-1]).T @ delta.reshape(-1, delta.shape[-1])
    kernel, stride, padding = outer.convolution
    x = np.pad(x, [(0, 0), (0, 0), *((each, each) for each in padding)])
    found = np.zeros((delta.shape[1], x.shape[1], *kernel))
    for i, j in np.ndindex(*kernel):
        there = x[:, :, i :: stride[0], j :: stride[1]][:, :, : delta.shape[2], : delta.shape[3]]
        found[:, :, i, j] = np.einsum("bohw,bchw->oc", delta, there)
    return found

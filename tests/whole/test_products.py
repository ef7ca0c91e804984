"""Gradients given as products, under schemes for buffers: the same in both runtimes."""

import numpy as np
import pytest
from reductions import DTYPES, residuals
from schemes import SCHEDULE_NAMES

import gqallreduce as gq
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import source_of
from gqallreduce.runtime.local import LocalAllreduce

TEXTS = ("onebit/ef", "adaptive(pi=7)/ef", "topk(ratio=0.1, sums=union)/ef", "qsgd(bits=4)", "terngrad/ef", "raw/ef")
every_text = pytest.mark.parametrize("text", TEXTS)
# Shapes of x, delta and the gradient; of a convolution its kernel.
LAYERS = {
    "dense": ((9, 41), (9, 23), (41, 23), None),
    "convolution": ((2, 3, 6, 5), (2, 4, 4, 3), (4, 3, 3, 3), 3),
}


def products(rank: int, step: int, order: str, dtype: str):
    """Of all layers and a plain array: what is summed, and where to."""
    rng = np.random.default_rng([rank, step])
    given, out = [rng.standard_normal(50).astype(np.float32)], [np.empty(50, np.float32)]
    for x, delta, shape, kernel in LAYERS.values():
        factors = (rng.standard_normal(each).astype(np.float32) for each in (x, delta))
        given.append(gq.Outer(*factors, kernel=kernel))
        out.append(np.empty(shape, DTYPES[dtype], order=order if len(shape) == 2 else "C"))
    return given, out


def of_two_calls(runtime, text, ranks, order, dtype):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GQALLREDUCE_RUNTIME", runtime)
        local = LocalAllreduce(text, ranks)
    keys, found = ["a", *LAYERS], []
    for step in range(2):
        given, out = zip(*(products(rank, step, order, dtype) for rank in range(ranks)), strict=True)
        local(list(given), key=keys, out=list(out))
        found += [array.tobytes() for mine in out for array in mine]
        found += [(spent.messages, spent.bytes_sent, spent.selected, spent.saturated) for spent in local.spent]
    return found + [each.tobytes() for key in keys for each in residuals(local, key)]


@pytest.mark.parametrize("runtime", ["both"])
@every_text
@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(("order", "dtype"), [("C", "float32"), ("F", "float32"), ("C", "float64"), ("F", "float16")])
def test_their_sums_are_the_same_in_both(runtime, text, schedule, ranks, order, dtype):
    found = [of_two_calls(each, f"{schedule}/{text}", ranks, order, dtype) for each in ("native", "python")]
    assert found[0] == found[1]


@pytest.mark.parametrize("runtime", ["native"], indirect=True)
@every_text
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_they_are_carried_out_in_cpp(runtime, text, dtype):
    given, out = products(0, 0, "C", dtype)
    sources = [source_of(each, Buffer(into)) for each, into in zip(given, out, strict=True)]
    assert LocalAllreduce(f"direct/{text}", 2).plan(0, *sources).native is not None

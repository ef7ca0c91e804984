"""Sums within a compiled step of JAX, by a host callback, as docs/jax.md has it."""

import numpy as np
import pytest
from ranks import TIMEOUT

import gqallreduce as gq

jax = pytest.importorskip("jax", reason="jax is not installed (pip install '.[jax]')")
callback = pytest.importorskip("jax.experimental").io_callback

pytestmark = pytest.mark.mpi


def summing(reducer):
    def on_host(gradients):
        paths, tree = jax.tree_util.tree_flatten_with_path(gradients)
        named = {jax.tree_util.keystr(path, simple=True, separator="."): np.array(leaf) for path, leaf in paths}
        reducer(named)
        return jax.tree_util.tree_unflatten(tree, list(named.values()))

    def summed(gradients):
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), gradients)
        return callback(on_host, shapes, gradients, ordered=True)

    return summed


def trained(comm, rules, steps):
    """Parameters of a linear model after steps on each rank's own batches."""
    reducer = gq.Reducer(rules, comm=comm, timeout=TIMEOUT)
    summed = summing(reducer)

    def loss_of(parameters, x, y):
        return ((x @ parameters["w"] + parameters["b"] - y) ** 2).mean()

    @jax.jit
    def step(parameters, x, y):
        gradients = jax.grad(loss_of)(parameters, x, y)
        return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, parameters, summed(gradients))

    parameters = {"w": np.zeros((4, 3), np.float32), "b": np.zeros(3, np.float32)}
    for number in steps:
        x = np.random.default_rng([number, comm.rank]).standard_normal((16, 4), np.float32)
        parameters = step(parameters, x, x[:, :3] + 1)
    reducer.close()
    return {name: np.asarray(each) for name, each in parameters.items()}


def test_exact_sums_are_means_over_ranks(comm):
    found = trained(comm, "raw", range(3))
    parameters = {"w": np.zeros((4, 3)), "b": np.zeros(3)}
    for number in range(3):
        gradients = {name: np.zeros_like(each) for name, each in parameters.items()}
        for rank in range(comm.size):
            x = np.random.default_rng([number, rank]).standard_normal((16, 4), np.float32)
            error = 2 / 48 * (x @ parameters["w"] + parameters["b"] - x[:, :3] - 1)
            gradients["w"] += x.T @ error / comm.size
            gradients["b"] += error.sum(0) / comm.size
        for name in parameters:
            parameters[name] -= 0.1 * gradients[name]
    for name, expected in parameters.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def test_replicas_stay_alike_and_learn(comm):
    found = trained(comm, "b=raw; *=onebit/ef", range(150))
    assert len(set(comm.allgather(found["w"].tobytes() + found["b"].tobytes()))) == 1
    np.testing.assert_allclose(found["w"], np.eye(4, 3), atol=0.2)


def test_a_flaw_is_an_error_on_all_ranks_and_the_next_step_goes_on(comm):
    reducer = gq.Reducer("onebit/ef", comm=comm, timeout=TIMEOUT)
    step = jax.jit(summing(reducer))
    good = {"w": np.ones(8, np.float32)}
    step(good)
    flaw = {"w": np.full(8, np.nan if comm.rank == comm.size - 1 else 1, np.float32)}
    with pytest.raises(Exception, match="NonFiniteError"):
        jax.block_until_ready(step(flaw))
    np.testing.assert_allclose(np.asarray(step(good)["w"]), 1, rtol=1e-6)
    assert reducer.stats.steps == 2

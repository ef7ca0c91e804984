"""What tests of checkpoints share that travel to another number of ranks."""

import contextlib

import numpy as np


@contextlib.contextmanager
def some(comm, size):
    """A communicator of the first ranks, None on the others."""
    made = comm.Split(0 if comm.rank < size else 1, comm.rank)
    yield made if comm.rank < size else None
    made.Free()


def sizes(comm):
    """Of jobs one after the other: all ranks, fewer, one, and back to all."""
    return comm.size, max(1, comm.size - 1), 1, comm.size


def residuals(states):
    """Their sums over the ranks of these states of an Allreduce, by key, in float64."""
    keys = states[0]["keys"]
    return {key: sum(np.asarray(each["keys"][key].get("residual", 0), np.float64) for each in states) for key in keys}


def learned_of(state):
    """key -> what its codec has learned, or None."""
    return {key: entry.get("learned") for key, entry in state["keys"].items()}


def require_same_sums(loaded, saved):
    """States of an Allreduce, of all ranks each: is what the new ranks have together what the old ones had?"""
    found, expected = residuals(loaded), residuals(saved)
    assert found.keys() == expected.keys()
    for key, total in expected.items():
        np.testing.assert_allclose(found[key], total, rtol=1e-5, atol=1e-5)
    np.testing.assert_equal([learned_of(each) for each in loaded], [learned_of(saved[0])] * len(loaded))

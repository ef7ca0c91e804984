"""State between steps as a dict of arrays and plain values, and back."""

from __future__ import annotations

import numpy as np

from gqallreduce.order import to_vector

VERSION = 1


def save(allreduce) -> dict:
    """What `Allreduce.state_dict` returns: residuals as copies in their buffers' shapes, and step counters."""
    keys = {}
    for key, known in allreduce._keys.items():
        keys[key] = {"step": known.step}
        if known.form is not None:
            shape, order, dtype = known.form
            keys[key].update(shape=shape, order=order, dtype=dtype)
        if key in allreduce.memory:
            keys[key]["residual"] = allreduce.memory.home(key).on_host(allreduce.residual(key))
    return {
        "version": VERSION,
        "scheme": allreduce.scheme.resolved(),
        "size": allreduce.size,
        "rank": allreduce.rank,
        "seed": allreduce.seed,
        "keys": keys,
    }


def load(allreduce, state: dict) -> None:
    """Check all of `state` first, then take it over."""
    if not isinstance(state, dict):
        raise ValueError(f"got {type(state).__name__}, expected the dict that state_dict() gave on this rank")
    mine = {
        "version": VERSION,
        "scheme": allreduce.scheme.resolved(),
        "size": allreduce.size,
        "rank": allreduce.rank,
    }
    for name, expected in mine.items():
        if state.get(name) != expected:
            raise ValueError(f"state has {name} {state.get(name)!r}, expected {expected!r}")
    residuals = {key: _residual(key, entry) for key, entry in state["keys"].items() if "residual" in entry}
    allreduce.restore(state["seed"], state["keys"], residuals)


def form_in(entry: dict) -> tuple | None:
    """(shape, order, dtype) of a key's entry; None for the key None, which is bound to no form."""
    return (tuple(entry["shape"]), entry["order"], entry["dtype"]) if "shape" in entry else None


def _residual(key, entry: dict) -> np.ndarray:
    residual = np.asarray(entry["residual"], np.float32)
    if residual.shape != tuple(entry["shape"]) or not np.isfinite(residual).all():
        raise ValueError(f"key {key!r}: residual of shape {residual.shape}, expected finite of {entry['shape']}")
    return to_vector(residual, entry["order"]).copy()

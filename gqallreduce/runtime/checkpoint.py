"""State between steps as a dict of arrays and plain values, and back."""

from __future__ import annotations

import copy

import numpy as np

from gqallreduce.coding.dtypes import FLOATS
from gqallreduce.coding.layout import Form
from gqallreduce.coding.order import to_vector
from gqallreduce.runtime.arguments import integer
from gqallreduce.runtime.memory import State
from gqallreduce.scheme import Scheme

VERSION = 1


def save(allreduce) -> dict:
    """What `Allreduce.state_dict` returns: residuals as copies in their buffers' shapes, and step counters."""
    keys = {}
    for key, state in allreduce.memory.states.items():
        keys[key] = {"step": state.step}
        if state.halfway:
            keys[key]["halfway"] = True
        if state.form is not None:
            keys[key].update(zip(("shape", "order", "dtype"), state.form, strict=True))
        if state.learned is not None:
            keys[key]["learned"] = copy.deepcopy(state.learned)
        if state.residual is not None:
            keys[key]["residual"] = state.processor.on_host(allreduce.residual(key))
    return {
        "version": VERSION,
        "scheme": allreduce.scheme.resolved(),
        "size": allreduce.size,
        "rank": allreduce.rank,
        "seed": allreduce.seed,
        "keys": keys,
    }


def checked(allreduce, state: dict | list, processor) -> tuple[int, dict]:
    """(seed, key -> State) of a state, for `Allreduce.restore`; ValueError says what does not fit.

    A list has the dicts of all ranks of a job of any size.
    """
    if isinstance(state, (list, tuple)):
        state = _dealt(list(state), allreduce.rank, allreduce.size)
    if not isinstance(state, dict):
        raise ValueError(f"got {type(state).__name__}, expected the dict that state_dict() gave on this rank")
    mine = {
        "version": VERSION,
        "scheme": allreduce.scheme.resolved(),
        "size": allreduce.size,
        "rank": allreduce.rank,
    }
    for name, expected in mine.items():
        found = state.get(name)
        if not isinstance(found, (str, int, np.integer)) or found != expected:
            raise ValueError(f"state has {name} {found!r}, expected {expected!r}")
    seed = _integer("seed", state.get("seed"))
    keys = state.get("keys")
    if not isinstance(keys, dict):
        raise ValueError(f"state has keys of type {type(keys).__name__}, expected a dict of keys")
    states = {key: _state(key, entry, allreduce.scheme, processor) for key, entry in keys.items()}
    return seed, {key and str.__str__(key): state for key, state in states.items()}


def _dealt(states: list, rank: int, size: int) -> dict:
    """What one of `size` ranks gets of the states of all ranks of another job: those of ranks = rank mod size.

    Of their residuals it gets the sum, so that the sum over all ranks stays the same but for float32 rounding; all else
    is alike on all ranks. Where there are more ranks than before, the new ones begin with residuals of zeros.
    """
    of_rank = {each.get("rank"): each for each in states if isinstance(each, dict)}
    if not states or sorted(of_rank, key=repr) != sorted(range(len(states)), key=repr):
        raise ValueError(f"got states of the ranks {sorted(of_rank, key=repr)}, expected one of each rank of a job")
    mine = of_rank[rank % len(states)]
    for number, each in of_rank.items():
        for name in ("version", "scheme", "size", "seed"):
            got, expected = each.get(name), of_rank[0].get(name)
            if got != expected:
                raise ValueError(f"rank {number}'s state has {name} {got!r}, expected {expected!r} as rank 0's")
        if _steps(each) != _steps(mine):
            raise ValueError(f"rank {number}'s state has other keys or steps than rank {mine['rank']}'s")
    if mine.get("size") != len(states):
        raise ValueError(f"got {len(states)} states of a job of {mine.get('size')} ranks, expected all of them")
    keys = {key: dict(entry) for key, entry in mine["keys"].items()}
    for key, entry in keys.items():
        if "residual" in entry:
            total = np.zeros(np.shape(entry["residual"]), np.float64)
            for other in range(rank, len(states), size):
                total += of_rank[other]["keys"][key].get("residual", 0)
            with np.errstate(over="ignore"):
                entry["residual"] = total.astype(np.float32)
    return {**mine, "rank": rank, "size": size, "keys": keys}


def _steps(state: dict) -> dict | None:
    """How many calls of each key have succeeded, and whether it has a residual; None if that cannot be read."""
    keys = state.get("keys")
    if not isinstance(keys, dict) or not all(isinstance(entry, dict) for entry in keys.values()):
        return None
    names = "step", "halfway", "shape", "order", "dtype"
    return {key: (*[entry.get(name) for name in names], "residual" in entry) for key, entry in keys.items()}


def _state(key, entry, scheme: Scheme, processor) -> State:
    """The State of an entry, with which it shares no memory."""
    if not isinstance(entry, dict) or not (key is None or isinstance(key, str)):
        raise ValueError(f"key {key!r}: got {type(entry).__name__}, expected a string and its dict")
    step = _integer(f"step of key {key!r}", entry.get("step"))
    if step < 0:
        raise ValueError(f"state has step {step} of key {key!r}, expected 0 or more")
    halfway = entry.get("halfway", False)
    if not isinstance(halfway, (bool, np.bool_)):
        raise ValueError(f"state has halfway {halfway!r} of key {key!r}, expected True or False")
    if key is None:
        return State(None, step, halfway=bool(halfway))
    feedback, learns = scheme.feedback, scheme.codec.learns
    missing = {"shape", "order", "dtype", *["residual"] * feedback} - entry.keys()
    if missing:
        raise ValueError(f"key {key!r}: the state lacks {', '.join(sorted(missing))}")
    if not isinstance(entry["shape"], (tuple, list)):
        raise ValueError(f"key {key!r}: got shape {entry['shape']!r}, expected a tuple of integers")
    form = tuple(_integer(f"shape of key {key!r}", each) for each in entry["shape"]), entry["order"], entry["dtype"]
    if form[2] not in FLOATS:
        raise ValueError(f"key {key!r}: got dtype {form[2]!r}, expected one of {', '.join(FLOATS)}")
    if not isinstance(form[1], str):
        raise ValueError(f"key {key!r}: got order {form[1]!r}, expected text such as 'C'")
    learned = entry.get("learned") if learns else None
    if learned is not None:
        try:
            learned = scheme.codec.relearned(copy.deepcopy(learned), Form(*form))
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ValueError(f"key {key!r}: what the state has learned is unfit: {error}") from error
    if not feedback:
        return State(form, step, learned, halfway=bool(halfway))
    return State(form, step, learned, _residual(key, entry, form), None, processor, halfway=bool(halfway))


def _residual(key, entry: dict, form: tuple) -> np.ndarray:
    shape, order, _ = form
    given = entry["residual"]
    if isinstance(given, np.ma.MaskedArray) or np.asarray(given).dtype.kind != "f":
        raise ValueError(f"key {key!r}: got a residual {type(given).__name__}, expected an array of float32")
    with np.errstate(over="ignore"):
        residual = np.asarray(given, np.float32)
    if residual.shape != shape or not np.isfinite(residual).all():
        raise ValueError(f"key {key!r}: residual of shape {residual.shape}, expected finite of {shape}")
    return to_vector(residual, order).copy()


def _integer(name: str, value) -> int:
    try:
        return integer(name, value)
    except TypeError as error:
        raise ValueError(f"state has {error}") from None

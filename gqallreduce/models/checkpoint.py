"""The state of a Reducer as a dict of arrays and plain values, and back."""

from __future__ import annotations

from typing import NamedTuple

_NAMES = {"schemes", "steps", "warmup", "momentum"}


class Restored(NamedTuple):
    """What a state says, checked: scheme -> (seed, States); how many steps have taken effect; name -> momentum."""

    schemes: dict[str, tuple]
    steps: int
    momentum: dict


def save(reducer) -> dict:
    """What `Reducer.state_dict` returns."""
    schemes = {text: allreduce.state_dict() for text, allreduce in reducer.allreduces.items()}
    momentum = reducer.contributions.state_dict()
    return {"schemes": schemes, "steps": reducer.stats.steps, "warmup": repr(reducer.warmup), "momentum": momentum}


def checked(reducer, state: dict | list) -> Restored:
    """What `Reducer.restore` takes, of the state of this rank, or of those of all ranks of a job of any size.

    ValueError says what does not fit.
    """
    several = isinstance(state, (list, tuple))
    each_found = list(state) if several else [state]
    if not each_found:
        raise ValueError("got a list of no states, expected those of all ranks of a job")
    for each in each_found:
        _require_names(reducer, each)
    found = {}
    for text, allreduce in reducer.allreduces.items():
        states = [each["schemes"][text] for each in each_found]
        found[text] = allreduce.checked(states if several else states[0])
        require_tensors(reducer.models, text, found[text][1])
    steps = [each["steps"] for each in each_found]
    if any(each != steps[0] for each in steps) or not isinstance(steps[0], int) or steps[0] < 0:
        raise ValueError(f"state has steps {steps!r}, expected one number for all ranks")
    for each in each_found:
        if each["warmup"] != repr(reducer.warmup):
            raise ValueError(f"state has the warm-up {each['warmup']!r}, expected {repr(reducer.warmup)!r}")
    flags, tensors = reducer.failure_flags, reducer.model.tensors.values()
    first = next(iter(reducer.allreduces))
    momenta = [each["momentum"] for each in sorted(each_found, key=lambda each: each["schemes"][first]["rank"])]
    momentum = reducer.contributions.checked(momenta, several, flags.rank, flags.size, tensors)
    return Restored(found, steps[0], momentum)


def _require_names(reducer, state) -> None:
    """Has a state what that of this reducer has?"""
    if not isinstance(state, dict) or state.keys() != _NAMES:
        got = f"keys {sorted(map(str, state))}" if isinstance(state, dict) else f"type {type(state).__name__}"
        raise ValueError(f"state has {got}, expected what state_dict() returns: {', '.join(sorted(_NAMES))}")
    found = state["schemes"]
    if not isinstance(found, dict) or found.keys() != reducer.allreduces.keys():
        got = ", ".join(map(str, found)) if isinstance(found, dict) else "none"
        raise ValueError(f"state has the schemes {got}, expected {', '.join(reducer.allreduces)}")


def require_tensors(models: list, text: str, states: dict) -> None:
    """ValueError if the keys of a scheme are not those tensors of the model that it sums, once that is known.

    models
        that of the steps and that of the warm-up: a scheme may sum other tensors there.
    """
    if not models:
        return
    for key, after in states.items():
        tensors = [model.tensors.get(key) for model in models]
        forms = [each.form.kept for each in tensors if each is not None and each.scheme == text]
        if after.form not in forms:
            expected = forms[0] if forms else None
            raise ValueError(f"state has {key!r} of {text}: {after.form}, expected {expected} as in this model")
    each_summed = [{each.name for each in model.tensors.values() if each.scheme == text} for model in models]
    summed_together = [names for names in each_summed if names <= states.keys()]
    lost = sorted(states.keys() - set().union(*summed_together))
    if lost:
        lacking = sorted(min((names - states.keys() for names in each_summed if lost[0] in names), key=len))
        raise ValueError(f"state has {lost[0]!r} of {text}, but not {lacking[0]!r}: it is that of another model")

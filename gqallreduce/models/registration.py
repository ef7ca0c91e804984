"""How ranks agree on the tensors of a model."""

from __future__ import annotations

from collections.abc import Mapping

from gqallreduce import _kernels
from gqallreduce.backends.buffer import Buffer
from gqallreduce.backends.product import Outer
from gqallreduce.models import rules as text_of_rules
from gqallreduce.models.checkpoint import require_tensors
from gqallreduce.models.model import Model, Tensor
from gqallreduce.models.warmup import require_feedback
from gqallreduce.runtime.reduction import join_invalid
from gqallreduce.transport.agreement import agree


def registration(call, reducer, named, alike: tuple = ()):
    """The stages of `Reducer.register`: all ranks compare their tensors, rules, options and what else is to be alike.

    Its result: the Model of the rules, and that of the warm-up.
    """
    first = call.owner
    try:
        if reducer.model.tensors:
            raise ValueError("the tensors of this reducer are known already; make a new one for another model")
        models = _models_of(reducer, named)
        tensors, options = models[0].tensors.values(), (repr(reducer.warmup), *reducer.contributions.options)
    except Exception as error:
        yield from join_invalid(call, first, error)
    if first.size > 1:
        shapes, orders, dtypes = zip(*(tensor.form[:3] for tensor in tensors), strict=True)
        names = [tensor.name for tensor in tensors]
        agreed = "register", *reducer.rules, *reducer.warmup_rules, options, *alike, *names
        hashes = first.plans.hashes(agreed, first.seed, shapes, dtypes, orders)
        yield from agree(call.link, hashes, first.number, 0)
    call.result = models


def pairs_of(named) -> list[tuple]:
    """(name, array) of each; TypeError if `named` is neither a mapping nor such pairs."""
    if isinstance(named, Mapping):
        return list(named.items())
    if type(named) is list and _kernels.are_pairs(named):
        return named
    pairs = list(named)
    if not all(isinstance(each, (tuple, list)) and len(each) == 2 for each in pairs):
        raise TypeError(f"got a {type(named).__name__}, expected a dict of names and arrays, or pairs (name, array)")
    return [tuple(each) for each in pairs]


def _models_of(reducer, named) -> list[Model]:
    """Checked by what this rank can see."""
    forms = _forms_of(named)
    reducer.contributions.require(forms)
    found = []
    for rules in [reducer.rules] + [reducer.warmup_rules] * bool(reducer.warmup):
        schemes = text_of_rules.assign(rules, [tensor.name for tensor in forms])
        found.append(Model([tensor._replace(scheme=schemes[tensor.name]) for tensor in forms], reducer.most))
    for text, allreduce in reducer.allreduces.items():
        require_tensors(found, text, allreduce.memory.states)
    if reducer.warmup:
        feedback = {text: allreduce.scheme.feedback for text, allreduce in reducer.allreduces.items()}
        require_feedback(reducer.warmup, found[1], found[0], feedback)
    return found


def _forms_of(named) -> list[Tensor]:
    """The tensors, without schemes."""
    pairs = pairs_of(named)
    if not pairs:
        raise ValueError("got no tensors, expected names with arrays")
    names = [name for name, _ in pairs]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a {type(name).__name__}, expected a string")
    if len(set(names)) < len(names):
        twice = next(each for number, each in enumerate(names) if each in names[:number])
        raise ValueError(f"tensor {twice!r} is given twice, expected names that differ")
    found = []
    for name, value in pairs:
        try:
            buffer = Buffer(value.room() if isinstance(value, Outer) else value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from None
        known = _kernels.KnownForms((buffer.form,), False)
        found.append(Tensor(name, "", buffer.form, buffer.nbytes, buffer.device, known))
    return found

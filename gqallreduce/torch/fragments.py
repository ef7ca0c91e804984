"""Parts of a model whose outer steps follow each other (local_sgd.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from gqallreduce.errors import NonFiniteError
from gqallreduce.models.reducer import Reducer
from gqallreduce.runtime.making import SECONDS, told
from gqallreduce.torch.options import mark_of, require_all_in
from gqallreduce.torch.tensors import array_of, from_tensors, to_tensors

_FIELDS = {"outer", "optimizer", "reducer", "arrived", "trained"}


def divide(parameters: dict[str, torch.Tensor], number: int) -> list[dict[str, torch.Tensor]]:
    """Consecutive tensors in so many parts of about as many elements; each has at least one."""
    total, names = sum(each.numel() for each in parameters.values()), list(parameters)
    found, before = [{}], 0
    for place, name in enumerate(names):
        size, left = parameters[name].numel(), len(names) - place
        full = before + size / 2 >= total * len(found) / number  # most of it belongs to the next part
        if found[-1] and len(found) < number and (full or left <= number - len(found)):
            found.append({})
        found[-1][name] = parameters[name]
        before += size
    return found


class Fragment:
    """One part: the model's tensors, the outer ones, and their change on its way.

    names
        of its tensors.
    inner, outer
        name -> parameter of the model; name -> outer parameter, in at least float32.
    due
        the place among H inner steps after which its sum starts.
    reducer
        sums the changes.
    trained
        has there been an inner step since its last outer step, or is its own share of parameters kept?
    """

    def __init__(
        self, parameters: dict, rules: dict[str, str], due: int, keep: float, outer: Callable, comm, options: dict
    ):  # fmt: skip
        self.inner, self.due, self._keep = parameters, due, keep
        with torch.no_grad():
            self.outer = {name: each.detach().to(_outer_dtype(each), copy=True) for name, each in parameters.items()}
        self._change = {name: torch.zeros_like(each) for name, each in self.outer.items()}
        self._sent = self._arrived = self.trained = False
        self._error = None
        with told(comm, options.get("timeout", SECONDS)):
            self._make_optimizer, self._optimizer = outer, outer(list(self.outer.values()))
            if not isinstance(self._optimizer, torch.optim.Optimizer):
                got = type(self._optimizer).__name__
                raise TypeError(f"outer: returned {got}, expected a torch.optim.Optimizer of the parameters")
            try:
                require_all_in(self._optimizer, self.outer)
            except ValueError as error:
                raise ValueError(f"outer: it is given the parameters that it must optimize: {error}") from None
        self.reducer = Reducer(rules, comm=comm, **options)

    def register(self, settings: tuple) -> None:
        """Compare tensors, rules, options and these settings with the other ranks."""
        self.reducer.register([(name, array_of(each)) for name, each in self._change.items()], alike=settings)

    @torch.no_grad()
    def take_over_parameters(self) -> None:
        """The outer parameters begin as the model's."""
        for name, parameter in self.inner.items():
            self.outer[name].copy_(parameter)

    @property
    def names(self) -> list[str]:
        return list(self.inner)

    @property
    def under_way(self) -> bool:
        """Has its sum been started, and not been applied or told as not finite?"""
        return self._sent or self._arrived or self._error is not None

    # --- an outer step ---

    @torch.no_grad()
    def start(self, steps: int) -> None:
        """Start the sum of what its tensors have changed by since the last outer step, after so many inner steps."""
        self.reducer.mark = mark_of([name for name, each in self.inner.items() if not each.requires_grad], steps)
        for name in reversed(self._change):
            torch.sub(self.outer[name], self.inner[name], out=self._change[name])
            if not self.inner[name].requires_grad:  # frozen since
                self._change[name].zero_()
            self.reducer.start(name, array_of(self._change[name]))
        self._sent = True

    def try_to_apply(self) -> NonFiniteError | None:
        """Wait for the sum, and make the outer step with it, but for parameters that were frozen since.

        Returns the error of values that are not finite: then there is no outer step.
        """
        if error := self.try_to_settle():
            return error
        self._apply()
        self.trained = self._keep > 0
        return None

    def _apply(self) -> None:
        for name, parameter in self.outer.items():
            parameter.grad = self._change[name] if self.inner[name].requires_grad else None
        self._optimizer.step()
        for parameter in self.outer.values():
            parameter.grad = None
        self._arrived = False
        if self._keep == 0:
            self.set(self.outer)
            return
        with torch.no_grad():
            for name, each in self.outer.items():
                torch.lerp(each, self.inner[name].to(each), self._keep, out=self._change[name])
        self.set(self._change)

    def try_to_settle(self) -> NonFiniteError | None:
        """`settle`; returns the error of values that are not finite, once."""
        self.settle()
        error, self._error = self._error, None
        return error

    def settle(self) -> None:
        """Wait for its sum, if there is one under way."""
        if self._sent:
            self._sent = False
            try:
                self.reducer.wait()
            except NonFiniteError as error:
                self._error = error
            else:
                self._arrived = True

    @torch.no_grad()
    def set(self, values: dict[str, torch.Tensor]) -> None:
        """The model's tensors become these."""
        for name, parameter in self.inner.items():
            parameter.copy_(values[name])

    # --- checkpoints ---

    def state_dict(self) -> dict:
        """As LocalSGD's, of this part, once its sum has come."""
        return {
            "outer": {name: each.clone() for name, each in self.outer.items()},
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "reducer": to_tensors(self.reducer.state_dict()),
            "arrived": {name: each.clone() for name, each in self._change.items()} if self._arrived else None,
            "trained": self.trained,
        }

    def checked(self, states: list[dict], several: bool) -> tuple:
        """What `restore` takes over, of this rank's state or of `several`, by rank; ValueError for what is unfit."""
        for each in states:
            if not isinstance(each, dict) or each.keys() != _FIELDS:
                raise ValueError(f"state: a fragment is {type(each).__name__}, expected {', '.join(sorted(_FIELDS))}")
            for kind in ("outer", "arrived"):
                if kind == "outer" or each[kind] is not None:
                    self._require_forms(kind, each[kind])
            if not isinstance(each["trained"], bool):
                raise ValueError(f"state: trained is {each['trained']!r}, expected True or False")
            self._require_optimizer_state(each["optimizer"])
        reducers = [from_tensors(each["reducer"]) for each in states]
        residuals = self.reducer.checked(reducers if several else reducers[0])
        return states[0], residuals

    def _require_forms(self, kind: str, found) -> None:
        expected = {name: (tuple(each.shape), each.dtype) for name, each in self.outer.items()}
        fits = isinstance(found, dict) and all(isinstance(each, torch.Tensor) for each in found.values())
        got = {name: (tuple(each.shape), each.dtype) for name, each in found.items()} if fits else type(found).__name__
        if got != expected:
            raise ValueError(f"state: {kind} parameters {got}, expected {expected}")

    def _require_optimizer_state(self, found) -> None:
        """ValueError unless it is of such an optimizer, of these parameters: tried on copies of them."""
        copies = [each.clone() for each in self.outer.values()]
        trial = self._make_optimizer(copies)
        for each in copies:
            each.grad = torch.zeros_like(each)
        try:
            if _groups(found) != _groups(trial.state_dict()) or not found["state"].keys() <= set(range(len(copies))):
                raise ValueError("other groups or parameters")
            trial.load_state_dict(copy.deepcopy(found))
            trial.step()
        except Exception as error:
            raise ValueError(f"state: what the outer optimizer keeps is not of this one: {error}") from error

    @torch.no_grad()
    def restore(self, found: tuple) -> None:
        """Take over what `checked` has returned."""
        state, residuals = found
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # which would share its tensors
        self.reducer.restore(residuals)
        for name, each in self.outer.items():
            each.copy_(state["outer"][name])
            if state["arrived"] is not None:
                self._change[name].copy_(state["arrived"][name])
        self._sent, self._arrived, self._error = False, state["arrived"] is not None, None
        self.trained = state["trained"]

    def close(self) -> None:
        self.reducer.close()


def _outer_dtype(parameter: torch.Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _groups(state: dict) -> list[tuple]:
    """Of an optimizer's state: names of options and numbers of parameters."""
    return [(sorted(each), each["params"]) for each in state["param_groups"]]

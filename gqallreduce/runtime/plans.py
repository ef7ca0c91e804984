"""What runs for a buffer, and why: which schedule and codec, or MPI's own allreduce. Plans are made once.

Of the key None, which is bound to no shape, the last `SHAPES_MOST` shapes are remembered. What is said of a key here is
said of a group too: its name is the tuple of its keys. The last `GROUPS_MOST` groups are remembered.
"""

from __future__ import annotations

import os
from array import array

from gqallreduce import _kernels
from gqallreduce.coding import frame
from gqallreduce.coding.layout import Form
from gqallreduce.hashing import hash64
from gqallreduce.registry import CODECS, SCHEDULES
from gqallreduce.runtime.halves import SCHEDULE
from gqallreduce.runtime.indirect import IndirectPlan, plan_for
from gqallreduce.runtime.integer_sum import PIECES_OF
from gqallreduce.runtime.plan import Plan
from gqallreduce.runtime.trials import Trials
from gqallreduce.scheduling import model
from gqallreduce.scheduling.profile import Profile
from gqallreduce.scheduling.topology import Topology
from gqallreduce.scheme import AUTO, MPI_SUM, Scheme

SHAPES_MOST = 64
BORDERS_MOST = 4  # of each choice and forms
GROUPS_MOST = 512  # more than calls can be under way: a call's own group is known until it ends


class Agreed(_kernels.Agreed):
    """A name (a key, or the keys of a group) with forms, agreed on: what runs, why, and by what its frames are told.

    name, keys
        None for what belongs to no key; the same as a tuple.
    streams
        of each key, what its random streams are made of, as uint64: the same alone and in groups.
    form
        (choice, forms), by which Plans are known.
    hashes
        of what ranks compare.
    dense, by_mpi
        is it MPI's own allreduce of floats? Does that add, floats or integers?
    What is known of calls on it is in the class of C (kernels/known.pxi).
    """

    __slots__ = ()

    def __init__(self, name, what: str, why: str, signature: int, streams: array, form: tuple, hashes: tuple = ()):
        choice, forms = form
        keys = name if isinstance(name, tuple) else (name,)
        kept = tuple(None if name is None else each.kept for each in forms)
        super().__init__(name, keys, what, why, signature, streams, form, hashes, kept)
        self.dense, self.by_mpi = choice == model.DENSE, choice in (model.DENSE, MPI_SUM)


class Plans(_kernels.Plans):
    """Decides what runs, and makes Plans, for one scheme on P ranks.

    half
        REDUCE_SCATTER or ALLGATHER, if these are the Plans of one; None for those of an allreduce.
    A choice is a schedule, with or without /raw, "mpi", or "dense".
    """

    def __init__(
        self, scheme: Scheme, rank: int, topology: Topology, average: bool, number: int,
        profile: Profile | None = None, half: str | None = None,
    ):  # fmt: skip
        super().__init__()
        self.scheme, self.rank, self.size, self.average = scheme, rank, topology.size, average
        self.topology, self.half = topology, half
        self.number = number
        self.profile = profile or Profile()
        self._known: dict[tuple, Agreed] = {}
        self._groups: dict[tuple, tuple] = {}  # names, by the first call of each
        self._plans: dict[tuple, Plan | IndirectPlan] = {}
        self._plans_most = GROUPS_MOST  # then those are forgotten that belong to no known call
        self._trials: dict[tuple, Trials] = {}
        self.measures = scheme.schedule == AUTO and self.size > 1 and measures()

    # --- what is known ---

    def find(self, label: tuple) -> Agreed | None:
        """What ranks have agreed on of (name, forms), None if nothing."""
        return self._known.get(label)

    def remember(self, label: tuple, agreed: Agreed) -> None:
        """A call has succeeded. The oldest shapes without a key are forgotten."""
        key, forms = label
        if self.latest.get(key) is agreed:
            return
        if isinstance(key, tuple) and key not in self._groups:
            return  # forgotten while it was under way; elsewhere perhaps after it
        if agreed.known is None:
            agreed.known = _kernels.KnownForms(forms, isinstance(key, tuple))
        self.latest[key] = agreed
        known = self._known.get(label)
        if known is agreed and key is not None:
            return
        self._known.pop(label, None)
        self._known[label] = agreed
        if known is None:
            same = [each for each in self._known if each[0] == key]
            for each in same[: -SHAPES_MOST if key is None else -1]:
                self._forget(each)

    def known_group(self, keys: list | tuple) -> tuple | None:
        """The name of a group of plain strings that was called before; None if it was not, or if any is not plain."""
        found = _kernels.plain_keys(keys)
        return self._groups.get(found) if found else None

    def _forget_groups(self, name: tuple) -> None:
        """A group is called that is not known. The oldest are forgotten, at the same call on all ranks."""
        self._groups[name] = name
        if len(self._groups) > GROUPS_MOST:
            oldest = next(iter(self._groups))
            del self._groups[oldest]
            for label in [label for label in self._known if label[0] == oldest]:
                self._forget(label)

    def _forget(self, label: tuple) -> None:
        agreed, forms = self._known.pop(label), label[1]
        self._trials.pop(label, None)
        if self.latest.get(label[0]) is agreed:
            del self.latest[label[0]]
        if all(each.form[1] != forms for each in self._known.values()):
            for name in [name for name in self._plans if name[1] == forms]:  # of all choices
                del self._plans[name]

    def _forget_plans(self, but: tuple[Form, ...]) -> None:
        """Those of calls that have not succeeded, of `flush`, and of before `clear`; not those for these forms."""
        used = {each.form[1] for each in self._known.values()} | {but}
        for which in [which for which in self._plans if which[1] not in used]:
            del self._plans[which]
        self._plans_most = len(self._plans) + GROUPS_MOST

    def clear(self) -> None:
        """Agree on everything anew."""
        self._known.clear()
        self.latest.clear()
        self._groups.clear()
        self._trials.clear()

    # --- deciding ---

    def choices(self) -> list[str]:
        """All that can be chosen for this scheme, in an order that is alike on every rank."""
        written = self.scheme.schedule
        if written == AUTO:
            return [model.DENSE, *sorted(SCHEDULES), *(name + model.RAW for name in sorted(SCHEDULES))]
        if written is None:
            return sorted(SCHEDULES) if self.half is None else [SCHEDULE]
        return [written]

    def choose(self, forms: tuple[Form, ...], on_device: bool = False) -> tuple[str, str]:
        """(choice, why): the schedule of the scheme, the fixed rule's, or what the model finds best for all tensors.

        For a buffer on a device the model's choice is never MPI's own allreduce, but the best of ours that is exact:
        CUDA-aware MPIs are safe point to point only, and the others need the buffer copied to the host, as it is where
        `dense` is written.
        """
        if self.scheme.schedule is None and self.half is not None:
            return SCHEDULE, "fixed rule for halves"
        if self.scheme.schedule is None:
            return model.fixed_schedule(self.size, self.scheme.codec, forms), "fixed rule on P, bytes and codec"
        if self.scheme.schedule != AUTO:
            return self.scheme.schedule, "as written"
        choice, why = model.choose(self.scheme.codec, self.topology, forms, self.profile)
        if choice == model.DENSE and on_device:
            return model.best_exact(self.topology, forms, self.profile), f"{why}; for a GPU buffer our own"
        return choice, why

    def trials(self, label: tuple) -> Trials:
        """What is known of (name, forms) by trying, where `measures`."""
        found = self._trials.get(label)
        if found is None:
            codec = self.scheme.codec
            names = model.candidates(codec, self.topology, label[1], self.profile)
            exact = set(filter(model.is_exact, names)) | (set(SCHEDULES) if codec.name == "raw" else set())
            found = self._trials[label] = Trials(self.choices(), exact, names, model.DENSE, self.profile.source)
            unknown = [each for each in self._trials if each not in self._known]
            for each in unknown[:-GROUPS_MOST]:  # of calls that have not succeeded
                del self._trials[each]
        return found

    # --- making ---

    def hashes(self, key, seed: int, shape=None, dtype=None, order=None) -> tuple[int, ...]:
        """Of agreement.FIELDS."""
        return tuple(
            hash64(each)
            for each in (
                key,
                self.scheme.resolved() + "; measured" * self.measures + (f"; {self.half}" if self.half else ""),
                shape,
                dtype,
                order,
                self.average,
                seed,
                frame.VERSION,
            )
        )

    def propose(self, label: tuple, seed: int, group: int, on_device: bool) -> Agreed:
        """What this rank would take for (name, forms)."""
        name, forms = label
        choice, why = self.choose(forms, on_device)
        if isinstance(name, tuple):
            self._forget_groups(name)
            shapes, orders, dtypes = zip(*((form.compared, form.order, form.dtype) for form in forms), strict=True)
            streams = array("Q", [hash64(seed, key, group) for key in name])
        else:
            (form,), streams = forms, array("Q", [hash64(seed, name, group)])
            shapes, orders, dtypes = form.compared, form.order, form.dtype
        hashes = self.hashes(name, seed, shapes, dtypes, orders)
        return self._make(name, (choice, forms), why, streams, hashes)

    def instead(self, agreed: Agreed, choice: str, why: str = "rank 0's choice") -> Agreed:
        """The same with rank 0's choice."""
        return self._make(agreed.name, (choice, agreed.form[1]), why, agreed.streams, agreed.hashes)

    def _make(self, name, form: tuple, why: str, streams: array, hashes: tuple[int, ...]) -> Agreed:
        signature = hash64(*hashes, form[0], self.number, self.topology.hosts)
        return Agreed(name, self._what(form[0]), why, signature, streams, form, hashes)

    def _what(self, choice: str) -> str:
        """A choice as text."""
        schedule, raw, _ = choice.partition(model.RAW)
        if raw or choice == model.DENSE:
            return choice + "/ef" * self.scheme.feedback
        return self.scheme.resolved(schedule)

    def exact(self, size: int, signature: int) -> Agreed:
        """For `flush`: the exact sum of float32 vectors."""
        choice = model.fixed_schedule(self.size, CODECS["raw"](), size) + model.RAW
        return Agreed(
            None, choice, "flush", signature, array("Q", [hash64()]), (choice, (Form((size,), "C", "float32"),))
        )

    def plan(self, agreed: Agreed, processor, states=()) -> Plan | IndirectPlan:
        """The Plan on a processor; made once, or for the last few borders where a codec moves them.

        states
            of each key; of what they have learned the borders are made.
        """
        moves = self.scheme.codec.moves_borders and not agreed.choice.endswith(model.RAW)
        if agreed.plan is not None and agreed.plan.processor is processor and not moves:
            return agreed.plan
        borders = (tuple(self.scheme.codec.borders(state.learned) for state in states),) if moves else ()
        which = (*agreed.form, processor, *borders)
        found = self._plans.get(which)
        if found is None:
            choice, forms = agreed.form
            schedule, raw, _ = choice.partition(model.RAW)
            schedule = PIECES_OF if schedule == MPI_SUM else schedule
            codec = CODECS["raw"]() if raw else self.scheme.codec
            given = schedule, codec, self.rank, self.topology, forms, self.average, processor, *borders
            found = plan_for(*given, half=self.half)
            self._plans[which] = found
            if len(self._plans) > self._plans_most:
                self._forget_plans(agreed.form[1])
            if moves:
                same = [each for each in self._plans if each[:3] == which[:3]]
                for each in same[:-BORDERS_MOST]:
                    del self._plans[each]
        agreed.plan = found
        return found


def measures() -> bool:
    """Does `auto/` measure? GQALLREDUCE_AUTO=model: it decides by predicted times, and tries nothing."""
    auto = os.environ.get("GQALLREDUCE_AUTO", "measure")
    if auto not in ("measure", "model"):
        raise ValueError(f"GQALLREDUCE_AUTO={auto!r}, expected measure or model")
    return auto == "measure"

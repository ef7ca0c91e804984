"""Which scheme sums which gradient, in one run after the other.

Rules are those of a Reducer (models/rules.py). Here `dense` is MPI_Allreduce in place, and `dense(ring)` the same,
forced to its ring algorithm.

One run is `RULES[@OPTIMIZER]`, where RULES is a scheme for all weights or several rules separated by semicolons.
"""

from dataclasses import dataclass

from gqallreduce.cli.training.optimizers import OPTIMIZERS
from gqallreduce.models.rules import assign, parse, parse_rule, plain_text
from gqallreduce.scheme import DENSE

RING = "dense(ring)"


@dataclass(frozen=True)
class Run:
    """One way to train: `assignment` maps every weight's name to its scheme; `text` is what was asked for."""

    text: str
    optimizer: str
    rate: float
    assignment: dict


def plan(entries, first_rules, optimizers, rates, names):
    """The Runs of `entries` for weights of these names, each by every optimizer or by the one it names itself.

    first_rules
        rules before those of every entry.
    rates
        optimizer -> learning rate, where it is not the optimizer's default.
    Raises ValueError that says what is wrong: also for a rule that applies to no weight, and a run asked for twice.
    """
    runs = []
    for entry in entries:
        text, _, own = (part.strip() for part in entry.partition("@"))
        if own and own not in OPTIMIZERS:
            raise ValueError(f"{entry!r}: no optimizer {own!r}; known: {', '.join(OPTIMIZERS)}")
        first = [parse_rule(rule, scheme_text) for rule in first_rules]
        assignment = assign([*first, *parse(text, scheme_text)], names)
        for optimizer in [own] if own else optimizers:
            rate = rates.get(optimizer, OPTIMIZERS[optimizer].rate)
            runs.append(Run(text, optimizer, rate, assignment))
    seen = [(run.text, run.optimizer) for run in runs]
    for text, optimizer in seen:
        if seen.count((text, optimizer)) > 1:
            raise ValueError(f"{text!r} with {optimizer} is asked for twice")
    return runs


def scheme_text(text):
    """The scheme as it is written in results; ValueError if there is none such."""
    return text.strip() if text.strip() in (DENSE, RING) else plain_text(text)


def parse_rate(text):
    """(optimizer, learning rate) of `NAME=RATE`."""
    name, _, value = text.partition("=")
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if name not in OPTIMIZERS or not 0 < rate < float("inf"):
        raise ValueError(f"rate {text!r}: expected NAME=RATE with a rate > 0 and a name of {', '.join(OPTIMIZERS)}")
    return name, rate

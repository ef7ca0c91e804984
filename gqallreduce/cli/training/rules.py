"""Which scheme sums which gradient, as text.

A rule is `PATTERN=SCHEME`; the pattern is matched with the weights' names as file names are (`*.bias`, `fc[12].weight`)
and the first rule that matches wins. SCHEME is any scheme of the package, `dense` (MPI_Allreduce in place) or
`dense(ring)` (the same forced to its ring algorithm). A weight that no rule matches is summed by `dense`.

One run is `RULES[@OPTIMIZER]`, where RULES is a scheme for all weights or several rules separated by semicolons.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import gqallreduce as gq
from gqallreduce.cli.training.optimizers import OPTIMIZERS

DENSE, RING = "dense", "dense(ring)"
_RULE = re.compile(r"(?P<pattern>[^=(]+)=(?P<scheme>.*)", re.DOTALL)


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
        assignment = assign([*map(parse_rule, first_rules), *parse_rules(text)], names)
        for optimizer in [own] if own else optimizers:
            rate = rates.get(optimizer, OPTIMIZERS[optimizer].rate)
            runs.append(Run(text, optimizer, rate, assignment))
    seen = [(run.text, run.optimizer) for run in runs]
    for text, optimizer in seen:
        if seen.count((text, optimizer)) > 1:
            raise ValueError(f"{text!r} with {optimizer} is asked for twice")
    return runs


def parse_rules(text):
    """[(pattern, scheme), ...] of one entry: a scheme for all, or rules separated by semicolons."""
    if _RULE.fullmatch(text) is None:
        return [("*", scheme_text(text))]
    return [parse_rule(part) for part in text.split(";") if part.strip()]


def parse_rule(text):
    """(pattern, scheme) of one rule."""
    form = _RULE.fullmatch(text)
    if form is None:
        raise ValueError(f"rule {text!r}: expected PATTERN=SCHEME as '*.bias=raw'")
    return form["pattern"].strip(), scheme_text(form["scheme"])


def scheme_text(text):
    """The scheme as it is written in results; ValueError if there is none such."""
    text = text.strip()
    return text if text in (DENSE, RING) else str(gq.Scheme.parse(text))


def assign(rules, names):
    """name -> scheme by the first rule that matches; `dense` where none does."""
    found, used = {}, set()
    for name in names:
        number = next((n for n, (pattern, _) in enumerate(rules) if fnmatchcase(name, pattern)), None)
        used.add(number)
        found[name] = DENSE if number is None else rules[number][1]
    for number, (pattern, scheme) in enumerate(rules):
        if number not in used:
            matched = any(fnmatchcase(name, pattern) for name in names)
            why = "earlier rules take all that it matches" if matched else f"the weights are {', '.join(names)}"
            raise ValueError(f"rule '{pattern}={scheme}' applies to no weight: {why}")
    return found


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

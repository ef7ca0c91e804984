"""Which scheme sums which tensor, as text.

A rule is `PATTERN=SCHEME`; the pattern is matched with names of tensors as file names are (`*.bias`, `fc[12].weight`),
and the first rule that matches wins. Several rules are separated by semicolons; a scheme alone is for all tensors. What
no rule matches is summed exactly, by `raw`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from gqallreduce.scheme import Scheme

EXACT = "raw"
_RULE = re.compile(r"(?P<pattern>[^=(]+)=(?P<scheme>.*)", re.DOTALL)


def plain_text(scheme: str | Scheme) -> str:
    """A scheme as results show it; ValueError if it is none."""
    if not isinstance(scheme, (str, Scheme)):
        raise TypeError(f"rules: got a scheme of type {type(scheme).__name__}, expected text or a Scheme")
    return str(Scheme.parse(scheme.strip() if isinstance(scheme, str) else scheme))


def parse(rules: str | Scheme | Mapping, scheme_text: Callable = plain_text) -> list[tuple[str, str]]:
    """[(pattern, scheme), ...] of text, of a scheme for all, or of a mapping of patterns to schemes.

    scheme_text
        of a scheme as written, the text of it; raises ValueError for what is none.
    Raises ValueError, which says what is wrong; TypeError.
    """
    if isinstance(rules, Mapping):
        if not rules:
            raise ValueError("rules: got none, expected a scheme for all tensors, or patterns with schemes")
        return [(_pattern(pattern), scheme_text(scheme)) for pattern, scheme in rules.items()]
    if isinstance(rules, Scheme):
        return [("*", scheme_text(rules))]
    if not isinstance(rules, str):
        raise TypeError(f"rules: got {type(rules).__name__}, expected text, a scheme, or patterns with schemes")
    if _RULE.fullmatch(rules) is None:
        return [("*", scheme_text(rules))]
    return [parse_rule(part, scheme_text) for part in rules.split(";") if part.strip()]


def parse_rule(text: str, scheme_text: Callable = plain_text) -> tuple[str, str]:
    """(pattern, scheme) of one rule."""
    form = _RULE.fullmatch(text)
    if form is None:
        raise ValueError(f"rule {text!r}: expected PATTERN=SCHEME as '*.bias=raw'")
    try:
        return form["pattern"].strip(), scheme_text(form["scheme"])
    except ValueError as error:
        raise ValueError(f"rule {text.strip()!r}: {error}; rules are PATTERN=SCHEME, separated by ';'") from None


def _pattern(pattern) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"rules: got a pattern of type {type(pattern).__name__}, expected text as '*.bias'")
    return pattern


def _told(names: list[str], most: int = 20) -> str:
    """The names of all tensors, or the first ones of many."""
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return f"the tensors are {', '.join(names[:most])}{more}"


def assign(rules: list[tuple[str, str]], names: Iterable[str]) -> dict[str, str]:
    """name -> scheme by the first rule that matches, or `raw`. ValueError for a rule that applies to no tensor."""
    names, found, used = list(names), {}, set()
    for name in names:
        number = next((n for n, (pattern, _) in enumerate(rules) if fnmatchcase(name, pattern)), None)
        used.add(number)
        found[name] = EXACT if number is None else rules[number][1]
    for number, (pattern, scheme) in enumerate(rules):
        if number not in used:
            matched = any(fnmatchcase(name, pattern) for name in names)
            why = "earlier rules take all that it matches, put it before them" if matched else _told(names)
            raise ValueError(f"rule '{pattern}={scheme}' applies to no tensor: {why}")
    return found

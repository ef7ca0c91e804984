"""Names of codecs and schedules.  A file registers what it defines; importing the folder imports every file."""

from __future__ import annotations

import difflib
import importlib
import pkgutil


class Registry(dict):
    """name -> thing, filled by the folder `package`; an unknown name is a ValueError with near misses.

    families
        name -> what makes the thing with options, for names such as "hierarchical(outer=ring)". These are found here
        by such names as well (as the things have them), but not listed.
    """

    def __init__(self, kind: str, package: str):
        super().__init__()
        self.kind, self.package = kind, package
        self.families: dict = {}
        self._made: dict = {}

    def __missing__(self, name: str):
        if name not in self._made:
            base, _, written = name.partition("(")
            if base not in self.families:
                raise KeyError(name)
            return self.make(base, dict(each.split("=") for each in written.removesuffix(")").split(", ")))
        return self._made[name]

    def make(self, name: str, options: dict):
        """The thing of that name with these options; ValueError if it takes no such."""
        if not options:
            return self[name]
        if name not in self.families:
            raise ValueError(f"{self.kind} {name!r} has no options, got {', '.join(options)}")
        allowed = dict(self[name].options)
        for option in options:
            if option not in allowed:
                known = ", ".join(allowed)
                raise ValueError(f"{name} has no option {option!r}{near(option, allowed)}; options: {known}")
        found = self.families[name](**options)
        return self.get(found.name) or self._made.setdefault(found.name, found)

    def add(self, name: str, thing) -> None:
        if name in self:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self[name] = thing

    def load(self) -> Registry:
        """Import every module of the folder, in name order."""
        package = importlib.import_module(self.package)
        for module in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"{self.package}.{module}")
        return self

    def find(self, name: str, also=()):
        """The thing of that name. `also`: names that are known elsewhere, for the error."""
        if name not in self:
            known = sorted([*self, *also])
            raise ValueError(f"unknown {self.kind} {name!r}{near(name, known)}; known: {', '.join(known)}")
        return self[name]


def near(name: str, known) -> str:
    """' (did you mean ...?)' or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


CODECS = Registry("codec", "gqallreduce.codecs")
SCHEDULES = Registry("schedule", "gqallreduce.schedules")

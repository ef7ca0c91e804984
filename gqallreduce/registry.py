"""Names of codecs and schedules.  A file registers what it defines; importing the folder imports every file."""

from __future__ import annotations

import difflib
import importlib
import pkgutil


class Registry(dict):
    """name -> thing, filled by the folder `package`; an unknown name is a ValueError with near misses."""

    def __init__(self, kind: str, package: str):
        super().__init__()
        self.kind, self.package = kind, package

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

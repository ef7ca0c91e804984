"""Memory that a call borrows of its processor."""

from __future__ import annotations

from functools import cached_property

import numpy as np


class Lending:
    """What an operation has of it.

    processor
        where the call's values are.
    widest
        elements of its largest extent.
    """

    def __init__(self, processor, widest: int = 0):
        self.processor, self._widest = processor, widest

    @cached_property
    def _lent(self) -> dict[object, np.ndarray]:
        return {}

    @cached_property
    def _scratch(self) -> dict[int, np.ndarray]:
        return {}

    @property
    def arithmetic(self):
        return self.processor.arithmetic

    @property
    def workspace(self):
        return self.processor.workspace

    def lend(self, size: int, dtype, name=None) -> np.ndarray:
        """An array until the end of the call, or until what is lent to that name is given back."""
        nbytes = size * np.dtype(dtype).itemsize
        buffer = self._lent[object() if name is None else name] = self.workspace.take(nbytes)
        return buffer[:nbytes].view(dtype)

    def give_back(self, name) -> None:
        self.workspace.give(self._lent.pop(name))

    def give_all_back(self) -> None:
        for buffer in self.__dict__.pop("_lent", {}).values():
            self.workspace.give(buffer)
        self.__dict__.pop("_scratch", None)

    def scratch(self, which: int, size: int, dtype) -> np.ndarray:
        """One of four arrays for an extent; its content is lost when another extent is worked on."""
        nbytes, found = size * dtype.itemsize, self._scratch.get(which)
        if found is None or len(found) < nbytes:
            found = self._scratch[which] = self.lend(max(size, self._widest) * dtype.itemsize, np.uint8)
        return found[:nbytes].view(dtype)

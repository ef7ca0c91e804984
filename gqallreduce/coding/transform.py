"""Codecs that sum a shorter vector than the buffer: its *coefficients*, which are mapped back when the sum is finished.

The coefficients of all ranks are summed by another codec, on every schedule, as if they were the buffer. What the
coefficients leave out of a rank's values goes into its residual.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from gqallreduce.coding.layout import Form

ALL_ALIKE = 0xFFFF, 0xFFFFFFFF  # hop and author of the stream that all ranks draw from, which no encoding has
ALONE = 0x80000000  # plus a rank: with hop 0xFFFF the author of that from which the rank draws choices of its own


class Transform(ABC):
    """A linear map of vectors of one form to coefficients, and back. It works block by block, on host arrays.

    form
        of the coefficients: a float32 vector.
    """

    form: Form

    @abstractmethod
    def draw(self, stream):
        """The random choices of a call, alike on all ranks, as the stream is: the `drawn` of the other methods."""

    def coefficients(self, drawn, v) -> np.ndarray:
        """Of a whole vector."""
        found = np.zeros(self.form.size, np.float32)
        self.shorten(drawn, 0, v, found)
        return found

    @abstractmethod
    def shorten(self, drawn, begin: int, v, coefficients) -> None:
        """Let elements [begin, begin + v.size) take part in the coefficients, which are 0 before the first block."""

    @abstractmethod
    def leave(self, drawn, begin: int, v, coefficients) -> None:
        """v := what the coefficients, now of all blocks, leave out of these elements."""

    @abstractmethod
    def lengthen(self, drawn, begin: int, coefficients, y, add: bool) -> None:
        """y, elements from `begin` on, := or += what coefficients stand for; these may be of any dtype."""

    @abstractmethod
    def origin(self, drawn, numbers) -> np.ndarray:
        """The elements by which coefficients are named in errors."""

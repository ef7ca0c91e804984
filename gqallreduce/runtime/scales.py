"""Scales that all ranks of a call share: the largest of their own, which they agree on before they encode."""

from __future__ import annotations

from gqallreduce import _kernels
from gqallreduce.transport.exchange import PREPARE


class Scales(_kernels.SharedScales):
    """Of a Plan whose codec has them: finds this rank's own, and takes those that ranks have agreed on."""

    __slots__ = ()

    @classmethod
    def of(cls, codec, order: list[int]) -> Scales:
        """order: tensors, as ranks tell each other their scales."""
        return cls(PREPARE, *codec.shared_scale, order, codec.coder_of(0.0))

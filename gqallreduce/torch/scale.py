"""What a Reducer keeps is in units of gradients, which a GradScaler multiplies by a number that changes."""

from __future__ import annotations

import math


class Scale:
    """That of a scaler, as far as a Reducer has followed it.

    scaler
        torch.amp.GradScaler; None if there is none, or it is not enabled: gradients are not multiplied.
    value
        by which what the Reducer keeps is multiplied; None without a scaler.
    """

    def __init__(self, scaler, clip: float | None):
        """clip: the bound of norms of gradients that are not multiplied, or None. TypeError for what is no scaler."""
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise TypeError(f"scaler: got {type(scaler).__name__}, expected a torch.amp.GradScaler, or None")
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        self.scaler, self._clip = scaler, clip
        self.value = None if scaler is None else scaler.get_scale()

    def follow(self, reducer) -> None:
        """Residuals, momentum and the bound of norms are multiplied as gradients are now. Collective if it changes."""
        if self.scaler is None:
            return
        if (now := self.scaler.get_scale()) != self.value:
            reducer.scale_memory(now / self.value, momentum=True)
            self.value = now
        if self._clip is not None:
            reducer.contributions.clip = self._clip * now

    @property
    def has_changed(self) -> bool:
        """Since it was followed last."""
        return self.scaler is not None and self.scaler.get_scale() != self.value

    def require_fit(self, scale) -> None:
        """ValueError for the scale of a state that does not fit."""
        if (scale is None) != (self.scaler is None) or not (scale is None or _is_positive(scale)):
            expected = "None, since there is no scaler" if self.scaler is None else "the scale of its scaler"
            raise ValueError(f"state has scale {scale!r}, expected {expected}")


def _is_positive(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
